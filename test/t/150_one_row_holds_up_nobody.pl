# Whatever is wrong with one row, or held by one session, the other events go on.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => { max_prepared_transactions => 5, 'drainer.batch_size' => 100 });
my $insert = q{INSERT INTO outbox.event (event_type, payload) };

# Nothing is claimed until enabled again.
sub disable
{
	$node->configure('drainer.enabled' => 'off');
	$node->wait_for_state('postgres', 'disabled');
	return;
}

# A session that has locked the rows and keeps them locked.
sub lock_rows
{
	my ($which) = @_;
	my $session = $node->background_psql('postgres');
	$session->query_safe("BEGIN; SELECT FROM outbox.event WHERE $which FOR UPDATE");
	return $session;
}

sub unlock
{
	my ($session) = @_;
	$session->query_safe('COMMIT');
	$session->quit;
	return;
}

# A trigger that refuses the claim of one row.
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->wait_for_state('postgres', 'idle');
$node->safe_psql('postgres', q{
	CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
	CREATE TRIGGER refuse BEFORE UPDATE ON outbox.event FOR EACH ROW
		WHEN (new.claimed_by IS NOT NULL AND new.event_type = 'unclaimable') EXECUTE FUNCTION refuse()});
$node->safe_psql('postgres', "$insert SELECT CASE WHEN n = 70 THEN 'unclaimable' ELSE 'fine' END, '' FROM generate_series(1, 300) n");
$node->wait_query('postgres', 'SELECT count(published_at) = 299 FROM outbox.event');
pass('a row whose claim a trigger refuses is left out');
my $seq = $node->safe_psql('postgres', q{SELECT seq FROM outbox.event WHERE event_type = 'unclaimable'});
like($node->stat('postgres', 'last_error'), qr/seq $seq cannot be claimed: not this one/, 'the status names it and says why');
$node->safe_psql('postgres', "$insert SELECT 'later', '' FROM generate_series(1, 100)");
$node->wait_query('postgres', 'SELECT count(published_at) = 399 FROM outbox.event');
is($node->safe_psql('postgres', 'SELECT sum(attempts) FROM outbox.event'), '0', 'no attempt was charged');
$node->safe_psql('postgres', 'DROP TRIGGER refuse ON outbox.event');
$node->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $node->drainer_pid('postgres') . ')');
$node->wait_drained('postgres');
is(scalar @{ $broker->consume('q', count => 400) }, 400, 'it is published when it can be claimed, and nothing twice');

# More rows than a batch, all locked by an operator.
disable();
$node->safe_psql('postgres', "$insert SELECT 'locked', '' FROM generate_series(1, 350)");
$node->safe_psql('postgres', q{INSERT INTO outbox.event (event_type, payload, next_attempt_at, seq)
	SELECT 'locked', '', now(), nextval('outbox.event_seq') FROM generate_series(1, 150)});
my $operator = lock_rows(q{event_type = 'locked'});
$node->configure('drainer.enabled' => 'on');
$node->safe_psql('postgres', "$insert SELECT 'free', '' FROM generate_series(1, 50)");
$node->wait_query('postgres', q{SELECT count(published_at) = 50 FROM outbox.event WHERE event_type = 'free'});
pass('however many rows an operator has locked, the others are published');
disable();
$node->safe_psql('postgres', "$insert VALUES ('shortly', '')");
my $another = lock_rows(q{event_type = 'shortly'});
$node->configure('drainer.enabled' => 'on');
$node->safe_psql('postgres', "$insert VALUES ('behind', '')");
$node->wait_query('postgres', q{SELECT count(published_at) = 1 FROM outbox.event WHERE event_type = 'behind'});
unlock($another);
$node->wait_query('postgres', q{SELECT count(published_at) = 1 FROM outbox.event WHERE event_type = 'shortly'});
pass('one that is free again is not forgotten behind those that are not');
unlock($operator);
$node->wait_drained('postgres');
is(scalar @{ $broker->consume('q', count => 552) }, 552, 'and they are when they are free');

# Few rows, but larger than what is claimed at a time.
disable();
$node->safe_psql('postgres', "$insert SELECT 'large', repeat('x', 3 * 1024 * 1024)::bytea FROM generate_series(1, 4)");
$operator = lock_rows(q{event_type = 'large'});
$node->safe_psql('postgres', "$insert SELECT 'small', '' FROM generate_series(1, 50)");
$node->configure('drainer.enabled' => 'on');
$node->wait_query('postgres', q{SELECT count(published_at) = 50 FROM outbox.event WHERE event_type = 'small'});
pass('however large the rows are that an operator has locked, the others are published');
unlock($operator);
$node->wait_drained('postgres');
is(scalar @{ $broker->consume('q', count => 54) }, 54, 'and they are when they are free');

# A row that failed, locked: what comes behind it in its key cannot be deferred, and is no hindrance to others either.
disable();
$node->safe_psql('postgres', q{
	INSERT INTO outbox.event (event_type, payload, key) SELECT 'follower', '', 'h' FROM generate_series(1, 251);
	UPDATE outbox.event SET next_attempt_at = now() + interval '1 hour' WHERE seq = (SELECT min(seq) FROM outbox.event WHERE key = 'h')});
$operator = lock_rows(q{key = 'h' AND next_attempt_at IS NOT NULL});
$node->safe_psql('postgres', "$insert SELECT 'strangers', '' FROM generate_series(1, 50)");
$node->configure('drainer.enabled' => 'on');
$node->wait_query('postgres', q{SELECT count(published_at) = 50 FROM outbox.event WHERE event_type = 'strangers'});
pass('however many rows wait for one that an operator has locked, the others are published');
unlock($operator);
$node->safe_psql('postgres', q{UPDATE outbox.event SET next_attempt_at = now() WHERE key = 'h' AND next_attempt_at < 'infinity'});
$node->wait_drained('postgres');
is(scalar @{ $broker->consume('q', count => 301) }, 301, 'and they are when it has had its end');

# Rows of a crowded key, which are going to be deferred together; one of them cannot be.
$node->safe_psql('postgres', q{
	CREATE TRIGGER refuse BEFORE UPDATE ON outbox.event FOR EACH ROW
		WHEN (new.event_type = 'unclaimable' AND new.published_at IS NULL) EXECUTE FUNCTION refuse()});
$broker->freeze;
$node->safe_psql('postgres', q{INSERT INTO outbox.event (event_type, payload, key)
	SELECT CASE WHEN n = 100 THEN 'unclaimable' ELSE 'crowd' END, '', 'k' FROM generate_series(1, 200) n});
$node->wait_query('postgres', q{SELECT count(claimed_by) = 64 FROM outbox.event WHERE key = 'k'});
$node->safe_psql('postgres', q{UPDATE outbox.event SET next_attempt_at = now() + interval '1 hour'
	WHERE seq = (SELECT min(seq) FROM outbox.event WHERE key = 'k' AND claimed_by IS NULL)});
$broker->thaw;
$node->wait_query('postgres', q{SELECT count(published_at) = 64 FROM outbox.event WHERE key = 'k'});
$node->wait_query('postgres', q{SELECT count(next_attempt_at) = 135 FROM outbox.event WHERE key = 'k'});
$node->safe_psql('postgres', "$insert SELECT 'others', '' FROM generate_series(1, 50)");
$node->wait_query('postgres', q{SELECT count(published_at) = 50 FROM outbox.event WHERE event_type = 'others'});
pass('a row that a trigger keeps from being deferred keeps nobody else from it');
$node->safe_psql('postgres', 'DROP TRIGGER refuse ON outbox.event');
$node->safe_psql('postgres', q{UPDATE outbox.event SET next_attempt_at = now() WHERE key = 'k' AND next_attempt_at < 'infinity'});
$node->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $node->drainer_pid('postgres') . ')');
$node->wait_drained('postgres');
is(scalar @{ $broker->consume('q', count => 250) }, 250, 'and all are published when it can be');

# Text that cannot be sent as UTF-8; producers are refused it, a restored row may have it.
for my $encoding (qw(SQL_ASCII LATIN1))
{
	my $database = lc $encoding;
	$node->safe_psql('postgres', "CREATE DATABASE $database ENCODING $encoding LOCALE 'C' TEMPLATE template0");
	$node->safe_psql($database, 'CREATE EXTENSION outbox_drainer');
	$node->safe_psql($database, q{
		INSERT INTO outbox.event (event_type, payload, key) VALUES ('before', '', 'k');
		INSERT INTO outbox.event (seq, event_type, payload, key) VALUES (nextval('outbox.event_seq'), 'odd', '', E'caf\xe9');
		INSERT INTO outbox.event (event_type, payload, key) VALUES ('after', '', 'k')});
	$node->wait_query($database, q{SELECT count(published_at) = 2 FROM outbox.event WHERE event_type <> 'odd'});
	if ($encoding eq 'SQL_ASCII')
	{
		$node->wait_query($database, q{SELECT outcome = 'rejected' AND last_error LIKE 'rejected: invalid_encoding: key holds%' FROM outbox.event WHERE event_type = 'odd'});
		is(scalar @{ $broker->consume('q', count => 2) }, 2, "$encoding: a key that is no UTF-8 is rejected, the others are sent");
		next;
	}
	$node->wait_drained($database);
	my ($odd) = grep { $_->{properties}{type} eq 'odd' } @{ $broker->consume('q', count => 3) };
	is($odd->{headers}{'outbox-key'}, "caf\x{e9}", "$encoding: text is sent as UTF-8");
}

# An extension that came by a prepared transaction, whose commit nobody sees.
$node->safe_psql('postgres', 'CREATE DATABASE prepared');
$node->safe_psql('prepared', q{BEGIN; CREATE EXTENSION outbox_drainer; PREPARE TRANSACTION 'extension'});
$node->safe_psql('prepared', q{COMMIT PREPARED 'extension'});
$node->safe_psql('prepared', "$insert VALUES ('first', '')");
$node->wait_drained('prepared');
pass('an extension that was created in a prepared transaction has a drainer with its first event');

# An unlogged table is refused at once, whatever the poll interval.
$node->configure('drainer.poll_interval' => '10min');
$node->wait_for_state('prepared', 'idle');
$node->safe_psql('prepared', 'ALTER TABLE outbox.event SET UNLOGGED');
$node->safe_psql('prepared', "$insert VALUES ('unlogged', '')");
$node->wait_for_state('prepared', 'misconfigured');
is($node->unpublished('prepared'), '1', 'nothing of an unlogged table is published');
$node->safe_psql('prepared', 'ALTER TABLE outbox.event SET LOGGED');
$node->configure('drainer.poll_interval' => '100ms');
$node->wait_drained('prepared');
pass('and all when it is logged again');

done_testing();
