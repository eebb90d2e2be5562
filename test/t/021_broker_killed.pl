# The broker is killed in mid-batch and restarted: nothing is lost, what comes twice is bounded, no row is charged.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $depth  = 50;
my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => { 'drainer.enabled' => 'off', 'drainer.pipeline_depth' => $depth, 'drainer.batch_size' => 200 });
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');
$node->safe_psql('postgres', 'SELECT emit_many(4000, 100)');

# Frozen first, so that the kill hits messages on their way.
$node->configure('drainer.enabled' => 'on');
$node->wait_stat('postgres', 'published >= 500');
$broker->freeze;
$node->wait_stat('postgres', 'in_flight > 0');
$broker->kill9;

$node->wait_stat('postgres', q{state IN ('connecting', 'backoff') AND in_flight = 0 AND last_error <> ''});
pass('the status shows the outage');
isnt($node->unpublished('postgres'), '0', 'the batch was not over');
$node->wait_query('postgres', 'SELECT count(*) = 0 FROM outbox.event WHERE claimed_by IS NOT NULL');
pass('the rows in hand are released');

$broker->start;
$node->wait_drained('postgres');
my $messages = $broker->consume('q', count => 4000);
$node->ledger_ok('postgres', $messages, 'every event arrives, few twice', duplicates => 2 * $depth);
is($node->safe_psql('postgres', 'SELECT sum(attempts) FROM outbox.event'), '0', 'no attempt was charged');
is($node->stat('postgres', 'reconnects > 0 AND released > 0 AND stale_marks = 0'), 'true', 'the counters tell of it');

# A connection that the broker closes in order.
$node->safe_psql('postgres', 'TRUNCATE ledger, aggregate');
$broker->close_connections('an operator closes it');
$node->safe_psql('postgres', 'SELECT emit_many(100, 10)');
$node->wait_drained('postgres');
$node->ledger_ok(
	'postgres',
	$broker->consume('q', count => 100),
	'events arrive after the broker closed the connection',
	duplicates => 2 * $depth);

done_testing();
