-- outbox.backlog(): counts and age, and that the history below the floor is not read.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event;
RESET client_min_messages;

DELETE FROM outbox.relay_state;
SELECT * FROM outbox.backlog();

INSERT INTO outbox.event (event_type, payload, enqueued_at) VALUES ('fresh', '', now() - interval '1 hour'), ('fresh', '', now());
INSERT INTO outbox.event (event_type, payload, available_at) VALUES ('scheduled', '', '2999-01-01');
INSERT INTO outbox.event (event_type, payload) SELECT unnest(ARRAY['claimed', 'claimed again', 'failed', 'behind', 'sent', 'dead', 'rejected', 'discarded']), '';
UPDATE outbox.event SET claimed_by = 't', claimed_at = now() WHERE event_type = 'claimed';
UPDATE outbox.event SET claimed_by = 't', claimed_at = now(), attempts = 1, last_error = 'nack', next_attempt_at = now() WHERE event_type = 'claimed again';
UPDATE outbox.event SET attempts = 1, last_error = 'nack', next_attempt_at = now() WHERE event_type = 'failed';
UPDATE outbox.event SET next_attempt_at = 'infinity' WHERE event_type = 'behind';
INSERT INTO outbox.event (event_type, payload, available_at) VALUES ('never', '', 'infinity');
UPDATE outbox.event SET published_at = now() WHERE event_type = 'sent';
UPDATE outbox.event SET dead_at = now(), outcome = event_type WHERE event_type IN ('dead', 'rejected', 'discarded');
SELECT relay, pending, publishing, failed, deferred, dead, estimated, oldest_pending_age BETWEEN '1 hour' AND '2 hours' AS age,
    oldest_pending = (SELECT min(enqueued_at) FROM outbox.event) AS oldest
FROM outbox.backlog();
-- The same by the view.
SELECT status, count(*) FROM outbox.events GROUP BY status ORDER BY status;

-- Scheduled for a time that has come: its age counts from then.
TRUNCATE outbox.event;
INSERT INTO outbox.event (event_type, payload, enqueued_at, available_at) VALUES ('due', '', now() - interval '1 day', now() - interval '1 minute');
SELECT pending, oldest_pending_age < '1 hour' AS age FROM outbox.backlog();

-- Below the floor only deferred events are left.
INSERT INTO outbox.event (event_type, payload) VALUES ('fresh', '');
INSERT INTO outbox.relay_state (relay, floor) SELECT 'default', max(seq) FROM outbox.event;
INSERT INTO outbox.event (event_type, payload, available_at) VALUES ('scheduled', '', '2999-01-01');
SELECT pending FROM outbox.backlog('default');

-- A long backlog is estimated, in each lane, and read in part only.
TRUNCATE outbox.event;
DELETE FROM outbox.relay_state;
INSERT INTO outbox.event (event_type, payload, enqueued_at)
SELECT 'crowd', repeat('x', 300)::bytea, now() - interval '1 hour' FROM generate_series(1, 50000);
SELECT estimated, pending BETWEEN 49000 AND 51000 AS pending, oldest_pending_age BETWEEN '1 hour' AND '2 hours' AS age
FROM outbox.backlog();
CREATE FUNCTION pg_temp.pages_read() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT json) SELECT * FROM outbox.backlog()' INTO plan;
    RETURN (plan->0->'Plan'->>'Shared Hit Blocks')::bigint + (plan->0->'Plan'->>'Shared Read Blocks')::bigint;
END $$;
SELECT pg_temp.pages_read() < 0.7 * pg_relation_size('outbox.event') / current_setting('block_size')::integer AS bounded;
-- A part is published, as by a drainer whose floor stands still, and there are holes.
UPDATE outbox.event SET published_at = now() WHERE seq < (SELECT min(seq) + 10000 FROM outbox.event);
DELETE FROM outbox.event WHERE seq % 4 = 0;
SELECT estimated, pending BETWEEN 29000 AND 31000 AS pending FROM outbox.backlog();
-- All deferred behind one event, then all of them due, then all of them dead.
UPDATE outbox.event SET next_attempt_at = 'infinity' WHERE published_at IS NULL;
SELECT estimated, pending BETWEEN 29000 AND 31000 AS pending, deferred BETWEEN 29000 AND 31000 AS deferred FROM outbox.backlog();
UPDATE outbox.event SET next_attempt_at = now(), attempts = 1 WHERE published_at IS NULL;
VACUUM outbox.event;
SELECT estimated, pending, failed BETWEEN 25000 AND 35000 AS failed, deferred FROM outbox.backlog();
UPDATE outbox.event SET next_attempt_at = NULL, dead_at = now(), outcome = 'dead' WHERE published_at IS NULL;
VACUUM outbox.event;
SELECT estimated, pending, failed, dead BETWEEN 25000 AND 35000 AS dead FROM outbox.backlog();

SELECT * FROM outbox.backlog('nowhere');
SELECT * FROM outbox.backlog(NULL);
DELETE FROM outbox.relay_state;
TRUNCATE outbox.event;
-- It ran with other settings and as somebody else; neither stays.
SELECT current_setting('enable_seqscan') AS enable_seqscan, current_user = session_user AS same_user;
