# The broker is down when the server starts, and comes later.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

# Exchange and queue are durable: they are there when the broker comes back.
my $broker = OutboxDrainer::Cluster->start_broker;
$broker->stop;

my $node = OutboxDrainer::Cluster->new_node('main', broker => $broker);
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');
$node->safe_psql('postgres', q{SELECT emit_many(100, 10)});

$node->wait_stat('postgres', q{state IN ('connecting', 'backoff') AND last_error <> ''});
like($node->stat('postgres', 'last_error'), qr/refused/i, 'the status says why there is no connection');
is($node->stat('postgres', 'connected_since IS NULL AND last_error_at IS NOT NULL'), 'true', 'and since when');
is($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.event WHERE claimed_by IS NOT NULL'),
	'0', 'nothing is claimed while there is no broker');
is($node->unpublished('postgres'), '100', 'all events wait');

$broker->start;
$node->wait_drained('postgres');
$node->ledger_ok('postgres', $broker->consume('q', count => 100), 'every event arrives once when the broker comes');
is($node->safe_psql('postgres', 'SELECT sum(attempts) FROM outbox.event'), '0', 'the outage charged no attempt');
is($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.event WHERE last_error IS NOT NULL'),
	'0', 'and left no error on a row');
$node->wait_for_state('postgres', 'idle');

done_testing();
