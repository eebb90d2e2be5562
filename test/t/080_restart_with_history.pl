# A server with a million published rows is restarted: the first claim does not walk through them.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $history = 1_000_000;
my $broker  = OutboxDrainer::Cluster->start_broker;
my $node    = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => {
		# Page accesses are counted below, and only the drainer may make some.
		autovacuum        => 'off',
		max_wal_size      => '4GB',
		'drainer.enabled' => 'off',
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');
$node->safe_psql('postgres', <<"SQL");
INSERT INTO outbox.event (event_type, payload, published_at)
	SELECT 'history', 'x', now() FROM generate_series(1, $history);
SQL
$node->configure('drainer.enabled' => 'on');
$node->safe_psql('postgres', q{SELECT emit('before')});
$node->wait_query('postgres', q{SELECT published_at IS NOT NULL FROM outbox.event WHERE id = (SELECT event FROM ledger WHERE n = 1)});
is(scalar @{ $broker->consume('q', count => 1) }, 1, 'the one event without published_at is sent, the history is not');
# How far the history reaches is noted down now and then, and at a stop.
$node->wait_for_state('postgres', 'idle');
$node->restart;
is($node->safe_psql('postgres', "SELECT floor >= $history FROM outbox.relay_state"), 't', 'a stop notes down how far it came');

my $pages = <<'SQL';
SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit
FROM pg_statio_user_tables WHERE schemaname = 'outbox' AND relname = 'event'
SQL
my $marks = q{SELECT n_tup_upd FROM pg_stat_user_tables WHERE schemaname = 'outbox' AND relname = 'event'};
my ($pages_before, $marks_before) = map { $node->safe_psql('postgres', $_) } $pages, $marks;
$node->safe_psql('postgres', q{SELECT emit('after')});
$node->wait_query('postgres', q{SELECT published_at IS NOT NULL FROM outbox.event WHERE id = (SELECT event FROM ledger WHERE n = 2)});
$node->wait_query('postgres', "SELECT ($marks) >= $marks_before + 2", 'the claim and the mark are in the statistics');
my $touched = $node->safe_psql('postgres', $pages) - $pages_before;
cmp_ok($touched, '<', $history / 100, "the event is sent with $touched page accesses");

done_testing();
