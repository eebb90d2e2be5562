# A row whose mark cannot be written holds up nobody else, and is not sent again when it can be.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node('main', broker => $broker);
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->wait_for_state('postgres', 'idle');

# A trigger of the owner's that refuses to mark one row.
$node->safe_psql('postgres', q{
	CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
	CREATE TRIGGER refuse BEFORE UPDATE ON outbox.event FOR EACH ROW
		WHEN (new.published_at IS NOT NULL AND new.event_type = 'stubborn') EXECUTE FUNCTION refuse();
	INSERT INTO outbox.event (event_type, payload)
	SELECT CASE WHEN n = 20 THEN 'stubborn' ELSE 'willing' END, convert_to(n::text, 'UTF8') FROM generate_series(1, 50) n});
$node->wait_query('postgres', 'SELECT count(published_at) = 49 FROM outbox.event');
pass('the other rows are marked');
$node->safe_psql('postgres', q{INSERT INTO outbox.event (event_type, payload) SELECT 'later', '' FROM generate_series(1, 10)});
$node->wait_query('postgres', 'SELECT count(published_at) = 59 FROM outbox.event');
pass('later events are published meanwhile');
is($node->safe_psql('postgres', q{SELECT status FROM outbox.events WHERE event_type = 'stubborn'}), 'publishing', 'the row is still in hand');
like($node->stat('postgres', 'last_error'), qr/not this one/, 'the status says why');
is(scalar(() = $node->log_since(0) =~ /WARNING:.*not this one/g), 1, 'and the log says it once');

$node->safe_psql('postgres', 'DROP TRIGGER refuse ON outbox.event');
$node->wait_drained('postgres');
is(scalar @{ $broker->consume('q', count => 60) }, 60, 'it is marked when it can be, and nothing was sent twice');

# An operator's lock on a row that is about to be claimed.
my $operator = $node->background_psql('postgres');
$operator->query_safe('BEGIN');
$node->safe_psql('postgres', 'ALTER SYSTEM SET outbox_drainer.enabled = off');
$node->reload;
$node->wait_for_state('postgres', 'disabled');
$node->safe_psql('postgres', q{INSERT INTO outbox.event (event_type, payload) SELECT 'batch', convert_to(n::text, 'UTF8') FROM generate_series(1, 30) n});
$operator->query_safe(q{SELECT FROM outbox.event WHERE event_type = 'batch' AND payload = '7' FOR UPDATE});
$node->safe_psql('postgres', 'ALTER SYSTEM RESET outbox_drainer.enabled');
$node->reload;
$node->wait_query('postgres', q{SELECT count(published_at) = 29 FROM outbox.event WHERE event_type = 'batch'});
pass('a row that an operator has locked is passed over');
$node->safe_psql('postgres', q{INSERT INTO outbox.event (event_type, payload) VALUES ('after', '')});
$node->wait_query('postgres', q{SELECT count(published_at) = 1 FROM outbox.event WHERE event_type = 'after'});
$operator->query_safe('COMMIT');
$operator->quit;
$node->wait_drained('postgres');
is(scalar @{ $broker->consume('q', count => 31) }, 31, 'and published when it is free');

done_testing();
