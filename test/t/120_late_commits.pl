# Transactions that commit in another order than they wrote, some of them long after: nothing is passed over,
# and the events of a key keep their order.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => { 'drainer.batch_size' => 100, 'drainer.pipeline_depth' => 100 });
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');
$node->wait_for_state('postgres', 'idle');

# Sessions that stay open while the others go by.
my @open = map { $node->background_psql('postgres', on_error_stop => 1) } 1 .. 4;
for my $i (0 .. $#open)
{
	$open[$i]->query_safe("BEGIN; SELECT emit('open $i'); SELECT emit('open $i')");
}
$node->safe_psql('postgres', q{BEGIN; SELECT emit('prepared'); PREPARE TRANSACTION 'open'});

my $script = <<'SQL';
\set key random(1, 30)
\set outcome random(1, 10)
\set pause random(0, 20)
BEGIN;
SELECT emit('key ' || :key);
SELECT pg_sleep(:pause / 1000.0);
SELECT emit('key ' || 100 + :key);
\if :outcome = 1
ROLLBACK;
\else
COMMIT;
\endif
SQL
my $run = $node->start_pgbench('postgres', $script, 8, 200);

# While they run, two of the open ones write more and end.
$node->wait_query('postgres', 'SELECT count(*) > 500 FROM outbox.event WHERE published_at IS NOT NULL');
$open[0]->query_safe("SELECT emit('open 0'); COMMIT");
$open[1]->query_safe('ROLLBACK');
$node->wait_query('postgres', q{SELECT count(*) = 3 AND bool_and(published_at IS NOT NULL) FROM outbox.event WHERE key = 'open 0'});
pass('what an open transaction wrote before many others is sent when it commits');
$node->finish_pgbench($run);
$node->wait_drained('postgres');

# The rest ends when all else is sent.
$open[2]->query_safe('COMMIT');
$open[3]->query_safe("SELECT emit('open 3'); ROLLBACK");
$node->safe_psql('postgres', q{COMMIT PREPARED 'open'});
$node->wait_query('postgres', q{SELECT count(*) = 3 FROM outbox.event WHERE key IN ('open 2', 'prepared')});
$node->wait_drained('postgres');
$_->quit for @open;

my $count    = $node->safe_psql('postgres', 'SELECT count(*) FROM ledger');
my $messages = $broker->consume('q', count => $count);
$node->ledger_ok('postgres', $messages, "all $count events arrive once, in the order of their keys");

done_testing();
