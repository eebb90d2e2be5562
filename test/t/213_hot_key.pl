# A key with many events is no burden to the others: neither while it is drained, nor while it waits in the deferred
# lane behind an event that fails.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $hot  = 10_000;
my $cold = 100;
my $deep = $ENV{OUTBOX_TEST_LONG} ? 1_000_000 : 100_000;

my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => {
		'drainer.batch_size' => 1000,
		# Its reads and writes are to be the drainer's alone.
		autovacuum => 'off',
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->wait_for_state('postgres', 'idle');

# What is drained hot and cold in one go. The order of marks does not show in the table, so a trigger notes, at the mark
# of the last cold event, how many hot ones are marked.
$node->safe_psql('postgres', <<"SQL");
CREATE TABLE noted (hot bigint);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS \$\$
BEGIN
	IF (SELECT count(*) = $cold FROM outbox.event WHERE key LIKE 'cold %' AND published_at IS NOT NULL) THEN
		INSERT INTO public.noted SELECT count(*) FROM outbox.event
		WHERE key = 'hot' AND published_at IS NOT NULL HAVING NOT EXISTS (TABLE public.noted);
	END IF;
	RETURN NULL;
END \$\$;
CREATE TRIGGER note AFTER UPDATE ON outbox.event FOR EACH ROW
	WHEN (new.published_at IS NOT NULL AND new.key LIKE 'cold %') EXECUTE FUNCTION note();
BEGIN;
INSERT INTO outbox.event (event_type, key, payload)
	SELECT 'hot', 'hot', convert_to(n::text, 'UTF8') FROM generate_series(1, $hot) n;
INSERT INTO outbox.event (event_type, key, payload)
	SELECT 'cold', 'cold ' || n, convert_to(n::text, 'UTF8') FROM generate_series(1, $cold) n;
COMMIT;
SQL
$node->wait_query('postgres', 'SELECT EXISTS (TABLE noted)', 'the cold keys are published');
my $before = $node->safe_psql('postgres', 'TABLE noted');
note "$before of $hot events of the hot key were published before the last cold one";
cmp_ok($before, '<', 1000, 'cold keys do not wait for more than a batch of the hot one');
$node->wait_drained('postgres');
my @messages = @{ $broker->consume('q', count => $hot + $cold) };
is_deeply([ bodies('hot', @messages) ], [ 1 .. $hot ], 'the hot key arrives in its order, each event once');
is_deeply([ sort { $a <=> $b } bodies('cold', @messages) ], [ 1 .. $cold ], 'and all the cold ones');
$node->safe_psql('postgres', 'DROP TRIGGER note ON outbox.event');

# What a thousand events of other keys cost while nothing is deferred, and while many wait behind one.
my $plain = cost_of_a_thousand('plain');
$broker->declare(
	exchange  => 'full',
	queue     => 'full',
	arguments => { 'x-max-length' => 0, 'x-overflow' => 'reject-publish' });
$node->safe_psql('postgres', q{SELECT outbox.alter_relay(retry_backoff_initial => '1 hour', retry_backoff_max => '1 hour')});
$node->safe_psql('postgres', q{INSERT INTO outbox.event (event_type, destination, key, payload) VALUES ('head', 'full', 'deep', '0')});
$node->wait_query('postgres', q{SELECT last_error LIKE 'nack%' FROM outbox.event WHERE event_type = 'head'});
$node->safe_psql('postgres', <<"SQL");
INSERT INTO outbox.event (seq, event_type, key, payload, next_attempt_at)
SELECT nextval('outbox.event_seq'), 'deep', 'deep', convert_to(n::text, 'UTF8'), 'infinity' FROM generate_series(1, $deep) n;
VACUUM ANALYZE outbox.event;
SQL
my $beside = cost_of_a_thousand('beside');
note "a thousand events cost $plain->{tuples} tuples in $plain->{pages} pages with nothing deferred, ",
	"$beside->{tuples} in $beside->{pages} beside $deep deferred";
cmp_ok($beside->{tuples}, '<', 2 * $plain->{tuples} + 2000, 'other keys do not read what is deferred');
cmp_ok($beside->{pages},  '<', 2 * $plain->{pages} + 2000,  'nor walk over it');
is( $node->safe_psql('postgres', q{SELECT count(*) FROM outbox.event WHERE event_type = 'deep' AND next_attempt_at = 'infinity' AND claimed_by IS NULL}),
	$deep, 'which all waits');
my $waiting = $node->safe_psql('postgres', q{SELECT id FROM outbox.event WHERE event_type = 'deep' ORDER BY seq DESC LIMIT 1});
my $head    = $node->safe_psql('postgres', q{SELECT id FROM outbox.event WHERE event_type = 'head'});
like($node->safe_psql('postgres', "SELECT outbox.why('$waiting')"), qr/^behind event $head of key "deep"/, 'why() names the event ahead');

# The next ones of the key are found by the index, and follow.
my $some      = 5000;
my $published = $node->stat('postgres', 'published');
$node->safe_psql('postgres', "SELECT outbox.discard('$head', 'not needed')");
$node->wait_stat('postgres', "published >= $published + $some");
$node->safe_psql('postgres', 'SELECT outbox.pause()');
$node->wait_stat('postgres', "state = 'paused' AND in_flight = 0");
my @first = bodies('deep', @{ $broker->consume('q', count => $some) });
is_deeply([ @first[ 0 .. $some - 1 ] ], [ 1 .. $some ], 'when the event ahead has ended they follow in their order');
$node->safe_psql('postgres', 'SELECT outbox.resume()');
$node->safe_psql('postgres', q{INSERT INTO outbox.event (event_type, key, payload) VALUES ('meanwhile', 'other', 'x')});
$node->wait_query('postgres', q{SELECT published_at IS NOT NULL FROM outbox.event WHERE event_type = 'meanwhile'});
pass('and others go on meanwhile');

done_testing();

# The bodies of the events of a type, as they came.
sub bodies
{
	my ($type, @from) = @_;
	return map { $_->{body} } grep { $_->{properties}{type} eq $type } @from;
}

# What is read to publish a thousand events of many keys, some before and some behind the others in an index: the least of
# three times, as the drainer also looks through the table once, and once a minute. That it has reported all is seen
# from its claims and marks: two updates for each event, reported together with what it has read until then.
sub cost_of_a_thousand
{
	my ($type) = @_;
	my %least;
	for my $turn (1 .. 3)
	{
		my $start = counts();
		$node->safe_psql('postgres', <<"SQL");
INSERT INTO outbox.event (event_type, key, payload)
SELECT '$type', CASE n % 2 WHEN 0 THEN 'a ' ELSE 'z ' END || n % 500, convert_to(n::text, 'UTF8') FROM generate_series(1, 1000) n
SQL
		$node->wait_query('postgres', "SELECT n_tup_upd >= $start->{updates} + 2000 FROM pg_stat_user_tables WHERE relid = 'outbox.event'::regclass");
		my $end = counts();
		for my $what (qw(tuples pages))
		{
			my $cost = $end->{$what} - $start->{$what};
			$least{$what} = $cost if $cost < ($least{$what} // $cost + 1);
		}
	}
	return \%least;
}

# What all sessions have read of the table and its indexes.
sub counts
{
	my ($tuples, $pages, $updates) = split /\|/, $node->safe_psql('postgres', <<'SQL');
SELECT
	t.seq_tup_read + t.idx_tup_fetch + (SELECT sum(i.idx_tup_read) FROM pg_stat_user_indexes i WHERE i.relid = t.relid),
	io.heap_blks_read + io.heap_blks_hit + io.idx_blks_read + io.idx_blks_hit,
	t.n_tup_upd
FROM pg_stat_user_tables t JOIN pg_statio_user_tables io USING (relid)
WHERE t.relid = 'outbox.event'::regclass
SQL
	return { tuples => $tuples, pages => $pages, updates => $updates };
}
