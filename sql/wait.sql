-- flush and wait_published. Drainers are idle here: nothing ends by itself.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event, outbox.relay_state;
RESET client_min_messages;
\set SHOW_CONTEXT never

SELECT outbox.flush();
INSERT INTO outbox.event (id, event_type, payload) VALUES
    ('00000000-0000-7000-8000-000000000001', 'published', ''), ('00000000-0000-7000-8000-000000000002', 'dead', ''),
    ('00000000-0000-7000-8000-000000000003', 'discarded', ''), ('00000000-0000-7000-8000-000000000004', 'fresh', ''),
    ('00000000-0000-7000-8000-000000000005', 'failed', ''), ('00000000-0000-7000-8000-000000000006', 'claimed', '');
UPDATE outbox.event SET published_at = now() WHERE event_type = 'published';
UPDATE outbox.event SET dead_at = now(), outcome = 'dead', last_error = 'nack: full' WHERE event_type = 'dead';
UPDATE outbox.event SET dead_at = now(), outcome = 'discarded', last_error = 'discarded: x (by y)' WHERE event_type = 'discarded';
UPDATE outbox.event SET attempts = 1, last_error = 'nack', next_attempt_at = '2999-01-01' WHERE event_type = 'failed';
UPDATE outbox.event SET claimed_by = 't', claimed_at = now() WHERE event_type = 'claimed';

SELECT outbox.flush('0');
SELECT outbox.flush('50 ms', 'default');
UPDATE outbox.event SET published_at = now(), claimed_by = NULL, claimed_at = NULL WHERE event_type = 'claimed';
SELECT outbox.flush('0');
UPDATE outbox.event SET published_at = now() WHERE event_type = 'fresh';
SELECT outbox.flush('0');
BEGIN;
-- What this transaction wrote cannot be published before it ends.
INSERT INTO outbox.event (event_type, payload) VALUES ('own', '');
SELECT outbox.flush('0');
SAVEPOINT s;
INSERT INTO outbox.event (event_type, payload) VALUES ('own', '');
SELECT outbox.flush('0');
ROLLBACK;
UPDATE outbox.event SET published_at = now(), next_attempt_at = NULL WHERE event_type = 'failed';
SELECT outbox.flush('1 hour');
-- With a floor, what is above it and what is deferred.
INSERT INTO outbox.relay_state (relay, floor) SELECT 'default', max(seq) FROM outbox.event;
SELECT outbox.flush('0');
INSERT INTO outbox.event (event_type, payload) VALUES ('fresh', '');
SELECT outbox.flush('0');
DELETE FROM outbox.event WHERE event_type = 'fresh';
SELECT outbox.pause();
SELECT outbox.flush('0');
SELECT outbox.resume();

SELECT outbox.flush('-1 s');
SELECT outbox.flush(NULL);
SELECT outbox.flush('0', 'nowhere');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT outbox.flush();
ROLLBACK;

INSERT INTO outbox.event (id, event_type, payload) VALUES ('00000000-0000-7000-8000-000000000008', 'fresh', '');
SELECT outbox.wait_published('00000000-0000-7000-8000-000000000001');
SELECT outbox.wait_published('00000000-0000-7000-8000-000000000008', '0');
SELECT outbox.wait_published('00000000-0000-7000-8000-000000000008', '50 ms');
SELECT outbox.wait_published('00000000-0000-7000-8000-000000000002');
SELECT outbox.wait_published('00000000-0000-7000-8000-000000000003');
SELECT outbox.wait_published('00000000-0000-7000-8000-00000000000f');
SELECT outbox.wait_published(NULL);
SELECT outbox.wait_published('00000000-0000-7000-8000-000000000008', '-1 s');
SELECT outbox.wait_published('00000000-0000-7000-8000-000000000008', NULL);
BEGIN;
INSERT INTO outbox.event (id, event_type, payload) VALUES ('00000000-0000-7000-8000-000000000007', 'own', '');
SELECT outbox.wait_published('00000000-0000-7000-8000-000000000007');
ROLLBACK;
BEGIN;
SAVEPOINT s;
INSERT INTO outbox.event (id, event_type, payload) VALUES ('00000000-0000-7000-8000-000000000007', 'own', '');
RELEASE s;
SELECT outbox.wait_published('00000000-0000-7000-8000-000000000007');
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outbox.wait_published('00000000-0000-7000-8000-000000000001');
ROLLBACK;
-- A wait can be cancelled.
SET statement_timeout = '100 ms';
SELECT outbox.flush('1 hour');
SELECT outbox.wait_published('00000000-0000-7000-8000-000000000008', '1 hour');
RESET statement_timeout;
TRUNCATE outbox.event, outbox.relay_state, outbox.operation;
