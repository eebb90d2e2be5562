-- outbox.enqueue(): its four payloads, its defaults, and that it writes an event once.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event;
RESET client_min_messages;

CREATE FUNCTION pg_temp.show(wanted uuid) RETURNS SETOF text LANGUAGE sql AS $$
    SELECT format('%s: %s', j.key, j.value)
    FROM outbox.event e, jsonb_each_text(jsonb_strip_nulls(to_jsonb(e)
        - ARRAY['seq', 'id', 'enqueued_at', 'occurred_at', 'payload'])) AS j
    WHERE e.id = wanted
    UNION ALL
    SELECT 'payload: ' || convert_from(payload, 'UTF8') FROM outbox.event WHERE id = wanted
$$;

-- A literal is text.
SELECT pg_temp.show(outbox.enqueue('a', '{"x": 1.0, "x": 2}'));
SELECT pg_temp.show(outbox.enqueue('a', 'plain words'));
SELECT pg_temp.show(outbox.enqueue('a', ''));
SELECT pg_temp.show(outbox.enqueue('a', '"text"'::varchar));
SELECT pg_temp.show(outbox.enqueue('a', '{"x": 1', content_type => 'text/css'));
SELECT pg_temp.show(outbox.enqueue('a', '{"x": 1.0, "x": 2}'::jsonb));
SELECT pg_temp.show(outbox.enqueue('a', '{"x": 1.0, "x": 2}'::json));
SELECT pg_temp.show(outbox.enqueue('a', jsonb '1', content_type => 'application/vnd.shop+json'));
SELECT pg_temp.show(outbox.enqueue('a', '\x7b7d'::bytea));
SELECT pg_temp.show(outbox.enqueue('a', '\x7b7d'::bytea, content_type => 'application/json'));
SELECT outbox.guess_content_type(t) , t
FROM unnest(ARRAY['null', ' [1, {"a": "\u0000"}] ', '01', '{a: 1}', '[1,]', '"', '1 2']) AS t;

-- Every argument reaches its column.
SELECT pg_temp.show(outbox.enqueue(
    event_type => 'order.placed', payload => '[]', key => 'k', destination => 'd', routing_key => 'r',
    attributes => '{"h": 1}', content_type => 'ct', source => 's', message_id => 'm',
    id => '00000000-0000-7000-8000-000000000002', available_at => '2001-01-01 00:00:00+00',
    correlation_id => 'co', causation_id => 'ca', traceparent => '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', tracestate => 'ts', reply_to => 'rt',
    priority => 9, expiration => '1 minute', occurred_at => '2001-02-03 04:05:06+00', schema_version => 7,
    schema_reference => '{"r": 1}', source_event_id => 'se', source_position => 8,
    content_encoding => 'gzip'));
SELECT occurred_at = '2001-02-03 04:05:06+00' AS occurred FROM outbox.event
WHERE id = '00000000-0000-7000-8000-000000000002';

-- By default the time is now, and NULL is as good as left out.
BEGIN;
SELECT outbox.enqueue('now', '', occurred_at => NULL, source => NULL, id => NULL, content_type => NULL) IS NOT NULL AS enqueued;
SELECT occurred_at BETWEEN now() AND clock_timestamp() AS occurred, enqueued_at BETWEEN now() AND clock_timestamp() AS enqueued,
    source = current_database() AS source, id IS NOT NULL AS id, content_type
FROM outbox.event WHERE event_type = 'now';
COMMIT;

-- What cannot be stored is an error.
\set VERBOSITY terse
SELECT outbox.enqueue('a', NULL);
SELECT outbox.enqueue('a', 'x', priority => 40000);
SELECT outbox.enqueue('a', 'x', key => repeat('k', 1025));
SELECT outbox.enqueue('a', 'x', key => repeat('k', 1024)) IS NOT NULL AS enqueued;
SELECT outbox.enqueue('a', 'x', source => repeat('s', 1025));
\set VERBOSITY default

-- An id, or a source and message_id, is written once. The id decides where both are known.
TRUNCATE outbox.event;
SELECT outbox.enqueue('first', 'x', id => '00000000-0000-7000-8000-00000000000a', message_id => 'm1');
SELECT outbox.enqueue('again', 'x', id => '00000000-0000-7000-8000-00000000000a');
SELECT outbox.enqueue('again', 'x', message_id => 'm1');
SELECT outbox.enqueue('again', 'x', id => '00000000-0000-7000-8000-00000000000b', message_id => 'm1');
SELECT outbox.enqueue('other source', 'x', id => '00000000-0000-7000-8000-00000000000c', message_id => 'm1', source => 's');
SELECT outbox.enqueue('again', 'x', id => '00000000-0000-7000-8000-00000000000c', message_id => 'm1');
SELECT event_type, id, source, message_id FROM outbox.event ORDER BY seq;
BEGIN;
SELECT outbox.enqueue('twice', 'x', message_id => 'm2') = outbox.enqueue('twice', 'x', message_id => 'm2') AS same;
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT outbox.enqueue('visible', 'x', message_id => 'm1');
COMMIT;
-- In a plain INSERT it is a unique violation.
INSERT INTO outbox.event (event_type, payload, id) VALUES ('again', '', '00000000-0000-7000-8000-00000000000a');
INSERT INTO outbox.event (event_type, payload, message_id) VALUES ('again', '', 'm1');

-- Neither stored nor there: an end to trying.
CREATE FUNCTION pg_temp.swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER swallow BEFORE INSERT ON outbox.event FOR EACH ROW EXECUTE FUNCTION pg_temp.swallow();
\set SHOW_CONTEXT never
SELECT outbox.enqueue('a', 'x');
DROP TRIGGER swallow ON outbox.event;

-- A unique index of one's own is violated as by a plain INSERT; where a duplicate is possible it is an end to trying.
CREATE UNIQUE INDEX own ON outbox.event (correlation_id);
SELECT outbox.enqueue('a', 'x', correlation_id => 'c') IS NOT NULL AS enqueued;
SELECT outbox.enqueue('a', 'x', correlation_id => 'c');
SELECT outbox.enqueue('a', 'x', correlation_id => 'c', message_id => 'm3');
DROP INDEX outbox.own;

-- The caller's search_path decides nothing here, but holds for the triggers that others put on the table.
CREATE SCHEMA regress_hostile;
CREATE FUNCTION regress_hostile.equal(uuid, uuid) RETURNS boolean LANGUAGE plpgsql AS
    'BEGIN RAISE EXCEPTION ''hostile operator called''; END';
CREATE OPERATOR regress_hostile.= (LEFTARG = uuid, RIGHTARG = uuid, FUNCTION = regress_hostile.equal);
CREATE FUNCTION regress_hostile.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$SELECT '-infinity'::timestamptz$$;
CREATE FUNCTION regress_hostile.greeting() RETURNS text LANGUAGE sql AS $$SELECT 'from the search_path'$$;
CREATE FUNCTION regress_hostile.greet() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN NEW.tracestate := greeting(); RETURN NEW; END';
CREATE TRIGGER greet BEFORE INSERT ON outbox.event FOR EACH ROW EXECUTE FUNCTION regress_hostile.greet();
SET search_path = regress_hostile, pg_catalog;
SELECT outbox.enqueue('again', 'x', id => '00000000-0000-7000-8000-00000000000a');
SELECT outbox.enqueue('hostile', 'x') IS NOT NULL AS enqueued;
SELECT isfinite(occurred_at), tracestate FROM outbox.event WHERE event_type = 'hostile';
RESET search_path;
DROP TRIGGER greet ON outbox.event;
SET client_min_messages = error;
DROP SCHEMA regress_hostile CASCADE;
