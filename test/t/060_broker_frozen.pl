# The broker hangs: its process is stopped, its connections stay open. The database must not notice.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;
use Time::HiRes qw(time sleep);

my $depth  = 200;
my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => {
		'drainer.pipeline_depth' => $depth,
		# Long, so that the drainer keeps waiting for the whole test.
		'drainer.lease_ttl'        => '2h',
		'drainer.confirm_timeout'  => '1h',
		'drainer.heartbeat'        => '10min',
		'drainer.shutdown_timeout' => '2s',
	});
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('postgres', 'CREATE DATABASE drained');
$node->safe_psql($_,         'CREATE EXTENSION outbox_drainer') for qw(postgres drained);
$node->create_ledger('postgres');
# One event each, so that the exchange is known to the connections.
for my $database (qw(postgres drained))
{
	$node->safe_psql($database, q{INSERT INTO outbox.event (event_type, payload, source) VALUES ('first', 'x', 'first')});
	$node->wait_drained($database);
	$node->wait_for_state($database, 'idle');
}
is(scalar @{ $broker->consume('q', count => 2) }, 2, 'events arrive while the broker is well');

$broker->freeze;
$node->safe_psql('postgres', 'SELECT emit_many(100, 100)');
$node->wait_stat('postgres', 'in_flight = 100');
my $activity = "FROM pg_stat_activity WHERE backend_type = 'outbox_drainer' AND datname = 'postgres'";
$node->wait_query('postgres', "SELECT backend_xmin IS NULL AND xact_start IS NULL $activity");
my @held = grep { $_ ne 't' }
  map { sleep 0.1; $node->safe_psql('postgres', "SELECT backend_xmin IS NULL AND xact_start IS NULL $activity") } 1 .. 10;
is(scalar @held, 0, 'no snapshot and no transaction is held while confirms are awaited');

$node->safe_psql('postgres', 'DROP DATABASE other');
pass('DROP DATABASE of another database is not held up');
$node->safe_psql('postgres', 'DROP DATABASE drained WITH (FORCE)');
pass('nor is that of a database with a drainer');
$node->safe_psql('postgres', 'ALTER TABLE outbox.event SET (autovacuum_vacuum_scale_factor = 0.1)');
$node->safe_psql('postgres', 'VACUUM FULL outbox.event');
pass('nor are changes of the table');

# Large events fill the socket, so that a publish might block.
$node->safe_psql('postgres',
	q{INSERT INTO outbox.event (event_type, payload, source) SELECT 'large', convert_to(repeat('x', 100000), 'UTF8'), 'large' FROM generate_series(1, 300)}
);
$node->wait_stat('postgres', 'claimed > 100');
$node->safe_psql('postgres', 'SELECT count(*) FROM outbox.event');
my $started = time;
$node->stop('fast');
my $took = time - $started;
cmp_ok($took, '<', 30, sprintf 'a fast stop takes no longer than shutdown_timeout and a margin (%.1f s)', $took);

$broker->thaw;
$node->start;
$node->wait_drained('postgres');
my $messages = $broker->consume('q', count => 400);
$node->ledger_ok(
	'postgres',
	[ grep { $_->{properties}{app_id} ne 'large' } @$messages ],
	'every event arrives when the broker goes on',
	duplicates => 2 * $depth);
my %large = map { $_->{properties}{message_id} => 1 } grep { $_->{properties}{app_id} eq 'large' } @$messages;
is(scalar keys %large, 300, 'the large ones too');
is($node->safe_psql('postgres', 'SELECT sum(attempts) FROM outbox.event'), '0', 'no attempt was charged');

done_testing();
