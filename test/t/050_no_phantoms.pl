# A producer with synchronous_commit = off may lose its last transactions in a crash. Consumers must never
# have seen the events of a transaction that was lost.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $rounds = $ENV{OUTBOX_TEST_LONG} ? 20 : 3;
my $depth  = 50;
my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => {
		synchronous_commit       => 'off',
		wal_buffers              => '64MB',
		'drainer.pipeline_depth' => $depth,
		'drainer.batch_size'     => 2 * $depth,
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');
$node->safe_psql('postgres', 'CHECKPOINT');

my $lost = 0;
for my $round (1 .. $rounds)
{
	$node->wait_for_state('postgres', 'idle');

	# What is committed asynchronously stays in memory until somebody needs it on disk: the one whose task
	# it is to write it now and then is stopped.
	my $wal_writer = $node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'});
	kill 'STOP', $wal_writer or die "could not stop the WAL writer: $!";

	my $before = $node->safe_psql('postgres', 'SELECT count(*) FROM ledger');
	my $run    = $node->start_pgbench('postgres', q{SELECT emit('key ' || (random() * 20)::int);}, 4, 1_000_000);
	$node->wait_query('postgres', "SELECT count(*) > $before + 300 FROM outbox.event WHERE published_at IS NOT NULL");

	# With the broker frozen the drainer has a full window and, soon, full hands: it claims no more, so nothing makes the
	# rest of the commits durable.
	$broker->freeze;
	$node->wait_query('postgres', 'SELECT count(*) > 1000 FROM outbox.event WHERE published_at IS NULL');
	my $seen = $node->safe_psql('postgres', 'SELECT count(*) FROM ledger');
	$node->stop('immediate');
	$run->{harness}->finish;
	$broker->thaw;
	$node->start;
	$lost += $seen - $node->safe_psql('postgres', 'SELECT count(*) FROM ledger');
}
$node->wait_drained('postgres');
cmp_ok($lost, '>', 0, "$lost committed transactions were lost");
my $count = $node->safe_psql('postgres', 'SELECT count(*) FROM ledger');
cmp_ok($count, '>', 300 * $rounds, "$count survived");
$node->ledger_ok(
	'postgres',
	$broker->consume('q', count => $count),
	'no event arrived whose row is gone, and all others did',
	duplicates => $rounds * 2 * $depth);

done_testing();
