-- A producer needs INSERT on outbox.event and nothing else; PUBLIC can do nothing with the data.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event;
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

-- Without INSERT nothing is written and nothing is learnt.
SET ROLE regress_outbox_stranger;
INSERT INTO outbox.event (event_type, payload) VALUES ('order.placed', '{}');
SELECT outbox.enqueue('order.placed', '{}');
SELECT outbox.find_duplicate('00000000-0000-7000-8000-000000000001', NULL, NULL);

SET ROLE regress_outbox_monitor;
SELECT relay, pending, publishing, failed, dead FROM outbox.backlog();
SELECT count(*) >= 0 AS readable FROM outbox.stat_drainer;
SELECT count(*) > 0 AS readable FROM outbox.settings_check();
SELECT payload FROM outbox.event;

RESET ROLE;
SELECT count(*) FROM outbox.event;
REVOKE INSERT ON outbox.event FROM regress_outbox_producer;
DROP ROLE regress_outbox_producer, regress_outbox_stranger, regress_outbox_monitor;
