# The broker raises its memory alarm and blocks publishers: the status says so, nothing is charged, and all goes
# on by itself when the alarm is over.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $depth  = 50;
my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => { 'drainer.pipeline_depth' => $depth });
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');
$node->wait_for_state('postgres', 'idle');

$broker->memory_alarm(1);
$node->safe_psql('postgres', 'SELECT emit_many(500, 10)');
$node->wait_for_state('postgres', 'blocked');
pass('the state is blocked');
isnt($node->unpublished('postgres'), '0', 'events wait');

$broker->memory_alarm(0);
$node->wait_drained('postgres');
$node->ledger_ok('postgres', $broker->consume('q', count => 500), 'every event arrives', duplicates => 2 * $depth);
is($node->safe_psql('postgres', 'SELECT sum(attempts) FROM outbox.event'), '0', 'no attempt was charged');
$node->wait_for_state('postgres', 'idle');

done_testing();
