# Eight sessions write ten thousand events while they are drained; transactions and savepoints roll back, one
# transaction is prepared. Each committed event arrives exactly once, as it was written, in the order of its key.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node('main', broker => $broker);
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');
$node->wait_for_state('postgres', 'idle');

$node->safe_psql('postgres', q{BEGIN; SELECT emit('prepared'), emit('prepared'); PREPARE TRANSACTION 'later'});

# Ten events are tried in each transaction; one transaction in five keeps none, the others keep eight.
my $run = $node->start_pgbench('postgres', <<'SQL', 8, 200);
\set first random(1, 40)
\set outcome random(1, 5)
BEGIN;
SELECT emit('key ' || :first), emit('key ' || :first);
SELECT emit('key ' || 100 + :first), emit('key ' || 100 + :first);
SAVEPOINT s;
SELECT emit('key ' || 200 + :first), emit('undone');
ROLLBACK TO SAVEPOINT s;
SELECT emit('key ' || 200 + :first), emit('key ' || 200 + :first);
SAVEPOINT t;
SELECT emit('key ' || 300 + :first), emit('key ' || 300 + :first);
RELEASE SAVEPOINT t;
\if :outcome = 1
ROLLBACK;
\else
COMMIT;
\endif
SQL
$node->finish_pgbench($run);
$node->wait_drained('postgres');
is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'), '1', 'a transaction is still prepared');
my $count    = $node->safe_psql('postgres', 'SELECT count(*) FROM ledger');
my $messages = $broker->consume('q', count => $count);
cmp_ok($count, '>=', 9_000, "$count events are committed");
is(scalar @$messages, $count, 'as many messages arrive');

$node->safe_psql('postgres', q{COMMIT PREPARED 'later'});
$node->wait_query('postgres', "SELECT count(*) = $count + 2 FROM outbox.event");
$node->wait_drained('postgres');
push @$messages, @{ $broker->consume('q', count => 2) };
is(scalar @$messages, $count + 2, 'the events of the prepared transaction arrive when it commits');

$node->ledger_ok('postgres', $messages, 'every event arrives once, as written, in the order of its key');
$node->wait_stat('postgres', "published = $count + 2 AND in_flight = 0");
is($node->stat('postgres', 'failed + released + stale_marks + expired_leases'), '0', 'the counters show no fault');
is($node->safe_psql('postgres', 'SELECT sum(attempts) FROM outbox.event'), '0', 'no attempt was charged');

done_testing();
