-- A producer needs INSERT on outbox.event and nothing else; PUBLIC can do nothing with the data.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event, outbox.operation;
RESET client_min_messages;

\set SHOW_CONTEXT never
CREATE ROLE regress_outbox_producer;
CREATE ROLE regress_outbox_stranger;
CREATE ROLE regress_outbox_monitor;
GRANT INSERT ON outbox.event TO regress_outbox_producer;
GRANT pg_monitor TO regress_outbox_monitor;

SELECT r.rolname, has_schema_privilege(r.rolname, 'outbox', 'USAGE') AS usage,
    has_schema_privilege(r.rolname, 'outbox', 'CREATE') AS create
FROM pg_roles r WHERE r.rolname ~ '^regress_outbox_(producer|stranger)$' ORDER BY 1;

-- What everybody can do.
SELECT c.relname, p.privilege
FROM pg_class c
CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS p (privilege)
WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'v')
    AND has_table_privilege('regress_outbox_stranger', c.oid, p.privilege)
ORDER BY 1, 2;
SELECT p.privilege FROM unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) AS p (privilege)
WHERE has_sequence_privilege('regress_outbox_stranger', 'outbox.event_seq', p.privilege);
SELECT DISTINCT proname FROM pg_proc
WHERE pronamespace = 'outbox'::regnamespace AND has_function_privilege('regress_outbox_stranger', oid, 'EXECUTE')
ORDER BY 1;
-- What those who watch can do beside.
SELECT proname FROM pg_proc
WHERE pronamespace = 'outbox'::regnamespace AND has_function_privilege('regress_outbox_monitor', oid, 'EXECUTE')
    AND NOT has_function_privilege('regress_outbox_stranger', oid, 'EXECUTE')
ORDER BY 1;

-- The producer, with a search_path that helps nobody.
SET ROLE regress_outbox_producer;
SET search_path = '';
INSERT INTO outbox.event (event_type, payload) VALUES ('order.placed', '{"n": 1}');
INSERT INTO outbox.event (event_type, payload) SELECT 'order.placed', '{"n": 2}' FROM pg_catalog.generate_series(1, 2);
COPY outbox.event (event_type, payload) FROM stdin;
order.placed	{"n": 3}
\.
SELECT outbox.enqueue('order.placed', '{"n": 4}') IS NOT NULL AS enqueued;
SELECT outbox.enqueue('order.placed', pg_catalog.jsonb_build_object('n', 5)) IS NOT NULL AS enqueued;
SELECT outbox.enqueue('order.placed', '\x6e36'::pg_catalog.bytea) IS NOT NULL AS enqueued;
SELECT outbox.enqueue('order.placed', 'x', id => '00000000-0000-7000-8000-000000000001', message_id => 'm-1');
SELECT outbox.enqueue('order.placed', 'x', id => '00000000-0000-7000-8000-000000000001');
SELECT outbox.enqueue('order.placed', 'x', message_id => 'm-1');
SELECT outbox.uuid_v7() IS NOT NULL AS minted, outbox.typeid('order') IS NOT NULL AS named;
SELECT pg_catalog.count(*) FROM outbox.event;
UPDATE outbox.event SET published_at = pg_catalog.now();
DELETE FROM outbox.event;
SELECT pg_catalog.count(*) FROM outbox.events;
SELECT pg_catalog.nextval('outbox.event_seq');
SELECT * FROM outbox.backlog();
SELECT * FROM outbox.stat_drainer;
SELECT * FROM outbox.settings_check();
SELECT outbox.wake();
CREATE TABLE outbox.mine ();
RESET search_path;

-- Nor does a producer act on events and relays.
SELECT outbox.requeue('00000000-0000-7000-8000-000000000001');
SELECT outbox.requeue_dead();
SELECT outbox.requeue_stuck();
SELECT outbox.discard('00000000-0000-7000-8000-000000000001', 'x');
SELECT outbox.pause();
SELECT outbox.resume();
SELECT outbox.alter_relay(batch_size => 1);
SELECT * FROM outbox.maintain();
SELECT outbox.flush();
SELECT outbox.wait_published('00000000-0000-7000-8000-000000000001');
SELECT * FROM outbox.get('00000000-0000-7000-8000-000000000001');
SELECT * FROM outbox.stuck();
SELECT * FROM outbox.relay_settings();
SELECT pg_catalog.count(*) FROM outbox.pending;
SELECT pg_catalog.count(*) FROM outbox.failed;
SELECT pg_catalog.count(*) FROM outbox.dead;
SELECT pg_catalog.count(*) FROM outbox.operation;
SELECT outbox.act_as_owner();
SELECT * FROM outbox.check_topology();
SELECT outbox.declare_exchange('x');
SELECT outbox.declare_queue('q');
SELECT outbox.ask_broker('exchange_exists', 'x', '', '', '', true, false, false, NULL, now());

-- Without INSERT nothing is written and nothing is learnt.
SET ROLE regress_outbox_stranger;
INSERT INTO outbox.event (event_type, payload) VALUES ('order.placed', '{}');
SELECT outbox.enqueue('order.placed', '{}');
SELECT outbox.find_duplicate('00000000-0000-7000-8000-000000000001', NULL, NULL);

SET ROLE regress_outbox_monitor;
SELECT relay, pending, publishing, failed, dead FROM outbox.backlog();
SELECT count(*) >= 0 AS readable FROM outbox.stat_drainer;
SELECT count(*) > 0 AS readable FROM outbox.settings_check();
SELECT count(*) FROM outbox.pending;
SELECT count(*) FROM outbox.failed;
SELECT count(*) FROM outbox.dead;
SELECT count(*) >= 0 AS readable FROM outbox.operation;
SELECT event_type, status FROM outbox.get('00000000-0000-7000-8000-000000000001');
SELECT count(*) FROM outbox.stuck('0');
SELECT name, value FROM outbox.relay_settings() WHERE name = 'ordering';
SELECT payload FROM outbox.event;
SELECT outbox.pause();
SELECT * FROM outbox.check_topology();

-- Who may act and nothing else: with EXECUTE on that function alone.
RESET ROLE;
CREATE ROLE regress_outbox_operator;
GRANT EXECUTE ON FUNCTION outbox.discard, outbox.requeue, outbox.requeue_dead, outbox.requeue_stuck, outbox.pause,
    outbox.resume, outbox.maintain, outbox.flush, outbox.wait_published, outbox.check_topology, outbox.declare_exchange,
    outbox.declare_queue TO regress_outbox_operator;
SET ROLE regress_outbox_operator;
SET search_path = '';
SELECT outbox.pause();
SELECT outbox.resume();
SELECT outbox.discard('00000000-0000-7000-8000-000000000001', 'x') OPERATOR(pg_catalog.~) '^discarded' AS discarded;
SELECT outbox.requeue('00000000-0000-7000-8000-000000000001') OPERATOR(pg_catalog.~) '^requeued' AS requeued;
SELECT outbox.requeue_dead();
SELECT outbox.requeue_stuck();
SELECT requeued FROM outbox.maintain();
SELECT outbox.flush('0') OPERATOR(pg_catalog.>) 0 AS left_over;
SELECT outbox.wait_published('00000000-0000-7000-8000-000000000001', '0');
-- As far as there is anybody to ask.
\set VERBOSITY terse
SELECT * FROM outbox.check_topology(timeout => '0');
SELECT outbox.declare_exchange('x', timeout => '0');
SELECT outbox.declare_queue('q', timeout => '0');
\set VERBOSITY default
SELECT outbox.ask_broker('exchange_exists', 'x', '', '', '', true, false, false, NULL, pg_catalog.now());
SELECT outbox.alter_relay(batch_size => 1);
SELECT outbox.release_group('default', 's', 'k');
SELECT outbox.end_events('{1}', 'dead', NULL, NULL);
SELECT pg_catalog.count(*) FROM outbox.event;
DELETE FROM outbox.operation;
UPDATE outbox.relay SET batch_size = 1;
RESET search_path;

RESET ROLE;
SELECT action, events FROM outbox.operation ORDER BY at;
DROP OWNED BY regress_outbox_operator;
DROP ROLE regress_outbox_operator;
SELECT count(*) FROM outbox.event;
REVOKE INSERT ON outbox.event FROM regress_outbox_producer;
DROP ROLE regress_outbox_producer, regress_outbox_stranger, regress_outbox_monitor;
