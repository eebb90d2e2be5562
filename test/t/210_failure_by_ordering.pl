# What an event that fails stops, by the relay's ordering: nothing (best_effort), its key (per_key), its source
# (per_source) or everything (stop_the_line). Nobody else is charged, and what had to wait follows in its order when
# that event has come to its end, whichever that is.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;
use Time::HiRes qw(sleep);

my $broker = OutboxDrainer::Cluster->new_broker;
$broker->start;
$broker->declare(exchange => 'events', queue => 'wide', binding => 'wide');
# The routing key of messages that are refused, a new one each time.
my $full;
my $count = 0;

my $node = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => {
		'drainer.retry_backoff_initial' => '200ms',
		'drainer.retry_backoff_max'     => '400ms',
		'drainer.max_attempts'          => 0,
		'drainer.mandatory'             => 'on',
		# No state may have to wait for the next look.
		'drainer.poll_interval' => '10min',
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->wait_for_state('postgres', 'idle');

subtest 'best_effort: a refused event is tried again, all others go on' => sub {
	alter(q{ordering => 'best_effort'});
	refuse();
	insert(
		[ 'refused',  's', 'k', $full ],
		[ 'unrouted', 's', 'k', 'nowhere' ],
		map { [ "other $_", 's', 'k', 'wide' ] } 1 .. 10);
	arrive([ map { "other $_" } 1 .. 10 ], 'later events of the same key arrive');
	wait_row('refused', q{attempts >= 3 AND last_error LIKE 'nack: %'});
	wait_row('unrouted', q{attempts >= 3 AND last_error LIKE 'unroutable: %'});
	pass('what was refused, and what goes nowhere, is tried again');
	is(sql('SELECT count(*) FROM outbox.event WHERE next_attempt_at IS NOT NULL'), '2', 'nothing else is deferred');
	is(sql(q{SELECT sum(attempts) FROM outbox.event WHERE routing_key = 'wide'}), '0', 'nothing else is charged');
	accept_all();
	$broker->declare(exchange => 'events', queue => 'wide', binding => 'nowhere');
	arrive([ 'refused', 'unrouted' ], 'they arrive when there is room and a queue for them');
	$node->wait_drained('postgres');
	like(why('refused'), qr/^published at .*failed attempts before: \d+$/, 'why() tells of the failures of a published event');
};

# How an event that failed can end, and what brings it there.
my %ending = (
	published => \&accept_all,
	dead      => sub { alter('max_attempts => 2') },
	discarded => sub { sql(q{SELECT outbox.discard('} . id('head') . q{', 'not needed')}) },
	rejected  => sub {
		# Somebody has changed it so that it cannot be sent.
		sql(q{UPDATE outbox.event SET routing_key = repeat('r', 256), next_attempt_at = now() WHERE id = '} . id('head') . q{'});
		sql('SELECT outbox.wake()');
	});

# An event fails, and one of each kind comes behind it: those that have to wait, in hand when it fails or not, and
# those that go on.
sub held_group
{
	my ($end, $group, $waits, $goes_on) = @_;
	my $by_hand = $end eq 'discarded' || $end eq 'rejected';
	alter($by_hand ? q{retry_backoff_initial => '1 hour', retry_backoff_max => '1 hour'} : q{reset => '{max_attempts}'});
	my @waiting = map { [ "waits $_", @$waits ] } 1 .. 5;
	my @others  = map { [ "goes on $_", @{ $goes_on->[$_] } ] } 0 .. $#$goes_on;
	refuse();
	insert([ 'head', 's', 'k', $full ], @waiting, @others);
	wait_row('head', 'attempts > 0');
	push @waiting, map { [ "waits $_", @$waits ] } 6 .. 8;
	insert(@waiting[ 5 .. 7 ], map { [ "later: $_->[0]", @$_[ 1 .. $#$_ ] ] } @others);
	arrive([ map { $_->[0], "later: $_->[0]" } @others ], "the others go on, and nothing of the $group");
	$node->wait_query('postgres', q{SELECT count(*) = 8 FROM outbox.event WHERE convert_from(payload, 'UTF8') LIKE 'waits %' AND next_attempt_at = 'infinity'});
	is( sql(q{SELECT count(*) FROM outbox.event WHERE convert_from(payload, 'UTF8') LIKE 'waits %'
			AND (attempts > 0 OR last_error IS NOT NULL OR claimed_by IS NOT NULL OR published_at IS NOT NULL)}),
		'0',
		'what waits is not charged, has no error and is in nobody\'s hand');
	my $head = id('head');
	like(why("waits $_"), qr/^behind event $head of $group: /, "why() of event $_ names the one ahead") for 1, 5, 8;
	$ending{$end}->();
	$node->wait_drained('postgres');
	is(sql("SELECT status FROM outbox.events WHERE id = '$head'"), $end, "the event ahead ends: $end");
	arrive([ $end eq 'published' ? 'head' : (), map { $_->[0] } @waiting ], 'what waited follows', ordered => 1);
	is(sql(q{SELECT sum(attempts) FROM outbox.event WHERE convert_from(payload, 'UTF8') <> 'head'}), '0', 'nothing of it was charged');
	is(sql('SELECT count(*) FROM outbox.event WHERE next_attempt_at IS NOT NULL'), '0', 'nothing stays deferred');
	alter(q{reset => '{max_attempts, retry_backoff_initial, retry_backoff_max}'});
	return;
}

for my $end (qw(published dead discarded rejected))
{
	subtest "per_key: an event holds its key until it is $end" => sub {
		alter(q{ordering => 'per_key'});
		held_group($end, 'key "k"', [ 's', 'k', 'wide' ], [ [ 's', 'other', 'wide' ], [ 's', undef, 'wide' ], [ 't', 'k', 'wide' ] ]);
	};
	subtest "per_source: an event holds its source until it is $end" => sub {
		alter(q{ordering => 'per_source'});
		held_group($end, 'source "s"', [ 's', 'other', 'wide' ], [ [ 't', 'k', 'wide' ], [ 'u', undef, 'wide' ] ]);
	};
	subtest "per_source: an event without a key waits for its source, too, until that is $end" => sub {
		held_group($end, 'source "s"', [ 's', undef, 'wide' ], [ [ 't', undef, 'wide' ] ]);
	};
}

subtest 'per_key: an event without a key holds nobody' => sub {
	alter(q{ordering => 'per_key'});
	refuse();
	insert([ 'head', 's', undef, $full ], map { [ "goes on $_", 's', undef, 'wide' ] } 1 .. 5);
	arrive([ map { "goes on $_" } 1 .. 5 ], 'others without a key go on');
	wait_row('head', 'attempts > 1');
	accept_all();
	arrive(['head'], 'and it arrives when there is room');
	$node->wait_drained('postgres');
};

subtest 'stop_the_line: one message is in flight' => sub {
	alter(q{ordering => 'stop_the_line'});
	$broker->freeze;
	my @rows = map { [ "n$_", "source $_", "key $_", 'wide' ] } 1 .. 100;
	insert(@rows);
	$node->wait_stat('postgres', 'in_flight > 0');
	sleep 0.5;
	is($node->stat('postgres', 'in_flight'), '1', 'whatever its source and key');
	$broker->thaw;
	arrive([ map { $_->[0] } @rows ], 'all arrive', ordered => 1);
	$node->wait_drained('postgres');
};

# Stops the line with an event that fails between others.
sub stop_line
{
	refuse();
	insert(
		(map { [ "before $_", "source $_", "key $_", 'wide' ] } 1 .. 3),
		[ 'head', 's', 'k', $full ],
		(map { [ "after $_", "source $_", "key $_", 'wide' ] } 1 .. 3));
	wait_row('head', 'attempts > 0');
	insert([ 'after 4', 'late', undef, 'wide' ]);
	return;
}

subtest 'stop_the_line: the failed event alone is tried again' => sub {
	stop_line();
	arrive([ map { "before $_" } 1 .. 3 ], 'what came before it has arrived', ordered => 1);
	wait_row('head', 'attempts > 3');
	my $head = id('head');
	# While it is tried, or waits to be.
	$node->wait_query('postgres', "SELECT halted_on = '$head' FROM outbox.stat_relay");
	pass('stat_relay names it');
	is( sql(q{SELECT count(*) FROM outbox.event WHERE convert_from(payload, 'UTF8') LIKE 'after %'
			AND attempts = 0 AND last_error IS NULL AND claimed_by IS NULL AND published_at IS NULL}),
		'4',
		'all else waits, and is not charged');
	like(why("after $_"), qr/^the line waits for event $head: /, "why() of event $_ names it") for 1, 4;
	accept_all();
	arrive([ 'head', map { "after $_" } 1 .. 4 ], 'when it is published, the line goes on', ordered => 1);
	$node->wait_drained('postgres');
	$node->wait_query('postgres', 'SELECT halted_on IS NULL FROM outbox.stat_relay');
	pass('and nothing is named any more');
};

subtest 'stop_the_line: an event that is discarded lets the line go on' => sub {
	alter(q{retry_backoff_initial => '1 hour', retry_backoff_max => '1 hour'});
	stop_line();
	$ending{discarded}->();
	arrive([ (map { "before $_" } 1 .. 3), (map { "after $_" } 1 .. 4) ], 'all others arrive', ordered => 1);
	is(sql('SELECT paused_at IS NULL FROM outbox.relay'), 't', 'an operator who has seen it need not resume the relay');
	$node->wait_drained('postgres');
	alter(q{reset => '{retry_backoff_initial, retry_backoff_max}'});
};

for my $end (qw(dead rejected))
{
	subtest "stop_the_line: an event that ends $end pauses the relay" => sub {
		alter(q{retry_backoff_initial => '1 hour', retry_backoff_max => '1 hour'}) if $end eq 'rejected';
		stop_line();
		my $head = id('head');
		$ending{$end}->();
		$node->wait_query('postgres', 'SELECT paused_at IS NOT NULL FROM outbox.relay');
		is(sql("SELECT status FROM outbox.events WHERE id = '$head'"), $end, 'the event has ended');
		$node->wait_for_state('postgres', 'paused');
		my ($by, $reason) = split /\|/, sql('SELECT paused_by, pause_reason FROM outbox.stat_relay');
		like($by, qr/outbox_drainer/, 'by the drainer');
		like($reason, $end eq 'dead' ? qr/event $head .*nack/ : qr/event $head .*rejected: routing_key/, 'the reason names the event and its error');
		is(sql(q{SELECT status FROM outbox.events WHERE convert_from(payload, 'UTF8') = 'after 1'}), 'pending', 'what comes after it waits');
		like(why('after 1'), qr/^the relay is paused since [^;]* by \Q$by\E: \Q$reason\E$/, 'why() says so');
		insert([ 'after 5', 's', undef, 'wide' ]);
		arrive([ map { "before $_" } 1 .. 3 ], 'nothing after it has arrived', ordered => 1);
		is(sql('SELECT outbox.resume()'), 't', 'an operator resumes the relay');
		arrive([ map { "after $_" } 1 .. 5 ], 'the line goes on', ordered => 1);
		$node->wait_drained('postgres');
		alter(q{reset => '{max_attempts, retry_backoff_initial, retry_backoff_max}'});
	};
}

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

# Forgets what has ended, and inserts in one statement rows of body, source, key and routing key.
sub insert
{
	my (@rows) = @_;
	my $values = join ', ',
	  map { sprintf "(convert_to('%s', 'UTF8'), '%s', %s, '%s')", $_->[0], $_->[1], defined $_->[2] ? "'$_->[2]'" : 'NULL', $_->[3] } @rows;
	sql("DELETE FROM outbox.event WHERE (published_at IS NOT NULL OR dead_at IS NOT NULL) AND NOT EXISTS (SELECT FROM outbox.event WHERE published_at IS NULL AND dead_at IS NULL)");
	sql("INSERT INTO outbox.event (event_type, payload, source, key, routing_key) SELECT 'test', * FROM (VALUES $values) v");
	return;
}

sub id
{
	my ($body) = @_;
	return sql("SELECT id FROM outbox.event WHERE convert_from(payload, 'UTF8') = '$body'");
}

sub why
{
	my ($body) = @_;
	return sql("SELECT outbox.why('" . id($body) . "')");
}

sub wait_row
{
	my ($body, $condition) = @_;
	$node->wait_query('postgres', "SELECT coalesce(bool_and($condition), false) FROM outbox.event WHERE convert_from(payload, 'UTF8') = '$body'");
	return;
}

# From now on there is a queue that refuses every message, and then one less, whose messages the wide queue gets.
sub refuse
{
	$full = 'full ' . ++$count;
	$broker->declare(
		exchange  => 'events',
		queue     => $full,
		binding   => $full,
		arguments => { 'x-max-length' => 0, 'x-overflow' => 'reject-publish' });
	return;
}

sub accept_all
{
	# With nothing on its way: a message could get into one queue and be refused by the other, and a queue that is
	# deleted takes messages with it that the broker confirms.
	sql('SELECT outbox.pause()');
	$node->wait_query('postgres', 'SELECT NOT EXISTS (SELECT FROM outbox.event WHERE claimed_by IS NOT NULL)');
	$node->wait_for_state('postgres', 'paused');
	$broker->delete(queue => $full);
	$broker->declare(exchange => 'events', queue => 'wide', binding => $full);
	sql('SELECT outbox.resume()');
	return;
}

# Tests that exactly these bodies arrive in the wide queue.
sub arrive
{
	my ($bodies, $name, %how) = @_;
	my @got      = map { $_->{body} } @{ $broker->consume('wide', count => scalar @$bodies, idle => 0.5) };
	my @expected = @$bodies;
	if (!$how{ordered})
	{
		@got      = sort @got;
		@expected = sort @expected;
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_deeply(\@got, \@expected, $name);
	return;
}
