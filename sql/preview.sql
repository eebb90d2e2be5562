-- outbox.preview(): the message for an event, or why there will be none.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event;
RESET client_min_messages;

CREATE FUNCTION pg_temp.id(n int) RETURNS uuid LANGUAGE sql AS
    $$ SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid $$;

INSERT INTO outbox.event (id, source, event_type, payload, occurred_at) VALUES (pg_temp.id(1), 'shop', 'least', 'x', NULL);
SELECT jsonb_pretty(outbox.preview(pg_temp.id(1)));

INSERT INTO outbox.event (id, source, message_id, destination, event_type, routing_key, key, payload, content_type,
    content_encoding, schema_version, schema_reference, attributes, source_event_id, source_position, occurred_at,
    causation_id, correlation_id, reply_to, traceparent, tracestate, priority, expiration)
VALUES (pg_temp.id(2), 'shop', 'm "1"', 'orders', 'order.placed', 'eu.order', 'k', '{"n": [1, 2.50]}', 'application/json; charset=utf-8',
    'identity', 3, '{"registry": "main"}', '{"text": "Grüße \\ \n", "list": [1, 2.5, 1e20, null, true, {"a": []}]}', 'evt-9', 17,
    '2001-02-03 04:05:06.7+00', 'cause', 'corr', 'answers', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', 'a=b', 9, '1 minute');
SELECT jsonb_pretty(outbox.preview(pg_temp.id(2)));

-- The body: parsed where it is JSON, else text, else base64.
INSERT INTO outbox.event (id, event_type, payload, content_type)
SELECT pg_temp.id(9 + (row_number() OVER ())::int), 'body', payload::bytea, type FROM (VALUES
    (convert_to('{"a": 1}', 'UTF8'), 'application/json'),
    (convert_to('[]', 'UTF8'), 'application/cloudevents+JSON;charset=utf-8'),
    (convert_to('{"a": 1', 'UTF8'), 'application/json'),
    (convert_to('{"a": "\u0000"}', 'UTF8'), 'application/json'),
    (convert_to('{"a": 1}', 'UTF8'), 'text/plain'),
    (convert_to('{"a": 1}', 'UTF8'), NULL),
    (convert_to('Grüße', 'UTF8'), 'text/plain'),
    ('', 'application/json'),
    ('', 'text/plain'),
    ('\x00', 'text/plain'),
    ('\xff', 'application/json'),
    ('\x61ff', 'application/octet-stream'),
    ('\x6162ff', 'application/octet-stream'),
    ('\x616263ff', 'application/octet-stream')
) AS v (payload, type);
SELECT content_type, payload = decode(p->>'body_base64', 'base64') AS decodes, p->>'body_size' AS size, p->'body' AS body,
    p->>'body_base64' AS base64
FROM outbox.event e, outbox.preview(e.id) p WHERE event_type = 'body' ORDER BY seq;
-- JSON that nothing can parse for its depth.
SET max_stack_depth = '100kB';
INSERT INTO outbox.event (id, event_type, payload) VALUES (pg_temp.id(50), 'deep', convert_to(repeat('[', 100000), 'UTF8'));
SELECT jsonb_typeof(outbox.preview(pg_temp.id(50))->'body');
RESET max_stack_depth;

-- The exchange and mandatory: the event's, the relay's, the server's.
CREATE FUNCTION pg_temp.address(n int) RETURNS text LANGUAGE sql AS
    $$ SELECT format('%s %s', p->'exchange', p->'mandatory') FROM outbox.preview(pg_temp.id(n)) p $$;
SET outbox_drainer.exchange = 'of the server';
SELECT pg_temp.address(1), pg_temp.address(2);
SET outbox_drainer.mandatory = on;
SELECT pg_temp.address(1), pg_temp.address(2);
RESET outbox_drainer.mandatory;
BEGIN;
UPDATE outbox.relay SET exchange = 'of the relay', mandatory = true;
SELECT pg_temp.address(1), pg_temp.address(2);
ROLLBACK;
RESET outbox_drainer.exchange;

-- One that is refused.
INSERT INTO outbox.event (id, seq, event_type, payload, priority) VALUES (pg_temp.id(3), -1, 'a', '', 300);
INSERT INTO outbox.event (id, seq, event_type, payload, attributes) VALUES (pg_temp.id(4), -2, 'a', '', '{"outbox-\"": 1}');
SELECT outbox.preview(pg_temp.id(3)), outbox.preview(pg_temp.id(4));

-- No event.
\set SHOW_CONTEXT never
SELECT outbox.preview(pg_temp.id(99));
SELECT outbox.preview(NULL);

-- Those who watch may, others not.
CREATE ROLE regress_outbox_watcher IN ROLE pg_monitor;
CREATE ROLE regress_outbox_other;
SET ROLE regress_outbox_watcher;
SELECT outbox.preview('00000000-0000-7000-8000-000000000001')->>'exchange' AS exchange;
SET ROLE regress_outbox_other;
SELECT outbox.preview('00000000-0000-7000-8000-000000000001');
SELECT outbox.preview_message('00000000-0000-7000-8000-000000000001');
RESET ROLE;
DROP ROLE regress_outbox_watcher, regress_outbox_other;
TRUNCATE outbox.event;
