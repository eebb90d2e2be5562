-- outbox.events: the status of an event and the message_id it is sent with.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event;
RESET client_min_messages;

INSERT INTO outbox.event (event_type, payload, id) VALUES ('fresh', '', '00000000-0000-7000-8000-000000000001');
INSERT INTO outbox.event (event_type, payload, message_id) VALUES ('named', '', 'my-own-id');
INSERT INTO outbox.event (event_type, payload, available_at) VALUES ('scheduled', '', 'infinity');
INSERT INTO outbox.event (event_type, payload) SELECT unnest(ARRAY['claimed', 'claimed again', 'failed', 'missing exchange',
    'behind its key', 'sent', 'gave up', 'refused', 'thrown away', 'unknown end']), '';
UPDATE outbox.event SET claimed_by = 't', claimed_at = now() WHERE event_type = 'claimed';
UPDATE outbox.event SET claimed_by = 't', claimed_at = now(), attempts = 1, last_error = 'nack', next_attempt_at = now()
    WHERE event_type = 'claimed again';
UPDATE outbox.event SET attempts = 1, last_error = 'nack', next_attempt_at = now() WHERE event_type = 'failed';
UPDATE outbox.event SET last_error = 'held: exchange "x" does not exist', next_attempt_at = now() WHERE event_type = 'missing exchange';
UPDATE outbox.event SET next_attempt_at = 'infinity' WHERE event_type = 'behind its key';
UPDATE outbox.event SET published_at = now(), attempts = 1, last_error = 'nack' WHERE event_type = 'sent';
UPDATE outbox.event SET dead_at = now(), outcome = 'dead' WHERE event_type = 'gave up';
UPDATE outbox.event SET dead_at = now(), outcome = 'rejected' WHERE event_type = 'refused';
UPDATE outbox.event SET dead_at = now(), outcome = 'discarded' WHERE event_type = 'thrown away';
UPDATE outbox.event SET dead_at = now() WHERE event_type = 'unknown end';
SELECT event_type, status FROM outbox.events ORDER BY seq;
SELECT event_type, message_id FROM outbox.events WHERE event_type IN ('fresh', 'named') ORDER BY seq;
-- It has every column of the table.
SELECT attname FROM pg_attribute WHERE attrelid = 'outbox.event'::regclass AND attnum > 0 AND NOT attisdropped
EXCEPT
SELECT attname FROM pg_attribute WHERE attrelid = 'outbox.events'::regclass AND attnum > 0;
TRUNCATE outbox.event;
