-- What a producer is refused: each limit of AMQP, of RabbitMQ and of the settings, in the transaction that
-- makes the mistake.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event;
RESET client_min_messages;

-- What the error says.
\set SHOW_CONTEXT never
DO $$
DECLARE
    state text; message text; hint text; relation text; code text;
BEGIN
    INSERT INTO outbox.event (event_type, routing_key, payload) VALUES ('a', repeat('k', 256), '');
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT,
        relation = TABLE_NAME, code = CONSTRAINT_NAME;
    RAISE NOTICE E'%\n%\n%\n% %', state, message, hint, relation, code;
END
$$;

-- Inserts an event with one member of `columns` more or other than usual, and says how that went.
CREATE FUNCTION pg_temp.try(columns jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    names text := (SELECT string_agg(quote_ident(key), ', ') FROM jsonb_object_keys('{"event_type": 1, "payload": 1}' || columns) AS key);
    message text; state text; hint text; code text;
BEGIN
    EXECUTE format('INSERT INTO outbox.event (%s) SELECT %1$s FROM jsonb_populate_record(NULL::outbox.event, $1)', names)
        USING '{"event_type": "a", "payload": "x"}' || columns;
    RETURN 'accepted';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT, code = CONSTRAINT_NAME;
    RETURN format(E'%s %s\n%s\nHINT: %s', state, code, regexp_replace(message, '(.)\1{20,}', '\1...'), hint);
END
$$;
-- The same for a text column of so many bytes.
CREATE FUNCTION pg_temp.bytes(col text, size int) RETURNS text LANGUAGE sql AS
    $$ SELECT pg_temp.try(jsonb_build_object(col, repeat('x', size))) $$;
\pset format unaligned
\pset tuples_only on

-- Texts have 255 bytes, and each says its name.
SELECT col, pg_temp.bytes(col, 255), pg_temp.bytes(col, 256)
FROM unnest(ARRAY['destination', 'routing_key', 'event_type', 'message_id', 'source', 'content_type', 'content_encoding',
    'correlation_id', 'reply_to']) AS col;
SELECT pg_temp.try(jsonb_build_object('routing_key', 'r', 'event_type', repeat('x', 256)));
SELECT pg_temp.try(jsonb_build_object('routing_key', repeat('é', 127))), pg_temp.try(jsonb_build_object('routing_key', repeat('é', 128)));
SELECT pg_temp.bytes('key', 1024), pg_temp.bytes('key', 1025);

-- An event needs a routing key.
SELECT pg_temp.try('{"event_type": null}'), pg_temp.try('{"event_type": null, "routing_key": ""}');

-- Numbers and times.
SELECT value, pg_temp.try(jsonb_build_object('priority', value)) FROM unnest(ARRAY[0, 255, -1, 256]) AS value;
SELECT value, pg_temp.try(jsonb_build_object('expiration', value))
FROM unnest(ARRAY['0', '1.5 ms', '3650 days', '-1 ms', '3650 days 1 ms', '-1 month 29 days', '178000000 years']) AS value;
SELECT value, pg_temp.try(jsonb_build_object('occurred_at', value))
FROM unnest(ARRAY['1970-01-01 00:00+00', '1969-12-31 23:59:59.999999+00', 'infinity', '-infinity']) AS value;

-- Headers.
SELECT value, pg_temp.try(jsonb_build_object('attributes', value::jsonb))
FROM unnest(ARRAY['{}', '{"a": {"outbox-b": [1, null, true, 1.5, "x"]}}', '{"CC": ["a"]}', '[]', '"x"', '1',
    '{"outbox-key": 1}', '{"a": 1e400}', '{"CC": "a"}', '{"BCC": null}']) AS value;
\set VERBOSITY terse
INSERT INTO outbox.event (event_type, payload, attributes) VALUES ('a', '', 'null');
\set VERBOSITY default
SELECT pg_temp.try(jsonb_build_object('attributes', jsonb_build_object(repeat('h', 255), 1))),
    pg_temp.try(jsonb_build_object('attributes', jsonb_build_object('a', jsonb_build_object(repeat('h', 256), 1))));
SELECT depth, pg_temp.try(jsonb_build_object('attributes', (repeat('{"a":', depth) || '1' || repeat('}', depth))::jsonb)),
    pg_temp.try(jsonb_build_object('schema_reference', (repeat('[', depth) || '1' || repeat(']', depth))::jsonb))
FROM unnest(ARRAY[64, 65]) AS depth;

-- All that goes into the one frame of the properties.
SELECT pg_temp.try(jsonb_build_object('attributes', jsonb_build_object('a', repeat('x', 130900)))),
    pg_temp.try(jsonb_build_object('attributes', jsonb_build_object('a', repeat('x', 131000))));
SELECT col, pg_temp.bytes(col, 130900), pg_temp.bytes(col, 131000)
FROM unnest(ARRAY['tracestate', 'causation_id', 'source_event_id']) AS col;

-- The trace context.
SELECT value, pg_temp.try(jsonb_build_object('traceparent', value))
FROM unnest(ARRAY['00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', '', 'x',
    '01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', '00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01',
    '00-00000000000000000000000000000000-b7ad6b7169203331-01', '00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01',
    '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x',
    '00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', repeat('0', 200)]) AS value;

-- The body, whose limit is a setting, however it is stored.
SET outbox_drainer.max_message_bytes = '10kB';
SELECT pg_temp.bytes('payload', 10240), pg_temp.bytes('payload', 10241);
CREATE TEMP TABLE stored (payload bytea);
ALTER TABLE stored ALTER payload SET STORAGE EXTERNAL;
INSERT INTO stored VALUES (decode(repeat('78', 10240), 'hex')), (decode(repeat('78', 10241), 'hex'));
INSERT INTO outbox.event (event_type, payload) SELECT 'stored', payload FROM stored WHERE length(payload) = 10240;
\set VERBOSITY terse
INSERT INTO outbox.event (event_type, payload) SELECT 'stored', payload FROM stored;
RESET outbox_drainer.max_message_bytes;

-- However an event is written.
\set SHOW_CONTEXT never
SELECT outbox.enqueue('a', 'x', priority => 300);
COPY outbox.event (event_type, payload, priority) FROM stdin;
a	x	300
\.
SET session_replication_role = replica;
INSERT INTO outbox.event (event_type, payload, priority) VALUES ('a', '', 300);
RESET session_replication_role;
-- A trigger of the producer's that comes first is heard.
CREATE FUNCTION pg_temp.cure() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.priority := 9; RETURN NEW; END';
CREATE TRIGGER cure BEFORE INSERT ON outbox.event FOR EACH ROW EXECUTE FUNCTION pg_temp.cure();
INSERT INTO outbox.event (event_type, payload, priority) VALUES ('a', '', 300) RETURNING priority;
DROP TRIGGER cure ON outbox.event;

-- Not what was an event already: a restored dump, or a history that is moved. The table's own checks remain.
INSERT INTO outbox.event (seq, event_type, payload, priority) VALUES (-1, 'a', '', 300) RETURNING 'accepted';
INSERT INTO outbox.event (event_type, payload, priority, published_at) VALUES ('a', '', 300, now()) RETURNING 'accepted';
INSERT INTO outbox.event (event_type, payload, priority, dead_at, outcome) VALUES ('a', '', 300, now(), 'rejected') RETURNING 'accepted';
INSERT INTO outbox.event (seq, event_type, payload, key) VALUES (-2, 'a', '', repeat('k', 1025));
INSERT INTO outbox.event (seq, event_type, payload, source) VALUES (-2, 'a', '', repeat('k', 1025));
TRUNCATE outbox.event;
