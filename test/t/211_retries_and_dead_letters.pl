# What happens to an event that fails: when it is tried again, when it is given up, who is told, and what an operator can
# do about it. All that alter_relay changes takes effect at once: the drainer would look again in ten minutes only.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;
use Time::HiRes qw(sleep);

# Exchange "events" brings the routing key "wide" to a queue, and "full" to one that refuses all of it.
my $broker = OutboxDrainer::Cluster->new_broker;
$broker->start;
$broker->declare(exchange => 'events', queue => 'wide', binding => 'wide');
$broker->declare(
	exchange  => 'events',
	queue     => 'full',
	binding   => 'full',
	arguments => { 'x-max-length' => 0, 'x-overflow' => 'reject-publish' });

my $node = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => { log_line_prefix => '%m [%p] %e ', 'drainer.poll_interval' => '10min' });
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
# The owner of the table is nobody special.
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE app;
SELECT format('ALTER TABLE %s OWNER TO app', oid::regclass) FROM pg_class
WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' \gexec
ALTER SEQUENCE outbox.event_seq OWNER TO app;
CREATE TABLE failure (seq bigint, attempts int, began timestamptz, noted timestamptz, next_attempt_at timestamptz);
GRANT INSERT ON failure TO app;
CREATE FUNCTION note_failure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.failure VALUES (new.seq, new.attempts, now(), clock_timestamp(), new.next_attempt_at);
	RETURN new;
END $$;
CREATE TRIGGER note_failure BEFORE UPDATE ON outbox.event FOR EACH ROW
	WHEN (new.attempts > old.attempts AND new.dead_at IS NULL) EXECUTE FUNCTION note_failure();
SQL
$node->wait_for_state('postgres', 'idle');

my $fast = q{retry_backoff_initial => '20 ms', retry_backoff_multiplier => 1, retry_backoff_max => '20 ms'};

subtest 'each delay is between half and all of what the settings say' => sub {
	my @delays = (100, 300, 500, 500, 500);
	alter(q{retry_backoff_initial => '100 ms', retry_backoff_multiplier => 3, retry_backoff_max => '500 ms', max_attempts => 6});
	my $log = $node->log_position;
	insert(map { [ "backoff $_", undef, 'full' ] } 1 .. 10);
	all_end();
	delays_ok('growing up to the longest', @delays);
	is( sql(q{SELECT DISTINCT status, error_code, attempts, last_error LIKE 'nack: %', next_attempt_at IS NULL, claimed_by IS NULL FROM outbox.events}),
		'dead|nack|6|t|t|t',
		'after max_attempts failures the events are dead');
	my $text = $node->log_since($log);
	is_deeply(
		[ map { my $id = $_; scalar(() = $text =~ /\] 38000 WARNING:  outbox_drainer: event $id .* is dead, its attempts are used up$/mg) } ids() ],
		[ (1) x 10 ],
		'the log tells of each once, with an SQLSTATE');
	is(stat_relay('failed, dead, retried'), '60|10|50', 'all of it is counted');
	alter(q{retry_backoff_initial => '80 ms', retry_backoff_multiplier => 1, max_attempts => 4});
	insert(map { [ "constant $_", undef, 'full' ] } 1 .. 10);
	all_end();
	delays_ok('constant where the multiplier is 1', (80) x 3);
};

subtest 'an event that can never be sent is rejected at once' => sub {
	fresh_drainer();
	my %broken = (
		routing_key_too_long => q{routing_key = repeat('r', 256)},
		missing_event_type   => 'routing_key = NULL, event_type = NULL',
		invalid_priority     => 'priority = 300',
		invalid_expiration   => q{expiration = interval '11 years'},
		exchange_too_long    => q{destination = repeat('x', 256)});
	my @codes = sort keys %broken;
	sql('SELECT outbox.pause()');
	insert(map { [ $_, 'k', 'wide' ] } 'before', @codes, 'after');
	sql("UPDATE outbox.event SET $broken{$_} WHERE convert_from(payload, 'UTF8') = '$_'") for @codes;
	my $log = $node->log_position;
	sql('SELECT outbox.resume()');
	all_end();
	arrive([ 'before', 'after' ], 'nothing of it is sent, and its neighbours are');
	is( sql(q{SELECT string_agg(convert_from(payload, 'UTF8') || ' ' || error_code, ', ' ORDER BY error_code) FROM outbox.events WHERE status = 'rejected'}),
		join(', ', map { "$_ $_" } @codes),
		'each has its code');
	is(sql(q{SELECT bool_and(attempts = 0 AND last_error LIKE 'rejected: ' || error_code || ': %') FROM outbox.events WHERE status = 'rejected'}),
		't', 'and the detail, and no attempt was charged');
	is(scalar(() = $node->log_since($log) =~ /\] 22000 WARNING:  outbox_drainer: event .* is rejected$/mg), scalar @codes, 'the log tells of each once');
	alter($fast);
};

subtest 'many dead events do not flood the log' => sub {
	fresh_drainer();
	alter('max_attempts => 1');
	my $log    = $node->log_position;
	my $said   = sub { scalar(() = $node->log_since($log) =~ /WARNING:  outbox_drainer: event .* is dead/g) };
	my $summed = sub { my $sum = 0; $sum += $_ for $node->log_since($log) =~ /WARNING:  outbox_drainer: (\d+) more events have ended/g; return $sum };
	my $count  = 50;
	insert(map { [ "flood $_", undef, 'full' ] } 1 .. $count);
	all_end();
	my $at_first = $said->();
	cmp_ok($at_first, '>',  0,  'it tells of some');
	cmp_ok($at_first, '<=', 10, 'and no more than ten');
	OutboxDrainer::Cluster::wait_until(
		'the log has told of the others',
		sub {
			insert([ 'flood ' . ++$count, undef, 'full' ]);
			all_end();
			return $summed->() > 0 || sleep(0.5) && 0;
		});
	is($said->() + $summed->(), $count, 'the others are told in sum, none is forgotten');
	alter(q{reset => '{max_attempts}'});
};

subtest 'on_dead is called for each, as the owner of the table' => sub {
	fresh_drainer();
	sql(<<'SQL');
CREATE TABLE dead_letter (body text, code text, by text);
GRANT INSERT ON dead_letter TO app;
CREATE FUNCTION on_dead(event outbox.event) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.dead_letter VALUES (convert_from(event.payload, 'UTF8'), event.error_code, current_user);
	IF event.payload = 'wicked' THEN
		RAISE EXCEPTION 'not this one' USING ERRCODE = 'P0815';
	END IF;
END $$;
ALTER FUNCTION on_dead(outbox.event) OWNER TO app;
SQL
	alter(q{on_dead => 'on_dead(outbox.event)', max_attempts => 2});
	my $log = $node->log_position;
	sql('SELECT outbox.pause()');
	insert([ 'first', undef, 'full' ], [ 'wicked', undef, 'full' ], [ 'rejected', undef, 'full' ], [ 'fine', undef, 'wide' ], [ 'last', undef, 'full' ]);
	sql(q{UPDATE outbox.event SET priority = 300 WHERE payload = 'rejected'});
	sql('SELECT outbox.resume()');
	all_end();
	arrive(['fine'], 'what is published is none of it');
	is(sql('SELECT body, code, by FROM dead_letter ORDER BY body'),
		"first|nack|app\nlast|nack|app\nrejected|invalid_priority|app",
		'once for each dead or rejected event; what it did before an error is undone');
	is(sql(q{SELECT status, attempts FROM outbox.events WHERE payload = 'wicked'}), 'dead|2', 'the event is dead all the same');
	is(scalar(() = $node->log_since($log) =~ /\] P0815 WARNING:  function public\.on_dead\(outbox\.event\) failed for event .*: not this one$/mg),
		1, 'and the error is in the log');
	alter(q{on_dead => '-', reset => '{max_attempts}'});
};

subtest 'a dead event that is requeued goes next in its key' => sub {
	alter('max_attempts => 2');
	insert([ 'dead', 'k', 'full' ], map { [ "later $_", 'k', 'wide' ] } 1 .. 2);
	all_end();
	arrive([ 'later 1', 'later 2' ], 'later ones have gone before');
	sql('SELECT outbox.pause()');
	insert_more(map { [ "later $_", 'k', 'wide' ] } 3 .. 5);
	sql(q{UPDATE outbox.event SET routing_key = 'wide' WHERE payload = 'dead'});
	my ($out, $notice) = requeue('dead');
	is($out, 'requeued, was dead after 2 attempts (nack: the broker refused the message)', 'it says what it was');
	like($notice, qr/NOTICE:  event \S+ will be published after later ones/, 'and that others went before');
	is( sql(q{SELECT status, attempts, last_error IS NULL, error_code IS NULL, outcome IS NULL, dead_at IS NULL FROM outbox.events WHERE payload = 'dead'}),
		'pending|0|t|t|t|t',
		'it begins anew');
	sql('SELECT outbox.resume()');
	arrive([ 'dead', 'later 3', 'later 4', 'later 5' ], 'it goes before those that were not published');
	all_end();

	insert([ 'dead again', 'k2', 'full' ]);
	all_end();
	sql(q{UPDATE outbox.event SET routing_key = 'wide' WHERE payload = 'dead again'});
	($out, $notice) = requeue('dead again');
	is($notice, '', 'nothing is said where nothing went before');
	arrive(['dead again'], 'and it arrives');
	all_end();
};

subtest 'requeue_dead takes those that are meant' => sub {
	insert(map { [ "nacked $_", undef, 'full' ] } 1 .. 3);
	all_end();
	my $since = sql('SELECT clock_timestamp()');
	sql('SELECT outbox.pause()');
	insert_more([ 'nacked 4', undef, 'full' ], [ 'broken', undef, 'wide' ], [ 'unwanted', undef, 'wide' ]);
	sql(q{UPDATE outbox.event SET priority = 300 WHERE payload = 'broken'});
	sql(q{SELECT outbox.discard(id, 'nobody wants it') FROM outbox.event WHERE payload = 'unwanted'});
	sql('SELECT outbox.resume()');
	all_end();
	sql('SELECT outbox.pause()');
	my $pending = sub { sql(q{SELECT coalesce(string_agg(convert_from(payload, 'UTF8'), ', ' ORDER BY seq), '') FROM outbox.events WHERE status = 'pending'}) };
	is(sql(q{SELECT outbox.requeue_dead(error => 'unroutable%')}), '0', 'none with an error that nobody had');
	is(sql(q{SELECT outbox.requeue_dead(error => 'nack%', max_events => 2)}), '2', 'two of those with an error');
	is($pending->(), 'nacked 1, nacked 2', 'the earliest');
	is(sql("SELECT outbox.requeue_dead(error => 'nack', since => '$since')"), '1', 'those since a time, by their code');
	is($pending->(), 'nacked 1, nacked 2, nacked 4', 'not the one before');
	is(sql('SELECT outbox.requeue_dead()'), '2', 'all, the rejected one included');
	is($pending->(), 'nacked 1, nacked 2, nacked 3, nacked 4, broken', 'and not what was discarded');
	sql(q{UPDATE outbox.event SET routing_key = 'wide', priority = NULL WHERE payload <> 'unwanted'});
	sql('SELECT outbox.resume()');
	arrive([ (map { "nacked $_" } 1 .. 4), 'broken' ], 'they arrive', any_order => 1);
	all_end();
};

subtest 'a scheduled event does not hold its key' => sub {
	sql(q{INSERT INTO outbox.event (event_type, key, routing_key, payload, available_at) VALUES ('test', 'k', 'wide', 'scheduled', now() + interval '3 s')});
	sql(q{INSERT INTO outbox.event (event_type, key, routing_key, payload) VALUES ('test', 'k', 'wide', 'unscheduled')});
	like(why('scheduled'), qr/^waits for its time, /, 'why() says what it waits for');
	arrive(['unscheduled'], 'a later one goes before it', count => 1);
	is(sql(q{SELECT status, published_at IS NULL FROM outbox.events WHERE payload = 'scheduled'}), 'pending|t', 'it waits');
	arrive(['scheduled'], 'and goes when it is due');
	all_end();
	is(sql(q{SELECT published_at >= available_at FROM outbox.event WHERE payload = 'scheduled'}), 't', 'not before');
};

subtest 'what nobody gets is charged where the relay is mandatory' => sub {
	alter(q{mandatory => true, max_attempts => 3});
	insert(map { ([ "twin $_", undef, 'wide' ], [ "twin $_", undef, 'nowhere' ]) } 1 .. 20);
	all_end();
	arrive([ map { "twin $_" } 1 .. 20 ], 'of two events alike the one that has a queue arrives', any_order => 1);
	is(sql('SELECT routing_key, status, attempts, error_code, count(*) FROM outbox.events GROUP BY 1, 2, 3, 4 ORDER BY 1'),
		"nowhere|dead|3|unroutable|20\nwide|published|0||20",
		'only the other one is charged');
	like(sql(q{SELECT DISTINCT last_error FROM outbox.event WHERE routing_key = 'nowhere'}), qr/^unroutable: .*NO_ROUTE/, 'with the answer of the broker');
	alter('mandatory => false');
	insert([ 'no matter', undef, 'nowhere' ]);
	all_end();
	is(sql('SELECT status FROM outbox.events'), 'published', 'where it is not, it is published');
};

subtest 'a change of the relay takes effect at once' => sub {
	alter(q{retry_backoff_initial => '1 hour', retry_backoff_max => '1 hour', max_attempts => 0});
	insert([ 'failing', undef, 'full' ]);
	$node->wait_query('postgres', 'SELECT attempts = 1 FROM outbox.event');
	alter("max_attempts => 3, $fast");
	sql('UPDATE outbox.event SET next_attempt_at = now()');
	sql('SELECT outbox.wake()');
	all_end();
	is(sql('SELECT status, attempts FROM outbox.events'), 'dead|3', 'max_attempts and the delays');

	$broker->declare(exchange => 'second', queue => 'second', binding => 'wide');
	alter(q{exchange => 'second'});
	insert([ 'elsewhere', undef, 'wide' ]);
	is_deeply([ map { $_->{body} } @{ $broker->consume('second', count => 1) } ], ['elsewhere'], 'the exchange');
	all_end();
	alter(q{reset => '{exchange}'});

	alter('batch_size => 10');
	sql('SELECT outbox.stat_reset()');
	insert(map { [ "batch $_", undef, 'wide' ] } 1 .. 100);
	arrive([ map { "batch $_" } 1 .. 100 ], 'all events arrive', any_order => 1);
	all_end();
	is(sql('SELECT sum(batches) >= 10, sum(batches) FILTER (WHERE up_to > 10 OR up_to IS NULL) FROM outbox.stat_batch_sizes'), 't|0', 'the size of batches');
	alter(q{reset => '{batch_size}'});

	alter(q{max_attempts => 0, retry_backoff_initial => '1 hour', retry_backoff_max => '1 hour'});
	insert([ 'head', 'k', 'full' ], [ 'behind', 'k', 'wide' ]);
	$node->wait_query('postgres', q{SELECT next_attempt_at = 'infinity' FROM outbox.event WHERE payload = 'behind'});
	alter(q{ordering => 'best_effort'});
	arrive(['behind'], 'the ordering, for those that wait already');
	sql(q{SELECT outbox.discard(id, 'done') FROM outbox.event WHERE payload = 'head'});
	alter(q{reset => '{ordering, max_attempts, retry_backoff_initial, retry_backoff_max}'});
};

subtest 'publish_rate' => sub {
	my $rate = 50;
	alter("publish_rate => $rate");
	insert(map { [ "paced $_", undef, 'wide' ] } 1 .. 4 * $rate);
	all_end();
	# How many were published within a second from each.
	my $most = sql(<<'SQL');
SELECT max(n) FROM (
	SELECT count(*) OVER (ORDER BY published_at RANGE BETWEEN CURRENT ROW AND '1 s' FOLLOWING) AS n FROM outbox.event) w
SQL
	note "at most $most in a second";
	cmp_ok($most, '<=', 2 * $rate, 'no more in a second than the rate, roughly');
	cmp_ok($most, '>=', $rate / 2, 'nor many less');
	arrive([ map { "paced $_" } 1 .. 4 * $rate ], 'all arrive', any_order => 1);
	alter(q{reset => '{publish_rate}'});
};

subtest 'a paused relay publishes nothing' => sub {
	is(sql(q{SELECT outbox.pause(reason => 'repair')}), 't', 'paused');
	$node->wait_for_state('postgres', 'paused');
	insert(map { [ "paused $_", undef, 'wide' ] } 1 .. 10);
	like(why('paused 1'), qr/the relay is paused since .* by \S+: repair$/, 'why() says so');
	arrive([], 'nothing arrives');
	is(sql('SELECT count(*) FROM outbox.event WHERE claimed_by IS NULL AND attempts = 0 AND published_at IS NULL'), '10', 'nothing is in hand');
	is(sql('SELECT outbox.resume()'), 't', 'resumed');
	arrive([ map { "paused $_" } 1 .. 10 ], 'all arrives');
	all_end();
};

done_testing();

sub sql
{
	my ($query) = @_;
	return $node->safe_psql('postgres', $query);
}

sub alter
{
	my ($settings) = @_;
	sql("SELECT outbox.alter_relay($settings)");
	return;
}

# Inserts in one statement rows of body, key and routing key; all that was there has ended, and goes.
sub insert
{
	my (@rows) = @_;
	sql('TRUNCATE failure; DELETE FROM outbox.event WHERE published_at IS NOT NULL OR dead_at IS NOT NULL');
	insert_more(@rows);
	return;
}

sub insert_more
{
	my (@rows) = @_;
	my $values = join ', ',
	  map { sprintf "(convert_to('%s', 'UTF8'), %s, '%s')", $_->[0], defined $_->[1] ? "'$_->[1]'" : 'NULL::text', $_->[2] } @rows;
	sql("INSERT INTO outbox.event (event_type, payload, key, routing_key) SELECT 'test', * FROM (VALUES $values) v");
	return;
}

sub all_end
{
	$node->wait_query('postgres', 'SELECT NOT EXISTS (SELECT FROM outbox.event WHERE published_at IS NULL AND dead_at IS NULL)',
		'all events have come to an end');
	return;
}

sub ids { return split /\n/, sql('SELECT id FROM outbox.event ORDER BY seq'); }

sub stat_relay
{
	my ($columns) = @_;
	return sql("SELECT $columns FROM outbox.stat_relay");
}

# A drainer that has announced nothing yet.
sub fresh_drainer
{
	my $pid = $node->drainer_pid('postgres');
	sql("SELECT pg_terminate_backend($pid)");
	$node->wait_stat('postgres', "pid <> $pid AND state = 'idle'");
	return;
}

# The failure lies between the beginning of the transaction that recorded it and the trigger that noted it.
sub delays_ok
{
	my ($name, @delays) = @_;
	my $expected = join ', ', map { "($_, $delays[$_ - 1])" } 1 .. @delays;
	is( sql(<<"SQL"), scalar(@delays) . '|0|t', $name);
SELECT count(DISTINCT e.attempts),
	count(*) FILTER (WHERE f.next_attempt_at - f.began < e.ms / 2 * interval '1 ms' OR f.next_attempt_at - f.noted > e.ms * interval '1 ms'),
	count(DISTINCT f.next_attempt_at - f.began) > count(DISTINCT e.attempts)
FROM failure f LEFT JOIN (VALUES $expected) e (attempts, ms) USING (attempts)
SQL
	return;
}

sub requeue
{
	my ($body) = @_;
	my ($out, $err) = ('', '');
	$node->psql('postgres', "SELECT outbox.requeue(id) FROM outbox.event WHERE payload = '$body'", stdout => \$out, stderr => \$err);
	return ($out, $err);
}

sub why
{
	my ($body) = @_;
	return sql("SELECT outbox.why(id) FROM outbox.event WHERE payload = '$body'");
}

# Tests that exactly these bodies arrive in the wide queue.
sub arrive
{
	my ($bodies, $name, %how) = @_;
	my $idle = exists $how{count} ? 0 : 0.5;
	my @got = map { $_->{body} } @{ $broker->consume('wide', count => scalar @$bodies, idle => $idle) };
	my @expected = @$bodies;
	if ($how{any_order})
	{
		@got      = sort @got;
		@expected = sort @expected;
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_deeply(\@got, \@expected, $name);
	return;
}
