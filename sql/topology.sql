-- What is asked of the broker: what is refused before it is. test/t/221_topology.pl asks a real one.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event, outbox.relay_state, outbox.operation;
RESET client_min_messages;
\set SHOW_CONTEXT never

-- Errors without what differs from run to run.
CREATE FUNCTION pg_temp.try(command text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    detail text;
    hint text;
BEGIN
    EXECUTE 'SELECT ' || command;
    RETURN 'done';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RETURN concat_ws(E'\n', SQLSTATE || ': ' || SQLERRM, nullif(regexp_replace(detail, '^(At present|For this database) .*', '\1 ...'), ''), nullif(hint, ''));
END
$$;
\pset format unaligned
\pset tuples_only on

-- Names.
SELECT pg_temp.try($$outbox.declare_exchange(NULL)$$);
SELECT pg_temp.try($$outbox.declare_exchange('')$$);
SELECT pg_temp.try($$outbox.declare_exchange(repeat('ä', 128))$$);
SELECT pg_temp.try($$outbox.declare_queue(NULL)$$);
SELECT pg_temp.try($$outbox.declare_queue('')$$);
SELECT pg_temp.try($$outbox.declare_queue(repeat('q', 256))$$);
SELECT pg_temp.try($$outbox.declare_queue('q', exchange => '')$$);

-- Types.
SELECT pg_temp.try($$outbox.declare_exchange('x', NULL)$$);
SELECT pg_temp.try($$outbox.declare_exchange('x', 'topik')$$);
SELECT pg_temp.try($$outbox.declare_exchange('x', 'x-')$$);
SELECT pg_temp.try($$outbox.declare_exchange('x', 'x-' || repeat('t', 254))$$);

-- Arguments.
SELECT pg_temp.try($$outbox.declare_queue('q', arguments => '[1]')$$);
SELECT pg_temp.try($$outbox.declare_queue('q', arguments => '1')$$);
SELECT pg_temp.try($$outbox.declare_queue('q', arguments => '{"x-expires": 1e400}')$$);
SELECT pg_temp.try(format('outbox.declare_queue(%L, arguments => %L)', 'q', jsonb_build_object(repeat('k', 256), 1)));
SELECT pg_temp.try(format('outbox.declare_queue(%L, arguments => %L)', 'q', jsonb_build_object('k', repeat('v', 3100))));
SELECT pg_temp.try(format('outbox.declare_queue(%L, arguments => %L)', 'q', repeat('{"a":', 100) || '1' || repeat('}', 100)));

-- Times.
SELECT pg_temp.try($$outbox.declare_exchange('x', timeout => '-1 s')$$);
SELECT pg_temp.try($$outbox.declare_queue('x', timeout => NULL)$$);
SELECT pg_temp.try($$outbox.check_topology(timeout => '-1 s')$$);

-- Nobody is there to ask.
SELECT pg_temp.try($$outbox.check_topology()$$);
SELECT pg_temp.try($$outbox.declare_exchange('x')$$);
SELECT pg_temp.try($$outbox.declare_queue('q', exchange => 'x', arguments => '{"x-queue-type": "quorum", "x-max-length": 10}')$$);
SELECT pg_temp.try($$outbox.check_topology('nowhere')$$);
BEGIN READ ONLY;
SELECT pg_temp.try($$outbox.declare_exchange('x')$$);
COMMIT;
SELECT count(*) FROM outbox.operation;

-- The function beneath.
SELECT pg_temp.try($$outbox.ask_broker('delete_queue', '', 'q', '', '', true, false, false, NULL, now())$$);
SELECT pg_temp.try($$outbox.ask_broker(NULL, '', 'q', '', '', true, false, false, NULL, now())$$);
SELECT * FROM outbox.ask_broker('queue_exists', NULL, 'q', NULL, NULL, NULL, NULL, NULL, NULL, now());

-- What the broker says as errors.
SELECT pg_temp.try(format('outbox.refuse_by_broker(%L, %s, %L)', 'declare queue "q"', c.code, c.reason))
FROM (VALUES (403, 'ACCESS_REFUSED - no'), (404, 'NOT_FOUND - no exchange'), (405, 'RESOURCE_LOCKED'), (503, 'COMMAND_INVALID'),
    (406, 'PRECONDITION_FAILED - inequivalent arg ''type'''), (406, 'PRECONDITION_FAILED - invalid arg'), (999, NULL)) AS c (code, reason);
SELECT pg_temp.try(format('outbox.refuse_unanswered(%L, %L, %L, %L)', o.outcome, 'gone', interval '1 s', o.acting))
FROM (VALUES ('nobody', true), ('crowded', true), ('timed_out', false), ('timed_out', true), ('connection_lost', true),
    ('drainer_ended', false)) AS o (outcome, acting);

-- Destinations: the exchange of the relay, those of events that wait, of deferred and of recent ones; not of dead ones.
SELECT * FROM outbox.destinations_in_use('default');
INSERT INTO outbox.event (event_type, payload, destination, routing_key) VALUES
    ('a', '', NULL, NULL), ('b', '', 'events', 'k'), ('c', '', 'old', NULL), ('d', '', 'sent', NULL), ('e', '', 'dead', NULL),
    ('q1', '', '', NULL), ('f', '', '', 'q2'), ('f', '', '', 'q2'), ('g', '', 'deferred', NULL);
UPDATE outbox.event SET published_at = now() WHERE event_type IN ('c', 'd');
UPDATE outbox.event SET dead_at = now(), outcome = 'dead' WHERE event_type = 'e';
UPDATE outbox.event SET next_attempt_at = 'infinity' WHERE event_type = 'g';
SELECT * FROM outbox.destinations_in_use('default');
SELECT outbox.alter_relay(exchange => '');
SELECT * FROM outbox.destinations_in_use('default') WHERE destination = '' ORDER BY routing_key;
SELECT outbox.alter_relay(reset => '{exchange}');
-- A bounded part is looked at: the first that are not done, the deferred, the last.
INSERT INTO outbox.event (event_type, payload, destination) SELECT 'h', '', 'middle' FROM generate_series(1, 10000);
INSERT INTO outbox.event (event_type, payload, destination) SELECT 'h', '', 'new' FROM generate_series(1, 10000);
SELECT * FROM outbox.destinations_in_use('default');
INSERT INTO outbox.relay_state (relay, floor) SELECT 'default', max(seq) - 10000 FROM outbox.event;
SELECT * FROM outbox.destinations_in_use('default');
TRUNCATE outbox.event, outbox.relay_state;
