-- outbox.backlog(): counts and age, and that the history below the floor is not read.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event;
RESET client_min_messages;

DELETE FROM outbox.relay_state;
SELECT * FROM outbox.backlog();

INSERT INTO outbox.event (event_type, payload, enqueued_at) VALUES ('fresh', '', now() - interval '1 hour'), ('fresh', '', now());
INSERT INTO outbox.event (event_type, payload, available_at) VALUES ('scheduled', '', '2999-01-01');
INSERT INTO outbox.event (event_type, payload) SELECT unnest(ARRAY['claimed', 'claimed again', 'failed', 'sent', 'dead', 'rejected', 'discarded']), '';
UPDATE outbox.event SET claimed_by = 't', claimed_at = now() WHERE event_type = 'claimed';
UPDATE outbox.event SET claimed_by = 't', claimed_at = now(), attempts = 1, last_error = 'nack', next_attempt_at = now() WHERE event_type = 'claimed again';
UPDATE outbox.event SET attempts = 1, last_error = 'nack', next_attempt_at = now() WHERE event_type = 'failed';
UPDATE outbox.event SET published_at = now() WHERE event_type = 'sent';
UPDATE outbox.event SET dead_at = now(), outcome = event_type WHERE event_type IN ('dead', 'rejected', 'discarded');
SELECT relay, pending, publishing, failed, dead, oldest_pending_age BETWEEN '1 hour' AND '2 hours' AS age,
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

SELECT * FROM outbox.backlog('nowhere');
SELECT * FROM outbox.backlog(NULL);
DELETE FROM outbox.relay_state;
TRUNCATE outbox.event;
-- It ran with other settings and as somebody else; neither stays.
SELECT current_setting('enable_seqscan') AS enable_seqscan, current_user = session_user AS same_user;
