-- outbox.validate(): the trigger's verdict on rows that it does not check, and on rows that are not written yet.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event;
RESET client_min_messages;

INSERT INTO outbox.event (seq, event_type, routing_key, payload, priority, attributes, traceparent) VALUES
    (-1, 'good', NULL, '', 0, '{"a": 1}', NULL),
    (-2, 'long', repeat('k', 256), '', NULL, NULL, NULL),
    (-3, 'priority', NULL, '', 256, NULL, NULL),
    (-4, 'attributes', NULL, '', NULL, '[]', NULL),
    (-5, 'reserved', NULL, '', NULL, '{"outbox-id": 1}', NULL),
    (-6, 'trace', NULL, '', NULL, NULL, 'x'),
    (-7, NULL, NULL, '', NULL, NULL, NULL);
SELECT e.seq, e.event_type, v.* FROM outbox.event e, outbox.validate(e) v ORDER BY e.seq DESC;
SELECT e.event_type FROM outbox.event e WHERE (outbox.validate(e)).error_code IS NULL;

-- Of an event that is yet to be written, NULL of no event.
SELECT * FROM outbox.validate(jsonb_populate_record(NULL::outbox.event, '{"event_type": "a", "payload": "x"}'));
SELECT * FROM outbox.validate(jsonb_populate_record(NULL::outbox.event, '{"event_type": "a", "expiration": "-1 s"}'));
SELECT * FROM outbox.validate(NULL);

-- The limit of the body is the setting of the moment.
SET outbox_drainer.max_message_bytes = '1kB';
SELECT v.* FROM outbox.validate(jsonb_populate_record(NULL::outbox.event, jsonb_build_object('event_type', 'a', 'payload', repeat('x', 1025)))) v;
RESET outbox_drainer.max_message_bytes;

-- The table can change while a function remembers it.
CREATE FUNCTION pg_temp.verdict() RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT v.error_code FROM outbox.event e, outbox.validate(e) v WHERE e.seq = -3;
END
$$;
SELECT pg_temp.verdict();
ALTER TABLE outbox.event ADD COLUMN mine text;
SELECT pg_temp.verdict();
ALTER TABLE outbox.event DROP COLUMN mine;
SELECT pg_temp.verdict();

-- Everybody may ask; what needs a right is reading the table.
CREATE ROLE regress_outbox_asker;
SET ROLE regress_outbox_asker;
SELECT * FROM outbox.validate(jsonb_populate_record(NULL::outbox.event, '{"priority": 1}'));
RESET ROLE;
DROP ROLE regress_outbox_asker;
TRUNCATE outbox.event;
