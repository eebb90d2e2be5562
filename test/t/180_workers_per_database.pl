# Several drainers of one database: their number follows the configuration, database commands put all of them
# aside, and where the server has too few background workers none of them keeps another database's first one out.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node('main', broker => $broker);
$node->safe_psql('postgres', 'CREATE DATABASE shop');
$node->safe_psql('shop',     'CREATE EXTENSION outbox_drainer');
$node->create_ledger('shop');

# Which drainers the status shows at work, and how many processes there are.
my $workers = q{SELECT coalesce(string_agg(worker::text, ' ' ORDER BY worker), '') FROM outbox.stat_drainer
	WHERE database = 'shop' AND pid > 0 AND state NOT IN ('starting', 'connecting')};
my $processes = q{SELECT count(*) FROM pg_stat_activity WHERE datname = 'shop' AND backend_type = 'outbox_drainer'};

sub wait_workers
{
	my ($server, $expected) = @_;
	my $count = split / /, $expected;
	$server->wait_query('shop', "SELECT ($workers) = '$expected' AND ($processes) = $count", "drainers $expected run");
	return;
}

my $sent = 0;

sub drains
{
	my ($what) = @_;
	my $run = $node->start_pgbench('shop', q{SELECT emit('key ' || (random() * 20)::int);}, 2, 100);
	$node->finish_pgbench($run);
	$node->wait_drained('shop');
	$sent += 200;
	is($node->safe_psql('shop', 'SELECT count(*) FROM outbox.event WHERE published_at IS NOT NULL'), $sent, $what);
	return;
}

wait_workers($node, '0');
pass('by default a database has one drainer');
for my $step ([ 4, '0 1 2 3' ], [ 2, '0 1' ], [ 1, '0' ])
{
	my ($number, $expected) = @$step;
	my $before = $node->safe_psql('shop', q{SELECT sum(published) FROM outbox.stat_drainer WHERE database = 'shop'});
	$node->configure('drainer.workers_per_database' => $number);
	wait_workers($node, $expected);
	pass("a reload makes it $number");
	cmp_ok($node->safe_psql('shop', q{SELECT sum(published) FROM outbox.stat_drainer WHERE database = 'shop'}),
		'>=', $before, 'and what was counted stays counted');
	drains("all is published by $number");
}
my %seen = map { $_->{properties}{message_id} => 1 } @{ $broker->consume('q', count => $sent) };
is(scalar keys %seen, $sent, 'every event has arrived');

# The extension comes and goes.
$node->configure('drainer.workers_per_database' => 4);
wait_workers($node, '0 1 2 3');
$node->safe_psql('shop', 'SET outbox_drainer.allow_drop = on; DROP EXTENSION outbox_drainer CASCADE');
$node->wait_query('postgres', "SELECT ($processes) = 0");
pass('without the extension none is left');
$node->safe_psql('shop', 'CREATE EXTENSION outbox_drainer');
wait_workers($node, '0 1 2 3');
pass('and all come back with it');

$node->safe_psql('postgres', 'ALTER DATABASE shop RENAME TO store');
$node->safe_psql('postgres', 'ALTER DATABASE store RENAME TO shop');
wait_workers($node, '0 1 2 3');
pass('a database with four drainers can be renamed');
$node->safe_psql('postgres', 'DROP DATABASE shop');
pass('and dropped');
$node->wait_query('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'outbox_drainer'});
$node->stop;

# Room for the launchers (ours and the server's) and two drainers.
my $crowded = OutboxDrainer::Cluster->new_node('crowded',
	broker   => $broker,
	settings => { max_worker_processes => 4, 'drainer.workers_per_database' => 4 });
$crowded->safe_psql('postgres', 'CREATE DATABASE shop');
$crowded->safe_psql('shop',     'CREATE EXTENSION outbox_drainer');
$crowded->create_ledger('shop');
wait_workers($crowded, '0 1');
$crowded->safe_psql('shop', q{SELECT emit('a') FROM generate_series(1, 50)});
$crowded->wait_drained('shop');
pass('with too few background workers the outbox is drained by those that run');
OutboxDrainer::Cluster::wait_until('the log says so', sub { $crowded->log_since(0) =~ /out of background worker slots/ });
like($crowded->log_since(0), qr/Database "shop" has 2 of 4 drainers/, 'the log says how many are missing');
like(
	$crowded->log_since(0),
	qr/Set max_worker_processes to at least 6, or lower outbox_drainer\.workers_per_database\./,
	'and names the cure');

$crowded->safe_psql('postgres', 'CREATE DATABASE billing');
$crowded->safe_psql('billing',  'CREATE EXTENSION outbox_drainer');
$crowded->wait_stat('billing', 'worker = 0 AND pid > 0');
$crowded->create_ledger('billing');
$crowded->safe_psql('billing', q{SELECT emit('b') FROM generate_series(1, 50)});
$crowded->wait_drained('billing');
pass('the first drainer of another database takes the place of a further one');
$crowded->wait_query('shop', "SELECT ($workers) = '0'");
pass('whose database keeps its first one');
cmp_ok($crowded->safe_psql('shop', q{SELECT count(*) FROM outbox.stat_drainer WHERE worker > 0 AND last_error ~ 'worker slots'}),
	'>', 0, 'the status says what the others lack');
is(() = $crowded->log_since(0) =~ /has \d+ of 4 drainers/g, 1, 'the log has said it once');

done_testing();
