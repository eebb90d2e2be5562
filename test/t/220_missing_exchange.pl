# An event for an exchange that does not exist is held: uncharged, its key behind it, everything else goes on, why()
# names the exchange, and it goes on by itself when the exchange is there. With missing_exchange = fail it fails.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;
use Time::HiRes qw(time);

my $depth  = 50;
my $broker = OutboxDrainer::Cluster->new_broker;
$broker->start;
# Whatever reaches no queue of its exchange goes to this one, from the moment at which the exchange is there: one that is
# declared first and bound then would lose what comes in between.
$broker->declare(exchange => 'all', type => 'fanout', queue => 'q');
my $node = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => {
		'drainer.pipeline_depth'        => $depth,
		'drainer.retry_backoff_initial' => '200ms',
		'drainer.retry_backoff_max'     => '400ms',
		# No state may have to wait for the next look.
		'drainer.poll_interval' => '10min',
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->wait_for_state('postgres', 'idle');
appear('events');
my $waits = qr/waits for exchange "late", which does not exist; it is looked for every few seconds/;

subtest 'hold: others go on, the key waits, nothing is charged' => sub {
	insert(map { ([ "late $_", 'k', 'late' ], [ "behind $_", 'k', 'events' ], [ "other $_", "key $_", 'events' ], [ "keyless $_", undef, 'late' ]) } 1 .. 20);
	arrive([ map { "other $_" } 1 .. 20 ], 'events of other keys arrive, once');
	wait_held(21);
	why_is('late 1', qr/^$waits$/, 'why() names the exchange');
	why_is('keyless 7', qr/^$waits$/, 'of each event');
	my $head = id('late 1');
	why_is($_, qr/^behind event $head of key "k": $waits$/, "why() of $_, behind it") for 'behind 1', 'late 20';
	is(sql(q{SELECT string_agg(DISTINCT status || ' ' || attempts, ', ') FROM outbox.events WHERE last_error LIKE 'held: %'}),
		'pending 0', 'it is pending, without a charge');
	is(sql('SELECT count(*) FROM outbox.pending') . ' ' . sql('SELECT count(*) FROM outbox.failed'), '60 0', 'it is listed as pending');
	is(sql('SELECT held >= 21 AND failed = 0 AND dead = 0 FROM outbox.stat_relay'), 't', 'stat_relay counts it as held');
	is(sql(q{SELECT DISTINCT reason FROM outbox.stuck('0') WHERE last_error LIKE 'held: %'}), 'held', 'stuck() says so');
	like(sql("SELECT outbox.requeue('" . id('keyless 1') . "')"), qr/^requeued, was pending \(held: exchange "late" does not exist\)$/, 'it can be requeued');
	is(sql("SELECT outbox.discard('" . id('keyless 20') . "', 'not needed') ~ '^discarded'"), 't', 'and discarded');
	wait_held(20);
	is(sql('SELECT reconnects FROM outbox.stat_relay'), '0', 'no connection was lost over it');
};

subtest 'hold: the server and the broker restart meanwhile' => sub {
	my $since = time;
	$node->restart;
	$node->wait_for_state('postgres', 'idle');
	why_is('late 1', qr/^$waits$/, 'it is held still, or again');
	$broker->stop;
	$broker->start;
	insert([ 'after the restart', 'new key', 'events' ]);
	arrive(['after the restart'], 'others go on');
	is(sql('SELECT sum(attempts) FROM outbox.event'), '0', 'nothing is charged');
	is(sql(q{SELECT count(*) FROM outbox.events WHERE status = 'published'}), '21', 'and nothing else was published');
	# After two and a half seconds at the earliest, and on a new connection.
	my $looks = (time - $since) / 2.5 + 4;
	cmp_ok(sql('SELECT held FROM outbox.stat_relay'), '<=', 20 * $looks, 'each is looked at every few seconds only');
};

subtest 'hold: it goes on when the exchange is there' => sub {
	appear('late');
	$node->wait_drained('postgres');
	my @got = bodies();
	is_deeply([ grep { /^(late|behind)/ } @got ], [ map { ("late $_", "behind $_") } 1 .. 20 ], 'the key arrives in its order, once');
	is_deeply([ sort grep { /^keyless/ } @got ], [ sort map { "keyless $_" } 1 .. 19 ], 'and so do the others');
	is(sql('SELECT sum(attempts) FROM outbox.event'), '0', 'nothing was charged');
	why_is('late 1', qr/^published at [^;]*$/, 'and nothing is said of it any more');
};

subtest 'hold: an exchange is deleted under load, and comes again' => sub {
	$node->create_ledger('postgres');
	sql('SELECT outbox.alter_relay(publish_rate => 2000)');
	my $deletions = 2;
	for (1 .. $deletions)
	{
		my $published = sql('SELECT published FROM outbox.stat_relay');
		sql('SELECT emit_many(3000, 50)');
		$node->wait_query('postgres', "SELECT published > $published + 200 FROM outbox.stat_relay");
		$broker->delete(exchange => 'events');
		$node->wait_query('postgres', q{SELECT EXISTS (SELECT FROM outbox.event WHERE last_error LIKE 'held: exchange "events"%' AND published_at IS NULL)});
		appear('events');
		$node->wait_drained('postgres');
	}
	sql('SELECT outbox.alter_relay(reset => $${publish_rate}$$)');
	$node->ledger_ok('postgres', $broker->consume('q', count => 3000 * $deletions),
		'every event arrives, in the order of its key', duplicates => 2 * $depth * $deletions);
	is(sql('SELECT sum(attempts) FROM outbox.event'), '0', 'nothing was charged');
	sql('TRUNCATE outbox.event, ledger');
};

subtest 'fail: the event fails, and dies in the end' => sub {
	$node->configure('drainer.missing_exchange' => 'fail', 'drainer.max_attempts' => 3);
	insert([ 'lost', 'k', 'nowhere' ], [ 'behind', 'k', 'events' ], map { [ "other $_", "key $_", 'events' ] } 1 .. 20);
	$node->wait_drained('postgres');
	arrive([ 'behind', map { "other $_" } 1 .. 20 ], 'others arrive, and so does what comes behind it');
	is(sql(q{SELECT status, attempts, error_code, last_error FROM outbox.events WHERE convert_from(payload, 'UTF8') = 'lost'}),
		'dead|3|unroutable|unroutable: exchange "nowhere" does not exist', 'it is dead');
	is(sql(q{SELECT sum(attempts) FROM outbox.event WHERE convert_from(payload, 'UTF8') <> 'lost'}), '0', 'nobody else is charged');
	$node->configure('drainer.missing_exchange' => undef, 'drainer.max_attempts' => undef);
	is(sql('SELECT outbox.requeue_dead()'), '1', 'it is requeued');
	wait_held(1);
	appear('nowhere');
	arrive(['lost'], 'and is held from then on, until the exchange is there');
	$node->wait_drained('postgres');
};

subtest 'stop_the_line: the line waits for the exchange' => sub {
	sql(q{SELECT outbox.alter_relay(ordering => 'stop_the_line')});
	insert((map { [ "before $_", undef, 'events' ] } 1 .. 3), [ 'head', undef, 'line' ], (map { [ "after $_", "key $_", 'events' ] } 1 .. 3));
	arrive([ map { "before $_" } 1 .. 3 ], 'what came before it arrives', ordered => 1);
	my $head = id('head');
	$node->wait_query('postgres', "SELECT halted_on = '$head' FROM outbox.stat_relay");
	pass('stat_relay names it');
	wait_held(1);
	why_is("after $_", qr/^the line waits for event $head: waits for exchange "line", which does not exist; /, "why() of the event after it") for 1, 3;
	appear('line');
	arrive([ 'head', map { "after $_" } 1 .. 3 ], 'the line goes on', ordered => 1);
	$node->wait_drained('postgres');
	$node->wait_query('postgres', 'SELECT halted_on IS NULL FROM outbox.stat_relay');
	is(sql('SELECT sum(attempts) FROM outbox.event'), '0', 'nothing was charged, and nobody had to resume it');
	sql(q{SELECT outbox.alter_relay(ordering => 'per_key')});
};

subtest 'hold: many events do not keep the database busy' => sub {
	my $events = 20000;
	sql('TRUNCATE outbox.event');
	sql('SELECT outbox.stat_reset()');
	my $since = time;
	sql("INSERT INTO outbox.event (event_type, payload, destination) SELECT 'test', convert_to('many ' || i, 'UTF8'), 'gone' FROM generate_series(1, $events) i");
	$node->wait_query('postgres', "SELECT held >= 3 * $events FROM outbox.stat_relay");
	# A round of them takes forty batches at least, and comes no more often than every two and a half seconds.
	my $batches = 40 * ((time - $since) / 2.5 + 2);
	cmp_ok(sql('SELECT batches FROM outbox.stat_relay'), '<=', $batches, 'they are claimed many at a time, and seldom');
	is(sql("SELECT claimed - held BETWEEN 0 AND $events AND failed = 0 FROM outbox.stat_relay"), 't', 'and nothing else is done to them');
	insert([ 'other', 'k', 'events' ]);
	arrive(['other'], 'an event beside them arrives');
	appear('gone');
	$node->wait_drained('postgres');
	OutboxDrainer::Cluster::wait_until('all have arrived', sub { $broker->queue_length('q') >= $events });
	is($broker->queue_length('q'), $events, 'all go on when the exchange is there, each once');
};

done_testing();

sub sql
{
	my ($query) = @_;
	return $node->safe_psql('postgres', $query);
}

# Has the exchange, whose messages get into the one queue.
sub appear
{
	my ($exchange) = @_;
	sql(qq{SELECT outbox.declare_exchange('$exchange', arguments => '{"alternate-exchange": "all"}')});
	return;
}

# Inserts in one statement rows of body, key and exchange.
sub insert
{
	my (@rows) = @_;
	my $values = join ', ',
	  map { sprintf "(convert_to('%s', 'UTF8'), %s, '%s')", $_->[0], defined $_->[1] ? "'$_->[1]'" : 'NULL', $_->[2] } @rows;
	sql("INSERT INTO outbox.event (event_type, payload, key, destination) SELECT 'test', * FROM (VALUES $values) v");
	return;
}

sub id
{
	my ($body) = @_;
	return sql("SELECT id FROM outbox.event WHERE convert_from(payload, 'UTF8') = '$body'");
}

# Tests what why() says of an event, which may be in a drainer's hand for a moment.
sub why_is
{
	my ($body, $pattern, $name) = @_;
	my $id     = id($body);
	my $answer = '';
	my $fits = sub { $answer = sql("SELECT outbox.why('$id')"); return $answer =~ $pattern; };
	eval { OutboxDrainer::Cluster::wait_until($name, $fits); };
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like($answer, $pattern, $name);
	return;
}

# Waits until so many events are held, all of them uncharged.
sub wait_held
{
	my ($count) = @_;
	$node->wait_query('postgres', "SELECT count(*) = $count FROM outbox.event WHERE published_at IS NULL AND dead_at IS NULL AND attempts = 0 AND claimed_by IS NULL AND last_error LIKE 'held: exchange \"%\" does not exist'");
	return;
}

sub bodies
{
	my (@how) = @_;
	return map { $_->{body} } @{ $broker->consume('q', idle => 0.5, @how) };
}

# Tests that exactly these bodies arrive.
sub arrive
{
	my ($bodies, $name, %how) = @_;
	my @got      = bodies(count => scalar @$bodies);
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
