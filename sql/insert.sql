-- Rows as they are after a plain INSERT, INSERT ... SELECT and COPY: what the trigger fills and defers.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event;
RESET client_min_messages;

CREATE VIEW pg_temp.rows AS
SELECT event_type, seq > 0 AS numbered, substr(id::text, 15, 1) AS version, next_attempt_at, claimed_by, claimed_at
FROM outbox.event;

INSERT INTO outbox.event (event_type, payload) VALUES ('plain', 'x');
INSERT INTO outbox.event (event_type, payload) SELECT 'select', 'x' FROM generate_series(1, 2);
COPY outbox.event (event_type, payload) FROM stdin;
copy	x
copy	y
\.
SELECT * FROM pg_temp.rows ORDER BY event_type;
-- In the order of insertion, without a number left out.
SELECT event_type, seq - min(seq) OVER () AS step, rank() OVER (ORDER BY id) AS by_id FROM outbox.event ORDER BY seq;
SELECT source = current_database() AS source, content_type, attempts, occurred_at <= now() AS occurred,
    enqueued_at <= now() AS enqueued, message_id, destination
FROM outbox.event WHERE event_type = 'plain';
TRUNCATE outbox.event RESTART IDENTITY;
SELECT last_value > 1 AS goes_on FROM outbox.event_seq;

-- Scheduled: deferred until it is due, unless that is past or it has ended.
INSERT INTO outbox.event (event_type, payload, available_at) VALUES ('past', '', '2001-01-01 00:00+00'),
    ('later', '', '2999-01-01 00:00+00'), ('never', '', 'infinity');
INSERT INTO outbox.event (event_type, payload, available_at, published_at)
    VALUES ('sent already', '', '2999-01-01 00:00+00', now());
SELECT event_type, next_attempt_at FROM outbox.event ORDER BY seq;
TRUNCATE outbox.event;

-- With a number of its own: deferred, whatever it says of itself, unless it has ended.
INSERT INTO outbox.event (seq, event_type, payload) VALUES (-1, 'now', '');
INSERT INTO outbox.event (seq, event_type, payload, available_at) VALUES (-2, 'available', '', '2998-01-01 00:00+00');
INSERT INTO outbox.event (seq, event_type, payload, available_at, next_attempt_at)
    VALUES (-3, 'due', '', '2998-01-01 00:00+00', '2999-01-01 00:00+00');
INSERT INTO outbox.event (seq, event_type, payload, next_attempt_at) VALUES (-4, 'held', '', 'infinity');
INSERT INTO outbox.event (seq, event_type, payload, published_at) VALUES (-5, 'published', '', now());
INSERT INTO outbox.event (seq, event_type, payload, dead_at, outcome, next_attempt_at)
    VALUES (-6, 'dead', '', now(), 'dead', now());
SELECT event_type, seq, CASE WHEN next_attempt_at BETWEEN '2001-01-01' AND now() THEN 'now' ELSE next_attempt_at::text END AS due
FROM outbox.event ORDER BY seq DESC;
-- What is restored in one transaction is due at one time, and none of it passes for scheduled, which would let
-- it go before earlier rows of its key.
BEGIN;
INSERT INTO outbox.event (seq, event_type, payload, available_at) VALUES (-7, 'restored', '', '2001-01-01 00:00+00');
INSERT INTO outbox.event (seq, event_type, payload, available_at) VALUES (-8, 'restored', '', NULL);
SELECT count(*), bool_and(next_attempt_at = now()) AS due_at_once FROM outbox.event WHERE event_type = 'restored';
INSERT INTO outbox.event (seq, event_type, payload, available_at) VALUES (-9, 'restored', '', now())
    RETURNING next_attempt_at < now() AS due, next_attempt_at IS DISTINCT FROM available_at AS holds;
COMMIT;
TRUNCATE outbox.event;

-- A new row is in nobody's hand, and only the trigger defers it.
INSERT INTO outbox.event (event_type, payload, claimed_by, claimed_at, next_attempt_at)
    VALUES ('claimed', '', 'somebody', now(), now());
INSERT INTO outbox.event (seq, event_type, payload, claimed_by, claimed_at, published_at)
    VALUES (-1, 'restored', '', 'somebody', now(), now());
SELECT * FROM pg_temp.rows ORDER BY event_type;
-- An update is not its business.
UPDATE outbox.event SET claimed_by = 'somebody', claimed_at = '2001-01-01 00:00+00', next_attempt_at = 'infinity'
    WHERE event_type = 'claimed';
SELECT * FROM pg_temp.rows WHERE event_type = 'claimed';
TRUNCATE outbox.event;

-- An id that was given is kept.
INSERT INTO outbox.event (event_type, payload, id) VALUES ('given', '', '00000000-0000-4000-8000-000000000001')
    RETURNING id, seq IS NOT NULL AS numbered;

-- It fires for replicated rows as well.
SET session_replication_role = replica;
INSERT INTO outbox.event (event_type, payload) VALUES ('replica', '') RETURNING seq IS NOT NULL AS numbered;
RESET session_replication_role;

-- Rows that break a rule.
\set VERBOSITY terse
INSERT INTO outbox.event (event_type) VALUES ('no payload');
INSERT INTO outbox.event (event_type, payload, source) VALUES ('no source', '', NULL);
INSERT INTO outbox.event (event_type, payload, attempts) VALUES ('attempts', '', -1);
INSERT INTO outbox.event (event_type, payload, outcome) VALUES ('outcome', '', 'lost');
INSERT INTO outbox.event (event_type, payload, published_at, dead_at) VALUES ('two ends', '', now(), now());
\set VERBOSITY default

-- The table can change under a session that has used it.
ALTER TABLE outbox.event ADD COLUMN mine text;
INSERT INTO outbox.event (event_type, payload, mine) VALUES ('more columns', '', 'x') RETURNING seq IS NOT NULL AS numbered, mine;
ALTER TABLE outbox.event DROP COLUMN mine;
INSERT INTO outbox.event (event_type, payload) VALUES ('fewer columns', '') RETURNING seq IS NOT NULL AS numbered;

-- The trigger fires nowhere else.
SELECT outbox.event_before_insert();
CREATE TEMP TABLE other (seq bigint, id text);
CREATE TRIGGER wrong BEFORE INSERT ON other FOR EACH ROW EXECUTE FUNCTION outbox.event_before_insert('event_seq');
INSERT INTO other DEFAULT VALUES;
DROP TRIGGER wrong ON other;
CREATE TRIGGER wrong AFTER INSERT ON other FOR EACH ROW EXECUTE FUNCTION outbox.event_before_insert('event_seq');
INSERT INTO other DEFAULT VALUES;
DROP TRIGGER wrong ON other;
CREATE TRIGGER wrong BEFORE INSERT ON other FOR EACH ROW EXECUTE FUNCTION outbox.event_before_insert();
INSERT INTO other DEFAULT VALUES;
DROP TABLE other;
CREATE TEMP TABLE like_event (LIKE outbox.event);
CREATE TRIGGER lost BEFORE INSERT ON like_event FOR EACH ROW EXECUTE FUNCTION outbox.event_before_insert('nowhere_seq');
INSERT INTO like_event (event_type, payload, source, enqueued_at, attempts) VALUES ('x', '', '', now(), 0);
