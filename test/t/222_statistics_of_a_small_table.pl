# The table was vacuumed and analyzed when there was next to nothing in it, and then many events come at once: each
# statement of the drainer still goes to its rows by an index, and walks over no part of the table that grows.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $broker = OutboxDrainer::Cluster->start_broker;
$broker->declare(exchange => 'events', queue => 'full', binding => 'full', arguments => { 'x-max-length' => 0, 'x-overflow' => 'reject-publish' });
my $node = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => {
		shared_preload_libraries        => 'auto_explain, outbox_drainer',
		autovacuum                      => 'off',
		'drainer.retry_backoff_initial' => '100ms',
		'drainer.retry_backoff_max'     => '100ms',
		'drainer.max_attempts'          => 2,
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');

for my $ordering (qw(per_key per_source best_effort stop_the_line))
{
	sql('DELETE FROM outbox.event');
	sql(q{SELECT outbox.enqueue('order.placed', '{}')});
	$node->wait_drained('postgres');
	sql("SELECT outbox.alter_relay(ordering => '$ordering')");
	sql('VACUUM ANALYZE outbox.event, outbox.relay_state');
	$node->append_conf('postgresql.conf', "auto_explain.log_min_duration = 0\nauto_explain.log_nested_statements = on");
	# Plans are made anew, while the table is as small as its statistics say.
	$node->restart;
	my $position = $node->log_position;
	sql(qq{INSERT INTO outbox.event (event_type, payload, key, routing_key, destination) VALUES
		('test', '', 'k', 'full', NULL), ('test', '', 'k', 'full', NULL), ('test', '', 'l', NULL, NULL), ('test', '', 'm', NULL, 'missing $ordering'), ('test', '', 'm', NULL, NULL)});
	if ($ordering eq 'stop_the_line')
	{
		# At the first event, which dies.
		$node->wait_query('postgres', 'SELECT paused_at IS NOT NULL FROM outbox.relay');
	}
	else
	{
		$node->wait_query('postgres', q{SELECT bool_or(outcome = 'dead') AND bool_or(last_error LIKE 'held: %' AND claimed_by IS NULL) FROM outbox.event});
		sql("SELECT outbox.declare_exchange('missing $ordering')");
		$node->wait_drained('postgres');
	}
	my $plans = $node->log_since($position);
	my @walks = grep { /OPERATOR\(pg_catalog/ && /Scan using event_pkey on event[^\n]*\n(?!\s+Index Cond)/ } split /\n(?=\d{4}-)/, $plans;
	is(scalar @walks, 0, "$ordering: no statement walks over the table") or diag(join "\n", @walks[ 0 .. 2 ]);
	cmp_ok(scalar(() = $plans =~ /OPERATOR\(pg_catalog/g), '>', 5, 'and they are seen');
}

done_testing();

sub sql
{
	my ($query) = @_;
	return $node->safe_psql('postgres', $query);
}
