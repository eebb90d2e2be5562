# Order through everything that can happen on the way: several drainers and a changing number of them, refused
# messages in the middle of a key, a broker and a drainer killed, a transaction that stays open, a row that an
# operator has locked, an event that dies. What happened before what is known from the ledger: a producer counts
# the events of a key under the lock of its aggregate, and the body says the key and the count.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;
use Time::HiRes qw(sleep time);

my $events  = $ENV{OUTBOX_TEST_LONG} ? 100_000 : 10_000;
my $held    = $ENV{OUTBOX_TEST_LONG} ? 30      : 5;
my $keys    = 20;
my $clients = 16;
my $workers = 4;
my $depth   = 20;

my $broker = OutboxDrainer::Cluster->new_broker;
$broker->start;
# An event lies in one queue only, so that what is refused has not arrived in another one.
$broker->declare(exchange => 'events', queue => $_, binding => $_) for qw(wide narrow);
$broker->declare(
	exchange  => 'events',
	queue     => 'full',
	binding   => 'full',
	arguments => { 'x-max-length' => 1, 'x-overflow' => 'reject-publish' });

my $node = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => {
		'drainer.workers_per_database'     => $workers,
		'drainer.batch_size'               => 100,
		'drainer.pipeline_depth'           => $depth,
		'drainer.retry_backoff_initial'    => '100ms',
		'drainer.retry_backoff_multiplier' => 1,
		'drainer.max_attempts'             => 0,
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->safe_psql('postgres', <<"SQL");
CREATE TABLE aggregate (key text PRIMARY KEY, version int NOT NULL) WITH (fillfactor = 10);
INSERT INTO aggregate SELECT 'key ' || n, 0 FROM generate_series(1, $keys) n;
CREATE TABLE loose (n bigint GENERATED ALWAYS AS IDENTITY);
CREATE FUNCTION produce(k text, way text) RETURNS void LANGUAGE plpgsql AS \$\$
DECLARE
	v int;
BEGIN
	UPDATE aggregate SET version = version + 1 WHERE key = k RETURNING version INTO v;
	INSERT INTO outbox.event (event_type, routing_key, key, payload)
		VALUES ('counted', way, k, convert_to(k || '|' || v, 'UTF8'));
END \$\$;
-- Locks no aggregate, so nothing is promised but that it arrives.
CREATE FUNCTION produce_loose(k text) RETURNS void LANGUAGE sql AS \$\$
	WITH new AS (INSERT INTO loose DEFAULT VALUES RETURNING n)
	INSERT INTO outbox.event (event_type, routing_key, key, payload)
	SELECT 'loose', 'wide', k, convert_to('loose|' || n, 'UTF8') FROM new;
\$\$;
SQL

# The last key belongs to the transaction that stays open and those that wait for it; the narrow queue to the
# first five.
my $others   = $keys - 1;
my $producer = <<"SQL";
\\set n random(1, $others)
\\set kind random(1, 10)
\\set pause random(0, 5000)
BEGIN;
\\if :kind <= 2
SELECT produce_loose('key ' || :n);
\\elif :kind <= 9
SELECT produce('key ' || :n, CASE WHEN :n <= 5 THEN 'narrow' ELSE 'wide' END);
\\else
SAVEPOINT s;
SELECT produce('key ' || :n, CASE WHEN :n <= 5 THEN 'narrow' ELSE 'wide' END);
ROLLBACK TO s;
SELECT produce('key ' || :n, CASE WHEN :n <= 5 THEN 'narrow' ELSE 'wide' END);
\\endif
\\sleep :pause us
COMMIT;
SQL
my $transactions = int($events / $clients / 2);

# One half of the events, with refusals, a broker that is killed and an operator on the way.
my $began = time;
my $slow  = $node->background_psql('postgres', on_error_stop => 1);
$slow->query_safe("BEGIN; SELECT produce('key $keys', 'wide'), produce('key $keys', 'wide')");
my $waiting = $node->start_pgbench('postgres', "SELECT produce('key $keys', 'wide');\n", 3, 5);
narrow_queue(1);
my $producing = $node->start_pgbench('postgres', $producer, $clients, $transactions);
$node->wait_query('postgres', 'SELECT count(*) > 3 FROM outbox.event WHERE attempts > 0');
pass('messages are refused in the middle of a key');
$broker->kill9;
$broker->start;
my $operator = $node->background_psql('postgres', on_error_stop => 1);
my $locked = $operator->query_safe(<<'SQL');
BEGIN;
SELECT seq FROM outbox.event WHERE published_at IS NULL ORDER BY seq DESC LIMIT 1 FOR UPDATE SKIP LOCKED
SQL
note "an operator has locked event $locked";
$node->configure('drainer.workers_per_database' => 2);
$node->wait_query('postgres', 'SELECT count(*) FILTER (WHERE pid > 0) = 2 FROM outbox.stat_drainer');
narrow_queue(0);
sleep 2;
$operator->query_safe('COMMIT');
$operator->quit;
$node->finish_pgbench($producing);
sleep 0.1 while time < $began + $held;
$slow->query_safe("SELECT produce('key $keys', 'wide'); COMMIT");
$slow->quit;
$node->finish_pgbench($waiting);
$node->configure('drainer.workers_per_database' => $workers);
$node->wait_drained('postgres');

# A drainer is killed while messages are under way, and the server comes back.
$broker->freeze;
$node->safe_psql('postgres', "SELECT produce('key ' || 6 + n % ($others - 5), 'wide') FROM generate_series(1, 1000) n");
$node->wait_query('postgres', 'SELECT sum(in_flight) > 0 FROM outbox.stat_drainer');
my $log = $node->log_position;
kill 'KILL', $node->safe_psql('postgres', 'SELECT max(pid) FROM outbox.stat_drainer WHERE in_flight > 0');
$node->wait_for_log(qr/terminated by signal 9/, $log);
$broker->thaw;
$node->wait_query('postgres', 'SELECT true', 'the server is back');

# The other half, with an event in the middle of a key that dies.
$node->safe_psql('postgres', q{INSERT INTO outbox.event (event_type, routing_key, payload) VALUES ('filler', 'full', 'filler')});
$node->wait_query('postgres', q{SELECT published_at IS NOT NULL FROM outbox.event WHERE event_type = 'filler'});
$producing = $node->start_pgbench('postgres', $producer, $clients, $transactions);
$node->safe_psql('postgres', q{SELECT produce('key 7', 'full')});
$node->safe_psql('postgres', q{SELECT produce('key 7', 'wide')});
$node->wait_query('postgres', q{SELECT attempts > 3 FROM outbox.event WHERE event_type = 'counted' AND routing_key = 'full'});
is( $node->safe_psql('postgres', <<'SQL'), 'f', 'nothing passes the event that is refused');
SELECT bool_or(later.published_at IS NOT NULL)
FROM outbox.event later JOIN outbox.event refused USING (key)
WHERE later.seq > refused.seq AND refused.routing_key = 'full' AND later.event_type = 'counted'
SQL
$node->configure('drainer.max_attempts' => 5);
$node->wait_query('postgres', q{SELECT dead_at IS NOT NULL FROM outbox.event WHERE event_type = 'counted' AND routing_key = 'full'});
pass('it dies when its attempts are used up');
$node->finish_pgbench($producing);
$node->wait_drained('postgres');

check_arrival(map { @{ $broker->consume($_) } } qw(wide narrow));

done_testing();

# Makes the narrow queue refuse what is more than a few messages, or takes everything.
sub narrow_queue
{
	my ($on) = @_;
	$broker->ctl($on
		? ('set_policy', 'narrow', '^narrow$', '{"max-length":20,"overflow":"reject-publish"}', '--apply-to', 'queues')
		: ('clear_policy', 'narrow'));
	return;
}

# Compares what arrived with the ledger.
sub check_arrival
{
	my (@messages) = @_;
	my (%seen, %last, @disorder, $duplicates);
	for my $message (@messages)
	{
		my ($key, $version) = split /\|/, $message->{body};
		if ($seen{ $message->{body} }++)
		{
			$duplicates++;
			next;
		}
		next if $key eq 'loose';
		push @disorder, "$key: $version after $last{$key}" if $version < ($last{$key} // 0);
		$last{$key} = $version;
	}
	$duplicates //= 0;
	my @missing = grep { !$seen{$_} } split /\n/, $node->safe_psql('postgres', <<'SQL');
SELECT key || '|' || v FROM aggregate, generate_series(1, version) v
UNION ALL SELECT 'loose|' || n FROM loose
SQL
	my $dead = $node->safe_psql('postgres', q{SELECT convert_from(payload, 'UTF8') FROM outbox.event WHERE dead_at IS NOT NULL});
	is_deeply(\@missing, [$dead], 'all that was committed arrives, but for the event that died');
	is_deeply(\@disorder, [], 'each key in the order of its ledger');
	# Twice the window of each drainer for each of the two faults.
	cmp_ok($duplicates, '<=', 2 * 2 * $depth * $workers, 'few events arrive twice');
	note sprintf '%d messages, %d of them again', scalar @messages, $duplicates;
	return;
}
