-- outbox.why(): one line for each place that an event can be in. The states of drainers and brokers are shown in
-- test/t/170_why.pl; here no drainer is allowed to run, which the lines say at their end and is cut off.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event;
RESET client_min_messages;
DELETE FROM outbox.relay_state;
SET timezone = 'UTC';
SET datestyle = 'ISO';

-- The line without what holds up everybody, and with what differs from run to run replaced.
CREATE FUNCTION pg_temp.why(event_type text) RETURNS text LANGUAGE sql AS $$
    SELECT regexp_replace(regexp_replace(outbox.why(e.id),
        '(; |^)(no drainer runs|drainers are disabled|the drainer |no broker |the broker ).*$', ''), 'pid [0-9]+', 'pid N')
    FROM outbox.event AS e WHERE e.event_type = $1
$$;

SELECT outbox.why('00000000-0000-7000-8000-00000000ffff');
SELECT outbox.why(NULL) IS NULL AS null_for_null;
INSERT INTO outbox.event (event_type, payload, key, id) VALUES ('head', '', 'k', '00000000-0000-7000-8000-000000000001');
BEGIN;
INSERT INTO outbox.event (event_type, payload, key, id) VALUES ('rolled back', '', 'k', '00000000-0000-7000-8000-000000000002');
SELECT outbox.why('00000000-0000-7000-8000-000000000002') <> '' AS known;
ROLLBACK;
SELECT outbox.why('00000000-0000-7000-8000-000000000002');
-- It always has something to say.
SELECT outbox.why(id) <> '' AS reason FROM outbox.event;

-- Ends.
INSERT INTO outbox.event (event_type, payload) SELECT unnest(ARRAY['sent', 'sent late', 'gave up', 'refused', 'thrown away', 'unknown end']), '';
UPDATE outbox.event SET published_at = '2026-01-02 03:04:05.678' WHERE event_type ~ '^sent';
UPDATE outbox.event SET attempts = 2, last_error = 'nack: by the broker' WHERE event_type = 'sent late';
UPDATE outbox.event SET dead_at = '2026-01-02 03:04:05', outcome = 'dead', error_code = 'nack', attempts = 20, last_error = E'nack: twice\nover two lines' WHERE event_type = 'gave up';
UPDATE outbox.event SET dead_at = '2026-01-02 03:04:05', outcome = 'rejected', error_code = 'too_large', last_error = 'rejected: too_large: the payload is too large' WHERE event_type = 'refused';
UPDATE outbox.event SET dead_at = '2026-01-02 03:04:05', outcome = 'discarded' WHERE event_type = 'thrown away';
UPDATE outbox.event SET dead_at = '2026-01-02 03:04:05' WHERE event_type = 'unknown end';
SELECT event_type, pg_temp.why(event_type) FROM outbox.event WHERE coalesce(published_at, dead_at) IS NOT NULL ORDER BY seq;

-- In hand. From here on nothing is committed, so that no drainer takes back what is claimed.
TRUNCATE outbox.event;
BEGIN;
INSERT INTO outbox.event (event_type, payload) SELECT unnest(ARRAY['gone', 'gone long ago', 'foreign', 'no time']), '';
UPDATE outbox.event SET claimed_at = '2999-01-02 03:04:05', claimed_by = 'obd1:1:1:1:0:1:1' WHERE event_type = 'gone';
UPDATE outbox.event SET claimed_at = '2026-01-02 03:04:05', claimed_by = 'obd1:1:1:1:0:1:1' WHERE event_type = 'gone long ago';
UPDATE outbox.event SET claimed_at = '2999-01-02 03:04:05', claimed_by = 'worker-7' WHERE event_type = 'foreign';
UPDATE outbox.event SET claimed_by = 'worker-7' WHERE event_type = 'no time';
SELECT event_type, pg_temp.why(event_type) FROM outbox.event ORDER BY seq;

ROLLBACK;

-- Waiting for a time.
BEGIN;
INSERT INTO outbox.event (event_type, payload, available_at) VALUES ('scheduled', '', '2999-01-02 03:04:05'), ('never', '', 'infinity');
INSERT INTO outbox.event (event_type, payload) SELECT unnest(ARRAY['failed', 'poison', 'unroutable', 'missing exchange', 'failed before', 'to be alone', 'put off', 'due again', 'requeued']), '';
UPDATE outbox.event SET next_attempt_at = '2999-01-02 03:04:05', attempts = 3, last_error = 'nack: by the broker' WHERE event_type = 'failed';
UPDATE outbox.event SET next_attempt_at = '2999-01-02 03:04:05', attempts = 1, last_error = 'poison: 406 PRECONDITION_FAILED - fault' WHERE event_type = 'poison';
UPDATE outbox.event SET next_attempt_at = '2999-01-02 03:04:05', attempts = 1, last_error = 'unroutable: exchange "events" does not exist' WHERE event_type = 'unroutable';
UPDATE outbox.event SET next_attempt_at = '2999-01-02 03:04:05', last_error = 'held: exchange "ev"ents" does not exist' WHERE event_type IN ('missing exchange', 'failed before');
UPDATE outbox.event SET attempts = 2 WHERE event_type = 'failed before';
UPDATE outbox.event SET next_attempt_at = '2999-01-02 03:04:05', last_error = 'held: waits to be sent alone, since the broker refused messages to exchange "events"' WHERE event_type = 'to be alone';
UPDATE outbox.event SET next_attempt_at = '2999-01-02 03:04:05' WHERE event_type = 'put off';
UPDATE outbox.event SET next_attempt_at = now() - interval '1 s', attempts = 3, last_error = 'nack: by the broker' WHERE event_type = 'due again';
UPDATE outbox.event SET next_attempt_at = now() - interval '1 s' WHERE event_type = 'requeued';
SELECT event_type, pg_temp.why(event_type) FROM outbox.event ORDER BY seq;
UPDATE outbox.relay SET max_attempts = 7;
SELECT pg_temp.why('failed');
UPDATE outbox.relay SET max_attempts = 0;
SELECT pg_temp.why('failed');
ROLLBACK;

-- Behind another one. A scheduled event holds nobody.
BEGIN;
INSERT INTO outbox.event (event_type, payload, key, id, available_at) VALUES
    ('scheduled', '', 'a', '00000000-0000-7000-8000-000000000010', '2999-01-01'),
    ('head', '', 'a', '00000000-0000-7000-8000-000000000011', NULL),
    ('other key', '', 'b', '00000000-0000-7000-8000-000000000012', NULL),
    ('follower', '', 'a', '00000000-0000-7000-8000-000000000013', NULL),
    ('fresh', '', 'a', '00000000-0000-7000-8000-000000000014', NULL),
    ('no key', '', NULL, '00000000-0000-7000-8000-000000000015', NULL);
UPDATE outbox.event SET next_attempt_at = '2999-01-02 03:04:05', attempts = 3, last_error = 'nack: by the broker' WHERE event_type = 'head';
UPDATE outbox.event SET next_attempt_at = 'infinity' WHERE event_type = 'follower';
SELECT event_type, pg_temp.why(event_type) FROM outbox.event ORDER BY seq;
UPDATE outbox.event SET attempts = 0, last_error = 'held: exchange "x" does not exist' WHERE event_type = 'head';
SELECT pg_temp.why('follower');
UPDATE outbox.event SET attempts = 3, last_error = 'nack: by the broker' WHERE event_type = 'head';
-- The head is tried again; then it is due, but nobody has it.
UPDATE outbox.event SET claimed_by = 'worker-7', claimed_at = '2999-01-02' WHERE event_type = 'head';
SELECT pg_temp.why('follower');
UPDATE outbox.event SET claimed_by = NULL, claimed_at = NULL, next_attempt_at = now() WHERE event_type = 'head';
SELECT pg_temp.why('follower');
UPDATE outbox.event SET attempts = 0, last_error = 'held: exchange "x" does not exist' WHERE event_type = 'head';
SELECT pg_temp.why('follower');
-- The head has ended, and nobody has made the next one due yet.
UPDATE outbox.event SET next_attempt_at = NULL, published_at = now() WHERE event_type = 'head';
SELECT event_type, pg_temp.why(event_type) FROM outbox.event WHERE event_type IN ('follower', 'fresh') ORDER BY seq;
UPDATE outbox.event SET next_attempt_at = NULL WHERE event_type = 'follower';
SELECT pg_temp.why('fresh');
UPDATE outbox.event SET claimed_by = 'worker-7', claimed_at = '2999-01-02' WHERE event_type = 'follower';
SELECT pg_temp.why('fresh');
-- Other orderings.
UPDATE outbox.event SET claimed_by = NULL, claimed_at = NULL;
UPDATE outbox.event SET next_attempt_at = '2999-01-02 03:04:05', attempts = 3, last_error = 'nack: by the broker' WHERE event_type = 'other key';
UPDATE outbox.relay SET ordering = 'per_source';
SELECT pg_temp.why('no key');
UPDATE outbox.event SET source = 'elsewhere' WHERE event_type = 'no key';
SELECT pg_temp.why('no key');
UPDATE outbox.relay SET ordering = 'stop_the_line';
SELECT event_type, pg_temp.why(event_type) FROM outbox.event WHERE event_type IN ('other key', 'no key') ORDER BY seq;
UPDATE outbox.relay SET ordering = 'best_effort';
SELECT pg_temp.why('no key');
ROLLBACK;

-- A long backlog is not read to its end, and what is below the floor is not read at all.
BEGIN;
INSERT INTO outbox.event (event_type, payload) SELECT 'crowd', '' FROM generate_series(1, 10010);
INSERT INTO outbox.event (event_type, payload) VALUES ('last', '');
SELECT pg_temp.why('last');
INSERT INTO outbox.relay_state (relay, floor) SELECT 'default', max(seq) - 3 FROM outbox.event;
SELECT pg_temp.why('last');
UPDATE outbox.relay_state SET floor = floor + 2;
SELECT pg_temp.why('last') = '' AS next;
UPDATE outbox.relay_state SET floor = floor + 1;
SELECT pg_temp.why('last');
ROLLBACK;

-- The relay is paused: said of what has not ended, beside its own reason.
BEGIN;
UPDATE outbox.relay SET paused_at = '2026-01-02 03:04:05', paused_by = 'ops';
INSERT INTO outbox.event (event_type, payload) SELECT unnest(ARRAY['fresh', 'failed', 'sent']), '';
UPDATE outbox.event SET next_attempt_at = '2999-01-02 03:04:05', attempts = 3, last_error = 'nack: by the broker' WHERE event_type = 'failed';
UPDATE outbox.event SET published_at = '2026-01-02 03:04:05' WHERE event_type = 'sent';
SELECT event_type, pg_temp.why(event_type) FROM outbox.event ORDER BY seq;
UPDATE outbox.relay SET pause_reason = 'consumer is being repaired';
SELECT pg_temp.why('fresh');
ROLLBACK;

-- Somebody keeps the row locked.
INSERT INTO outbox.event (event_type, payload) VALUES ('fresh', ''), ('sent', '');
UPDATE outbox.event SET published_at = '2026-01-02 03:04:05' WHERE event_type = 'sent';
BEGIN;
SELECT event_type FROM outbox.event WHERE event_type = 'fresh' FOR UPDATE;
SELECT pg_temp.why('fresh');
ROLLBACK;

-- Who may ask, and that the caller's search_path does not matter.
CREATE ROLE regress_outbox_monitor;
GRANT pg_monitor TO regress_outbox_monitor;
CREATE ROLE regress_outbox_stranger;
SELECT id AS event FROM outbox.event WHERE event_type = 'sent' \gset
SET ROLE regress_outbox_stranger;
SELECT outbox.why(:'event');
SET ROLE regress_outbox_monitor;
SET search_path = '';
SELECT outbox.why(:'event');
SELECT * FROM outbox.claim_holder('obd1:1:1:1:0:1:1');
RESET search_path;
RESET ROLE;
SELECT * FROM outbox.claim_holder('obd1:1:1:1:0:1:1');
SELECT * FROM outbox.claim_holder('worker-7');
DROP ROLE regress_outbox_monitor, regress_outbox_stranger;
TRUNCATE outbox.event;
