# The drainer is killed with kill -9 in mid-batch: PostgreSQL restarts itself, the drainer comes back and sends
# what it left, at once and without charging a row.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $depth  = 50;
my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => {
		'drainer.enabled'         => 'off',
		'drainer.pipeline_depth'  => $depth,
		'drainer.batch_size'      => 200,
		# Longer than the test may take: what is left behind must not have to wait for its lease.
		'drainer.lease_ttl' => '2h',
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');
$node->safe_psql('postgres', 'SELECT emit_many(4000, 100)');

$node->configure('drainer.enabled' => 'on');
$node->wait_stat('postgres', 'published >= 500');
$broker->freeze;
$node->wait_stat('postgres', 'in_flight > 0');
my $pid = $node->drainer_pid('postgres');
kill 'KILL', $pid;
$node->wait_for_log(qr/terminated by signal 9/);
$broker->thaw;

$node->wait_query('postgres', "SELECT pid > 0 AND pid <> $pid FROM outbox.stat_drainer WHERE database = 'postgres'");
pass('another drainer runs');
$node->wait_drained('postgres');
my $messages = $broker->consume('q', count => 4000);
$node->ledger_ok('postgres', $messages, 'every event arrives, few twice', duplicates => 2 * $depth);
is($node->safe_psql('postgres', 'SELECT sum(attempts) FROM outbox.event'), '0', 'no attempt was charged');

# A drainer that an administrator terminates releases what it holds and comes back.
$pid = $node->drainer_pid('postgres');
$node->safe_psql('postgres', "TRUNCATE ledger, aggregate; SELECT pg_terminate_backend($pid)");
$node->safe_psql('postgres', 'SELECT emit_many(100, 10)');
$node->wait_query('postgres', "SELECT pid > 0 AND pid <> $pid FROM outbox.stat_drainer WHERE database = 'postgres'");
$node->wait_drained('postgres');
$node->ledger_ok('postgres', $broker->consume('q', count => 100), 'events arrive after the drainer was terminated');

done_testing();
