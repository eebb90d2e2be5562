# serialize_producers: producers that lock nothing of their own wait for each other, key by key, so that the
# order of the numbers is the order of the commits. No broker is needed.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $node = OutboxDrainer::Cluster->new_node('main', settings => { max_locks_per_transaction => 20 });
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
my $bound = 10;

my @sessions;

sub session
{
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	push @sessions, $session;
	return $session;
}

sub write_event
{
	my ($key, $type, $source) = @_;
	$source //= 'test';
	return "INSERT INTO outbox.event (source, key, event_type, payload) VALUES ('$source', '$key', '$type', '')";
}

# How many sessions wait for a lock on a group.
sub waiting
{
	return q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 5672 AND NOT granted};
}

sub order_of
{
	my ($key) = @_;
	return $node->safe_psql('postgres',
		"SELECT string_agg(event_type, ' ' ORDER BY seq) FROM outbox.event WHERE key = '$key'");
}

# Without it nobody waits, and the one that commits last may have the lower number.
my ($first, $second) = (session(), session());
$first->query_safe('BEGIN; ' . write_event('free', 'first'));
$second->query_safe(write_event('free', 'second'));
$first->query_safe('COMMIT');
is(order_of('free'), 'first second', 'without serialize_producers nobody waits');
is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_locks WHERE objsubid = 5672'), '0', 'and nothing is locked');
$_->quit for splice @sessions;

# With it the second session waits, whatever it did before.
$node->safe_psql('postgres', 'UPDATE outbox.relay SET serialize_producers = true');
($first, $second) = (session(), session());
$second->query_safe('BEGIN; ' . write_event('other', 'second'));
$first->query_safe('BEGIN; ' . write_event('k', 'first'));
$second->query_until(qr/asked/, "\\echo asked\n" . write_event('k', 'second') . ";\n");
$node->wait_query('postgres', waiting());
pass('a second writer of the key waits');

# Others go on.
$node->safe_psql('postgres', write_event('k2', 'other key'));
$node->safe_psql('postgres', write_event('k', 'other source', 'elsewhere'));
$node->safe_psql('postgres', q{INSERT INTO outbox.event (event_type, payload) VALUES ('no key', '')});
$node->safe_psql('postgres', q{INSERT INTO outbox.event (seq, source, key, event_type, payload) VALUES (-1, 'test', 'k', 'restored', '')});
pass('another key, another source, no key and a row with a number of its own do not');
is($node->safe_psql('postgres', 'SELECT pg_try_advisory_xact_lock(l.n) FROM (SELECT (classid::bigint << 32) + objid::bigint AS n FROM pg_locks WHERE objsubid = 5672 AND NOT granted) AS l'),
	't', 'nor does an advisory lock of the same number');

$first->query_safe(write_event('k', 'first again'));
$first->query_safe('COMMIT');
$second->query_safe('COMMIT');
is( $node->safe_psql('postgres',
		q{SELECT string_agg(event_type, ', ' ORDER BY seq) FROM outbox.event WHERE source = 'test' AND key = 'k' AND seq > 0}),
	'first, first again, second',
	'its number comes after all that the first one wrote until its commit');

# A rolled back savepoint gives its locks back.
$first->query_safe('BEGIN; ' . write_event('kept', 'first') . '; SAVEPOINT s; ' . write_event('given back', 'first') . '; ROLLBACK TO s');
$node->safe_psql('postgres', write_event('given back', 'second'));
is(order_of('given back'), 'second', 'a key that was written in a rolled back savepoint is free');
$second->query_until(qr/asked/, "\\echo asked\n" . write_event('kept', 'second') . ";\n");
$node->wait_query('postgres', waiting());
$first->query_safe('ROLLBACK');
$second->query_safe('SELECT 1');
is(order_of('kept'), 'second', 'one that was written before it is held until the transaction ends');

# The bound: half of max_locks_per_transaction, each transaction anew.
my $keys = sub { my ($from, $to) = @_; return
	"INSERT INTO outbox.event (key, event_type, payload) SELECT 'b' || n, 'bound', '' FROM generate_series($from, $to) n"; };
$first->query_safe($keys->(1, $bound)) for 1 .. 3;
$first->query_safe('BEGIN; ' . $keys->(1, $bound) . '; ' . $keys->(1, $bound));
pass('a transaction may write as many keys as the bound says, each as often as it likes');
my ($out, $failed) = $first->query($keys->(4, $bound + 1));
like($first->{stderr}, qr/transaction writes events of more than $bound keys/, 'one more is an error');
like($first->{stderr}, qr/HINT:.*max_locks_per_transaction/, 'with the cure');
$first->{stderr} = '';
$first->query_safe('ROLLBACK');

my $err;
$node->psql('postgres', '\set VERBOSITY verbose' . "\n" . $keys->(1, $bound + 1), stderr => \$err);
like($err, qr/ERROR:  54000/, 'of the class of exceeded limits');
is($node->safe_psql('postgres', q{SELECT count(*) FROM outbox.event WHERE key LIKE 'b%'}), 3 * $bound, 'and nothing of it is written');
$first->query_safe('BEGIN; ' . join '; ', map { ("SAVEPOINT s", $keys->($_ * $bound, $_ * $bound + 5), 'ROLLBACK TO s') } 1 .. 10);
$first->query_safe($keys->(1, $bound));
$first->query_safe('COMMIT');
pass('keys of rolled back savepoints do not count');

# It goes with a prepared transaction too.
$first->query_safe('BEGIN; ' . write_event('prepared', 'first') . q{; PREPARE TRANSACTION 'producer'});
$second->query_until(qr/asked/, "\\echo asked\n" . write_event('prepared', 'second') . ";\n");
$node->wait_query('postgres', waiting());
$node->safe_psql('postgres', q{COMMIT PREPARED 'producer'});
$second->query_safe('SELECT 1');
is(order_of('prepared'), 'first second', 'a prepared transaction holds its keys until it is committed');

# The risk: two transactions that write the same keys in different orders. PostgreSQL ends one of them.
$_->query_safe('BEGIN') for $first, $second;
$_->query_safe(q{SET LOCAL deadlock_timeout = '100ms'}) for $first, $second;
$first->query_safe(write_event('d1', 'first'));
$second->query_safe(write_event('d2', 'second'));
$first->query_until(qr/asked/, "\\echo asked\n" . write_event('d2', 'first') . ";\n");
$node->wait_query('postgres', waiting());
$second->query(write_event('d1', 'second'));
$first->query('COMMIT');
$second->query('COMMIT');
like($first->{stderr} . $second->{stderr}, qr/deadlock detected/, 'different orders of keys can deadlock');
$_->{stderr} = '' for $first, $second;
my $survivors = $node->safe_psql('postgres', q{SELECT count(DISTINCT event_type), count(*) FROM outbox.event WHERE key ~ '^d[12]$'});
is($survivors, '1|2', 'and then one of the two transactions is committed whole');

# A producer needs no right on outbox.relay, and its transaction may be older than the setting.
$node->safe_psql('postgres', 'UPDATE outbox.relay SET serialize_producers = false; CREATE ROLE producer LOGIN; GRANT INSERT ON outbox.event TO producer');
my $producer = $node->background_psql('postgres', extra_params => [ '-U', 'producer' ], on_error_stop => 0);
push @sessions, $producer;
$producer->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT now()');
$node->safe_psql('postgres', 'UPDATE outbox.relay SET serialize_producers = true');
$producer->query_safe(write_event('role', 'first'));
is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_locks WHERE objsubid = 5672'), '1',
	'a role that may only insert is serialized, by the setting of the moment');
$producer->query_safe('COMMIT');

# A session that knows the setting already hears of a change; here it is announced as the relay's trigger does.
$node->safe_psql('postgres',
	'BEGIN; UPDATE outbox.relay SET serialize_producers = false; ALTER TABLE outbox.event SET (fillfactor = 33); COMMIT');
$producer->query_safe('BEGIN; ' . write_event('role', 'second'));
is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_locks WHERE objsubid = 5672'), '0', 'a change reaches running sessions');
$producer->query_safe('COMMIT');

$_->quit for @sessions;
done_testing();
