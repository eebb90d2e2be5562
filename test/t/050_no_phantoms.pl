# A producer with synchronous_commit = off may lose its last transactions in a crash. Consumers must never
# have seen the events of a transaction that was lost.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $rounds = 3;
my $depth  = 50;
my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => {
		synchronous_commit       => 'off',
		wal_writer_delay         => '10s',
		wal_writer_flush_after   => '1GB',
		wal_buffers              => '64MB',
		'drainer.pipeline_depth' => $depth,
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');
$node->safe_psql('postgres', 'CHECKPOINT');

for my $round (1 .. $rounds)
{
	$node->wait_for_state('postgres', 'idle');
	my $rows = $node->safe_psql('postgres', 'SELECT count(*) FROM ledger');
	my $run  = $node->start_pgbench('postgres', q{SELECT emit('key ' || (random() * 20)::int);}, 4, 1_000_000);
	$node->wait_query('postgres', "SELECT count(*) > $rows + 500 FROM outbox.event WHERE published_at IS NOT NULL");
	$node->stop('immediate');
	$run->{harness}->finish;
	$node->start;
}
$node->wait_drained('postgres');
my $count = $node->safe_psql('postgres', 'SELECT count(*) FROM ledger');
cmp_ok($count, '>', 500 * $rounds, "$count events survived");
$node->ledger_ok(
	'postgres',
	$broker->consume('q', count => $count),
	'no event arrived whose row is gone, and all others did',
	duplicates => $rounds * 2 * $depth);

done_testing();
