-- A relay's settings, pausing it, and the record of what operators did.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event, outbox.operation;
RESET client_min_messages;

\set SHOW_CONTEXT never

SELECT * FROM outbox.relay_settings();

-- What is given is set, and the rest stays.
SELECT outbox.alter_relay('default', exchange => 'shop', mandatory => true, batch_size => 50, max_attempts => 3,
    retry_backoff_initial => '2 s', retry_backoff_multiplier => 1.5, retry_backoff_max => '1 min',
    retention => '3 days', dead_retention => '90 days', publish_rate => 100, serialize_producers => true);
SELECT * FROM outbox.relay_settings('default');
SELECT outbox.alter_relay(ordering => 'per_source', publish_rate => 0, mandatory => false);
SELECT * FROM outbox.relay_settings() WHERE name IN ('ordering', 'publish_rate', 'mandatory', 'batch_size');
-- Nothing.
SELECT outbox.alter_relay();
-- And goes back to the server's.
SELECT outbox.alter_relay(exchange => '', reset => ARRAY['ordering', 'mandatory', 'batch_size', 'max_attempts',
    'retry_backoff_initial', 'retry_backoff_multiplier', 'retry_backoff_max', 'retention', 'dead_retention',
    'publish_rate', 'serialize_producers']);
SELECT * FROM outbox.relay_settings() WHERE source = 'relay';
SELECT outbox.alter_relay(reset => '{exchange}');
SELECT * FROM outbox.relay_settings() WHERE name = 'exchange';
SELECT by = session_user AS by, action, relay, events, detail FROM outbox.operation ORDER BY at;

-- What is refused.
SELECT outbox.alter_relay('nowhere', batch_size => 1);
SELECT outbox.alter_relay(NULL, batch_size => 1);
SELECT outbox.alter_relay(ordering => 'random');
SELECT outbox.alter_relay(exchange => repeat('é', 128));
SELECT outbox.alter_relay(batch_size => 0);
SELECT outbox.alter_relay(max_attempts => -1);
SELECT outbox.alter_relay(retry_backoff_multiplier => 0.5);
SELECT outbox.alter_relay(retry_backoff_multiplier => 'NaN');
SELECT outbox.alter_relay(retry_backoff_initial => '0');
SELECT outbox.alter_relay(retry_backoff_max => '25 hours');
SELECT outbox.alter_relay(retention => '-1 day');
SELECT outbox.alter_relay(retention => '1 month');
SELECT outbox.alter_relay(dead_retention => '1 year');
SELECT outbox.alter_relay(publish_rate => -5);
SELECT outbox.alter_relay(reset => '{nonsense}');
SELECT outbox.alter_relay(reset => ARRAY['paused_at']);
SELECT outbox.alter_relay(reset => ARRAY[NULL]);
SELECT outbox.alter_relay(batch_size => 10, reset => '{batch_size}');
-- Together with what the server sets.
SELECT outbox.alter_relay(retry_backoff_initial => '10 min');
SELECT outbox.alter_relay(retry_backoff_max => '500 ms');
SELECT outbox.alter_relay(retry_backoff_initial => '10 min', retry_backoff_max => '1 hour');
SELECT outbox.alter_relay(reset => '{retry_backoff_max}');
SELECT outbox.alter_relay(reset => '{retry_backoff_initial,retry_backoff_max}');
SELECT outbox.relay_settings('nowhere');

-- on_dead.
CREATE ROLE regress_outbox_other;
CREATE ROLE regress_outbox_operator;
GRANT EXECUTE ON FUNCTION outbox.pause, outbox.resume TO regress_outbox_operator;
CREATE FUNCTION public.outbox_dead(outbox.event) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION public.outbox_dead_set(outbox.event) RETURNS SETOF integer LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION pg_temp.outbox_dead_temporary(outbox.event) RETURNS void LANGUAGE sql AS '';
SELECT outbox.alter_relay(on_dead => 'public.outbox_dead(outbox.event)');
SELECT name, value FROM outbox.relay_settings() WHERE name = 'on_dead';
SELECT outbox.alter_relay(on_dead => 'pg_catalog.length(text)');
SELECT outbox.alter_relay(on_dead => 'public.outbox_dead_set(outbox.event)');
DO $$
BEGIN
    PERFORM outbox.alter_relay(on_dead => 'pg_temp.outbox_dead_temporary(outbox.event)'::regprocedure);
EXCEPTION WHEN invalid_parameter_value THEN
    RAISE NOTICE 'a temporary function is refused';
END
$$;
SELECT outbox.alter_relay(on_dead => 'public.no_such_function(outbox.event)');
SELECT outbox.alter_relay(on_dead => '-');
SELECT name, value FROM outbox.relay_settings() WHERE name = 'on_dead';
SELECT outbox.alter_relay(on_dead => 'public.outbox_dead(outbox.event)');
SELECT outbox.alter_relay(reset => '{on_dead}');
SELECT on_dead FROM outbox.relay;
-- It belongs to the owner of the table, or a superuser, and the owner has to be able to execute it.
BEGIN;
ALTER TABLE outbox.event OWNER TO regress_outbox_other;
SAVEPOINT s;
ALTER FUNCTION public.outbox_dead(outbox.event) OWNER TO regress_outbox_operator;
SELECT outbox.alter_relay(on_dead => 'public.outbox_dead(outbox.event)');
ROLLBACK TO s;
REVOKE EXECUTE ON FUNCTION public.outbox_dead(outbox.event) FROM PUBLIC;
SELECT outbox.alter_relay(on_dead => 'public.outbox_dead(outbox.event)');
ROLLBACK;
DROP FUNCTION public.outbox_dead(outbox.event), public.outbox_dead_set(outbox.event);
DROP FUNCTION pg_temp.outbox_dead_temporary(outbox.event);

-- Another ordering makes events due that wait in a group that is none any more.
INSERT INTO outbox.event (source, event_type, key, payload)
VALUES ('s', 'head', 'a', ''), ('s', 'follower of a', 'a', ''), ('s', 'follower of b', 'b', ''), ('s', 'follower of none', NULL, '');
SELECT outbox.alter_relay(ordering => 'per_source');
UPDATE outbox.event SET next_attempt_at = CASE event_type WHEN 'head' THEN timestamptz '2999-01-01' ELSE 'infinity' END;
SELECT outbox.alter_relay(ordering => 'per_key');
SELECT event_type, next_attempt_at <= clock_timestamp() AS due FROM outbox.event ORDER BY seq;
SELECT outbox.alter_relay(ordering => 'best_effort');
SELECT event_type, next_attempt_at <= clock_timestamp() AS due FROM outbox.event ORDER BY seq;
SELECT outbox.alter_relay(reset => '{ordering}');
TRUNCATE outbox.event, outbox.operation;

-- Pausing, by somebody who may do nothing else.
SET SESSION AUTHORIZATION regress_outbox_operator;
SELECT outbox.pause('default', 'the consumer is down');
SELECT outbox.pause();
RESET SESSION AUTHORIZATION;
SELECT paused_at BETWEEN now() - interval '1 min' AND clock_timestamp() AS paused, paused_by, pause_reason FROM outbox.relay;
SELECT outbox.resume();
SELECT outbox.resume('default');
SELECT outbox.pause();
SELECT outbox.resume();
SELECT paused_at, paused_by, pause_reason FROM outbox.relay;
SELECT outbox.pause('nowhere');
SELECT outbox.resume('nowhere');
SELECT action, relay, events, detail - 'paused_at' - 'paused_by' AS detail, nullif(by, session_user) AS by FROM outbox.operation ORDER BY at;

-- Inserting a relay that is there alters it, in every column: so a dump is restored.
CREATE TEMPORARY TABLE saved AS SELECT * FROM outbox.relay;
CREATE TEMPORARY TABLE given AS SELECT * FROM outbox.relay;
UPDATE given SET ordering = 'per_source', exchange = 'e', mandatory = true, batch_size = 1, max_attempts = 2,
    retry_backoff_initial = '3 s', retry_backoff_multiplier = 4, retry_backoff_max = '5 s', retention = '6 s',
    dead_retention = '7 s', publish_rate = 8, serialize_producers = true, on_dead = 'f', paused_at = now(),
    paused_by = 'p', pause_reason = 'r', source = 'outbox.relay';
SELECT key AS not_changed_above FROM jsonb_each((SELECT to_jsonb(g) FROM given AS g))
WHERE key <> 'name' AND value = (SELECT to_jsonb(s) -> key FROM saved AS s);
INSERT INTO outbox.relay SELECT * FROM given;
SELECT to_jsonb(r) = to_jsonb(g) AS all_of_it FROM outbox.relay AS r, given AS g;
INSERT INTO outbox.relay SELECT * FROM saved;
SELECT to_jsonb(r) = to_jsonb(s) AS all_of_it FROM outbox.relay AS r, saved AS s;

-- Only for functions of this extension.
SELECT outbox.act_as_owner();
CREATE TEMPORARY TABLE t ();
CREATE TRIGGER t AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION outbox.relay_changed();
CREATE TEMPORARY TABLE u (n integer);
CREATE TRIGGER u AFTER INSERT ON u FOR EACH ROW EXECUTE FUNCTION outbox.relay_changed();
INSERT INTO u VALUES (1);
REVOKE ALL ON FUNCTION outbox.pause, outbox.resume FROM regress_outbox_operator;
DROP ROLE regress_outbox_other, regress_outbox_operator;
TRUNCATE outbox.operation;
