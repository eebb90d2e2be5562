# With a poll interval longer than the test, each commit wakes the drainer: events arrive all the same.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => { 'drainer.poll_interval' => '1h' });
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');
$node->wait_for_state('postgres', 'idle');

for my $i (1 .. 20)
{
	$node->safe_psql('postgres', "SELECT emit('key')");
	$node->wait_drained('postgres');
}
pass('each of 20 commits is noticed');

# A transaction that was overtaken, and one whose neighbour gave up.
my $slow = $node->background_psql('postgres', on_error_stop => 1);
$slow->query_safe(q{BEGIN; SELECT emit('slow')});
$node->safe_psql('postgres', q{SELECT emit('fast')});
$node->wait_drained('postgres');
$slow->query_safe('COMMIT');
$node->wait_query('postgres', 'SELECT count(*) = 22 FROM outbox.event WHERE published_at IS NOT NULL');
pass('a commit that was overtaken is noticed');

$slow->query_safe(q{BEGIN; SELECT emit('slow')});
$node->safe_psql('postgres', q{SELECT emit('fast')});
$node->wait_drained('postgres');
$slow->query_safe('ROLLBACK');
$slow->query_safe(q{BEGIN; SAVEPOINT s; SELECT emit('sub'); RELEASE SAVEPOINT s; COMMIT});
$slow->quit;
$node->wait_query('postgres', 'SELECT count(*) = 24 FROM outbox.event WHERE published_at IS NOT NULL');
pass('an event of a subtransaction is noticed');

# Other ways to write.
$node->safe_psql('postgres', q{COPY outbox.event (event_type, payload, source) FROM STDIN;
copied	\\\\x01	copy
copied	\\\\x02	copy
\.
});
$node->wait_drained('postgres');
$node->safe_psql('postgres',
	q{INSERT INTO outbox.event (event_type, payload, source) SELECT 'selected', 'x', 'select' FROM generate_series(1, 50)});
$node->wait_drained('postgres');
my $messages = $broker->consume('q', count => 76);
is(scalar @$messages, 76, 'COPY and INSERT ... SELECT are noticed too');
$node->ledger_ok('postgres', [ grep { $_->{properties}{app_id} eq 'postgres' } @$messages ], 'each arrived once');

done_testing();
