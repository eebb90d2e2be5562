# Two databases of a server are drained at once, and one without the extension is left alone.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node('main', broker => $broker);
$node->safe_psql('postgres', "CREATE DATABASE $_") for qw(shop billing plain);
for my $database (qw(shop billing))
{
	$node->safe_psql($database, 'CREATE EXTENSION outbox_drainer');
	$node->create_ledger($database);
}
my @runs = map { $node->start_pgbench($_, q{SELECT emit('key ' || (random() * 20)::int);}, 2, 500) } qw(shop billing);
$node->finish_pgbench($_) for @runs;
$node->wait_drained($_) for qw(shop billing);

my $messages = $broker->consume('q', count => 2000);
for my $database (qw(shop billing))
{
	$node->ledger_ok($database, [ grep { $_->{properties}{app_id} eq $database } @$messages ],
		"every event of $database arrives once, in the order of its key");
}
is(scalar @$messages, 2000, 'and nothing else');

my $processes = q{SELECT string_agg(datname, ' ' ORDER BY datname) FROM pg_stat_activity WHERE backend_type = 'outbox_drainer'};
is($node->safe_psql('postgres', $processes), 'billing shop', 'the two databases have a drainer each, no other has one');
is( $node->safe_psql('shop', q{SELECT string_agg(database, ' ' ORDER BY database) FROM outbox.stat_drainer WHERE pid > 0}),
	'billing shop',
	'the status shows both from either');
$node->safe_psql('postgres', 'DROP DATABASE plain');
pass('a database without the extension can be dropped');

$node->safe_psql('postgres', 'DROP DATABASE billing WITH (FORCE)');
$node->wait_query('shop', q{SELECT count(*) = 0 FROM outbox.stat_drainer WHERE database = 'billing' AND pid > 0});
$node->wait_query('postgres', "SELECT ($processes) = 'shop'");
pass('the drainer of a dropped database is gone');
$node->safe_psql('shop', q{SELECT emit('after')});
$node->wait_drained('shop');
is(scalar @{ $broker->consume('q', count => 1) }, 1, 'the other database is drained as before');

# A list of databases leaves the others out.
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other',    'CREATE EXTENSION outbox_drainer');
$node->wait_query('postgres', "SELECT ($processes) = 'other shop'");
$node->write_settings('drainer.databases' => 'other');
$node->restart;
$node->wait_query('postgres', "SELECT ($processes) = 'other'");
$node->safe_psql('shop', q{SELECT emit('waits')});
is($node->unpublished('shop'), '1', 'a database that the list does not name is not drained');

done_testing();
