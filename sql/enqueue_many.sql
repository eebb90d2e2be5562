-- outbox.enqueue_many(): an array of events in one statement.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event;
RESET client_min_messages;

CREATE FUNCTION pg_temp.id(n int) RETURNS uuid LANGUAGE sql AS
    $$ SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid $$;
-- Events from JSON objects whose members are columns.
CREATE FUNCTION pg_temp.events(VARIADIC list jsonb[]) RETURNS outbox.event[] LANGUAGE sql AS $$
    SELECT array_agg(jsonb_populate_record(NULL::outbox.event, e) ORDER BY n) FROM unnest(list) WITH ORDINALITY AS l (e, n)
$$;

-- Ids in the order of the array, numbers too.
CREATE TEMP TABLE written AS
SELECT w.id, w.n FROM outbox.enqueue_many(ARRAY(
    SELECT jsonb_populate_record(NULL::outbox.event, jsonb_build_object('event_type', 'bulk ' || i, 'payload', 'x'))
    FROM generate_series(1, 1000) AS i ORDER BY i)) WITH ORDINALITY AS w (id, n);
SELECT count(*), count(DISTINCT e.id) AS ids, bool_and(e.event_type = 'bulk ' || w.n) AS in_order,
    max(e.seq) - min(e.seq) = 999 AS without_gaps, bool_and(e.seq - w.n = (SELECT min(seq) - 1 FROM outbox.event)) AS numbered_in_order
FROM written w JOIN outbox.event e USING (id);
TRUNCATE outbox.event;

-- NULL columns get the table's defaults, as a plain INSERT does; a number of attempts of 0 is one.
SELECT count(*) FROM outbox.enqueue_many(pg_temp.events('{"event_type": "defaults", "payload": "x", "attempts": 0}'));
SELECT source = current_database() AS source, content_type, occurred_at IS NOT NULL AS occurred, enqueued_at IS NOT NULL AS enqueued,
    attempts, next_attempt_at FROM outbox.event;

-- How to build the array. A payload goes into JSON as bytea, so that its bytes are its own.
SELECT count(*) FROM outbox.enqueue_many(ARRAY(
    SELECT jsonb_populate_record(NULL::outbox.event, jsonb_build_object(
        'event_type', 'built', 'key', o.id, 'payload', convert_to(to_jsonb(o)::text, 'UTF8'), 'attributes', '{"n": 1}'::jsonb))
    FROM (VALUES (1, E'back\\slash'), (2, E'line\nfeed')) AS o (id, note) ORDER BY o.id));
SELECT key, convert_from(payload, 'UTF8') AS payload, attributes FROM outbox.event WHERE event_type = 'built' ORDER BY seq;

-- Every column that producers write is taken.
SELECT outbox.enqueue_many(pg_temp.events('{"id": "00000000-0000-7000-8000-000000000001", "event_type": "all", "payload": "x", "key": "k",
    "destination": "d", "routing_key": "r", "attributes": {"h": 1}, "content_type": "ct", "source": "s", "message_id": "m",
    "available_at": "2999-01-01 00:00+00", "correlation_id": "co", "causation_id": "ca", "tracestate": "ts",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "reply_to": "rt", "priority": 9,
    "expiration": "1 minute", "occurred_at": "2001-02-03 04:05:06+00", "schema_version": 7, "schema_reference": {"r": 1},
    "source_event_id": "se", "source_position": 8, "content_encoding": "gzip"}'));
SELECT j.key, j.value FROM outbox.event e, jsonb_each_text(jsonb_strip_nulls(to_jsonb(e) - ARRAY['seq', 'enqueued_at'])) j
WHERE e.event_type = 'all' ORDER BY j.key COLLATE "C";

-- What is there already gives its id and is not written again; the same within an array.
TRUNCATE outbox.event;
SELECT outbox.enqueue('first', 'x', id => pg_temp.id(1), message_id => 'm1');
SELECT outbox.enqueue_many(pg_temp.events(
    '{"event_type": "new", "payload": "x", "id": "00000000-0000-7000-8000-000000000002"}',
    '{"event_type": "again", "payload": "x", "id": "00000000-0000-7000-8000-000000000001"}',
    '{"event_type": "again", "payload": "x", "message_id": "m1"}',
    '{"event_type": "twice", "payload": "x", "id": "00000000-0000-7000-8000-000000000003", "message_id": "m3"}',
    '{"event_type": "twice", "payload": "x", "message_id": "m3"}',
    '{"event_type": "twice", "payload": "x", "id": "00000000-0000-7000-8000-000000000003"}',
    '{"event_type": "last", "payload": "x", "id": "00000000-0000-7000-8000-000000000004", "message_id": "m1", "source": "other"}'));
SELECT event_type, id, source = current_database() AS here, message_id FROM outbox.event ORDER BY seq;

-- Nothing, and no array.
SELECT outbox.enqueue_many('{}');
SELECT outbox.enqueue_many(NULL);

-- Arrays need not begin at 1.
SELECT count(*) FROM outbox.enqueue_many(('[5:6]=' || pg_temp.events('{"event_type": "a", "payload": "x"}', '{"event_type": "b", "payload": "x"}')::text)::outbox.event[]);

-- What drainers write is refused, and so is what an INSERT refuses; nothing of the array is then written.
TRUNCATE outbox.event;
\set SHOW_CONTEXT never
SELECT outbox.enqueue_many(pg_temp.events('{"event_type": "a", "payload": "x"}', '{"event_type": "b", "payload": "x", "seq": 1, "attempts": 2}'));
CREATE FUNCTION pg_temp.refusal(member text, value text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM outbox.enqueue_many(pg_temp.events(jsonb_build_object('event_type', 'a', 'payload', 'x', member, value)));
    RETURN 'accepted';
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN SQLERRM;
END
$$;
SELECT pg_temp.refusal(key, value)
FROM json_each_text('{"seq": 1, "attempts": 1, "enqueued_at": "now", "next_attempt_at": "now", "last_error": "", "claimed_at": "now",
    "claimed_by": "", "published_at": "now", "dead_at": "now", "outcome": "dead", "error_code": ""}');
\set VERBOSITY terse
SELECT outbox.enqueue_many(pg_temp.events('{"event_type": "a", "payload": "x"}', '{"event_type": "b", "payload": "x", "priority": 300}'));
SELECT outbox.enqueue_many(pg_temp.events('{"event_type": "a"}'));
SELECT outbox.enqueue_many(ARRAY[NULL::outbox.event]);
\set VERBOSITY default
SELECT count(*) FROM outbox.event;

-- Neither stored nor there: an end to trying.
CREATE FUNCTION pg_temp.swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER swallow BEFORE INSERT ON outbox.event FOR EACH ROW WHEN (NEW.event_type = 'b') EXECUTE FUNCTION pg_temp.swallow();
SELECT outbox.enqueue_many(pg_temp.events('{"event_type": "a", "payload": "x"}', '{"event_type": "b", "payload": "x"}'));
DROP TRIGGER swallow ON outbox.event;

-- INSERT is all the right that it takes, in any search_path.
CREATE ROLE regress_outbox_bulk;
SELECT array_agg(e) AS events FROM unnest(pg_temp.events('{"event_type": "a", "payload": "x", "message_id": "m"}', '{"event_type": "a", "payload": "x"}')) AS e \gset
SET ROLE regress_outbox_bulk;
SELECT outbox.enqueue_many(:'events');
RESET ROLE;
GRANT INSERT ON outbox.event TO regress_outbox_bulk;
SET ROLE regress_outbox_bulk;
SET search_path = '';
SELECT pg_catalog.count(*) FROM outbox.enqueue_many(:'events');
SELECT pg_catalog.count(*) FROM outbox.enqueue_many(:'events');
RESET search_path;
RESET ROLE;
SELECT count(*), count(message_id) AS named FROM outbox.event;
REVOKE INSERT ON outbox.event FROM regress_outbox_bulk;
DROP ROLE regress_outbox_bulk;
TRUNCATE outbox.event;
