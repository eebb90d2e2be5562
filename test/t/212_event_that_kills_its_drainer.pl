# An event that kills its drainer, and with it the whole server, each time it is marked as published: it is found by
# halves, dies with its attempts used up, and its neighbours are published without a charge.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $events = 300;
my $killer = 137;

my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => {
		'drainer.max_attempts'          => 2,
		'drainer.retry_backoff_initial' => '200ms',
		'drainer.retry_backoff_max'     => '200ms',
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->wait_for_state('postgres', 'idle');
$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION kill_drainer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('COPY (SELECT 1) TO PROGRAM %L', format('kill -9 %s', pg_backend_pid()));
	PERFORM pg_sleep(60);
	RETURN new;
END $$;
CREATE TRIGGER kill_drainer BEFORE UPDATE ON outbox.event FOR EACH ROW
	WHEN (new.published_at IS NOT NULL AND new.event_type = 'killer') EXECUTE FUNCTION kill_drainer();
SQL

for my $ordering (qw(per_key best_effort))
{
	subtest "among events of a relay with the ordering $ordering" => sub { find_killer($ordering) };
}

subtest 'a relay with the ordering stop_the_line is paused by its end' => sub {
	$node->safe_psql('postgres', q{SELECT outbox.alter_relay(ordering => 'stop_the_line')});
	$node->safe_psql('postgres', q{INSERT INTO outbox.event (event_type, payload) VALUES ('before', ''), ('killer', ''), ('after', '')});
	$node->wait_query('postgres', q{SELECT error_code = 'poison' FROM outbox.event WHERE event_type = 'killer' ORDER BY seq DESC LIMIT 1});
	$node->wait_query('postgres', q{SELECT pause_reason ~ 'poison' FROM outbox.relay});
	is($node->safe_psql('postgres', q{SELECT published_at IS NULL, attempts FROM outbox.event WHERE event_type = 'after'}), 't|0', 'what comes after it waits');
	$node->safe_psql('postgres', 'SELECT outbox.resume()');
	$node->wait_drained('postgres');
	pass('until the relay is resumed');
};

done_testing();

sub find_killer
{
	my ($ordering) = @_;
	my $log = $node->log_position;
	$node->safe_psql('postgres', "SELECT outbox.alter_relay(ordering => '$ordering')");
	$node->safe_psql('postgres', <<"SQL");
INSERT INTO outbox.event (event_type, key, payload)
SELECT CASE n WHEN $killer THEN 'killer' ELSE 'harmless' END, 'key ' || n % 40, convert_to('$ordering ' || n, 'UTF8')
FROM generate_series(1, $events) n
SQL
	$node->wait_query('postgres', 'SELECT NOT EXISTS (SELECT FROM outbox.event WHERE published_at IS NULL AND dead_at IS NULL)',
		'all events have come to an end');
	my $ours = "convert_from(payload, 'UTF8') LIKE '$ordering %'";
	is( $node->safe_psql('postgres', "SELECT event_type, status, error_code, attempts FROM outbox.events WHERE $ours AND status <> 'published'"),
		'killer|dead|poison|2',
		'the killer is dead, and nothing else');
	like($node->safe_psql('postgres', "SELECT last_error FROM outbox.event WHERE $ours AND event_type = 'killer'"),
		qr/^poison: /, 'and says why');
	is( $node->safe_psql('postgres', "SELECT count(*), sum(attempts) FROM outbox.event WHERE $ours AND published_at IS NOT NULL"),
		$events - 1 . '|0',
		'the others are published, and none was charged');
	my %seen;
	$seen{ $_->{body} }++ for @{ $broker->consume('q') };
	is_deeply([ sort grep { $_ ne "$ordering $killer" } keys %seen ],
		[ sort map { "$ordering $_" } grep { $_ != $killer } 1 .. $events ], 'each has arrived');
	my $crashes = () = $node->log_since($log) =~ /terminated by signal 9/g;
	note "$crashes crashes";
	# For each of its two attempts: nine halves of 300 events, and itself alone.
	cmp_ok($crashes, '<=', 2 * (9 + 1), 'it takes as many crashes as there are halves');
	is(scalar(() = $node->log_since($log) =~ /WARNING:  outbox_drainer: event \S+ \(seq \d+\) is dead/g), 1, 'its end is announced once');
	return;
}
