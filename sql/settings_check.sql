-- outbox.settings_check(): every setting, and what is wrong. What the server was started with is left out.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event;
RESET client_min_messages;

CREATE VIEW pg_temp.problems AS
SELECT name, value, problem FROM outbox.settings_check()
WHERE problem IS NOT NULL AND name NOT IN ('outbox_drainer.broker_uri', 'shared_preload_libraries');

SELECT count(*) AS settings, count(*) FILTER (WHERE name LIKE 'outbox\_drainer.%') AS ours
FROM outbox.settings_check() WHERE problem IS NULL OR name IN ('outbox_drainer.broker_uri', 'shared_preload_libraries');
SELECT name, value, source, problem FROM outbox.settings_check() WHERE name IN ('outbox_drainer.batch_bytes', 'outbox_drainer.lease_ttl');
SELECT * FROM pg_temp.problems;

-- Values.
SET outbox_drainer.broker_uri = '';
SELECT problem FROM outbox.settings_check() WHERE name = 'outbox_drainer.broker_uri';
RESET outbox_drainer.broker_uri;
SET outbox_drainer.pipeline_depth = 2000;
SELECT * FROM pg_temp.problems;
RESET outbox_drainer.pipeline_depth;
SET outbox_drainer.password_file = '/no/such/file';
SELECT * FROM pg_temp.problems;
SET outbox_drainer.password_file = 'global';
SELECT * FROM pg_temp.problems;
SET outbox_drainer.password_file = 'PG_VERSION';
SELECT * FROM pg_temp.problems;
RESET outbox_drainer.password_file;

-- Brokers. (That the settings are of this session only is said of each.)
CREATE FUNCTION pg_temp.broker_problems(uri text, password_file text DEFAULT '') RETURNS TABLE (name text, problem text) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('outbox_drainer.broker_uri', uri, true), set_config('outbox_drainer.password_file', password_file, true);
    RETURN QUERY SELECT c.name, p FROM outbox.settings_check() AS c, string_to_table(c.problem, '; ') AS p
        WHERE c.name IN ('outbox_drainer.broker_uri', 'outbox_drainer.password_file') AND p NOT LIKE 'set in this session only%';
END $$;
SELECT * FROM pg_temp.broker_problems('amqp://');
SELECT * FROM pg_temp.broker_problems('amqps://shop@one.example, amqp://shop@localhost', 'PG_VERSION');
SELECT * FROM pg_temp.broker_problems('amqps://shop@one.example, amqp://shop@two.example/v, amqp://shop@three.example', 'PG_VERSION');
SELECT * FROM pg_temp.broker_problems('amqp://one.example');
SELECT * FROM pg_temp.broker_problems('amqps://shop@one.example?sslmode=require, amqps://shop@two.example?sslmode=verify-ca');
SELECT * FROM pg_temp.broker_problems('amqps://shop@one.example?sslrootcert=/no/ca.pem&sslcert=PG_VERSION&sslkey=PG_VERSION, amqps://shop@two.example?sslrootcert=/no/ca.pem&sslcert=/no/cert.pem&sslkey=global');
SELECT * FROM pg_temp.broker_problems('amqps://shop@one.example, amqps://shop@two.example', '/no/file');
-- A log-in by certificate needs no password.
SELECT * FROM pg_temp.broker_problems('amqps://one.example?auth_mechanism=external&sslcert=PG_VERSION&sslkey=PG_VERSION', '/no/file');

SET outbox_drainer.allow_drop = on;
SELECT * FROM pg_temp.problems;
RESET outbox_drainer.allow_drop;

-- Relays: what alter_relay refuses, but was made so from elsewhere.
BEGIN;
UPDATE outbox.relay SET on_dead = 'public.regress_outbox_on_dead(outbox.event)';
SELECT * FROM pg_temp.problems;
CREATE FUNCTION public.regress_outbox_on_dead(outbox.event) RETURNS void LANGUAGE sql AS '';
SELECT * FROM pg_temp.problems;
UPDATE outbox.relay SET on_dead = 'no function at all';
SELECT * FROM pg_temp.problems;
ROLLBACK;
BEGIN;
UPDATE outbox.relay SET retry_backoff_initial = '5 min';
SELECT * FROM pg_temp.problems;
SET LOCAL outbox_drainer.retry_backoff_max = '1min';
SELECT * FROM pg_temp.problems WHERE name !~ '^outbox_drainer.';
ROLLBACK;

-- The table. Whoever may change it finds all of this out only here.
BEGIN;
ALTER TABLE outbox.event SET UNLOGGED;
SELECT * FROM pg_temp.problems;
ROLLBACK;
BEGIN;
CREATE FUNCTION pg_temp.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER aaa_before BEFORE INSERT ON outbox.event FOR EACH ROW EXECUTE FUNCTION pg_temp.nothing();
CREATE TRIGGER zzzz_after AFTER INSERT ON outbox.event FOR EACH ROW EXECUTE FUNCTION pg_temp.nothing();
CREATE TRIGGER zzzz_update BEFORE UPDATE ON outbox.event FOR EACH ROW EXECUTE FUNCTION pg_temp.nothing();
SELECT * FROM pg_temp.problems;
CREATE TRIGGER zzzz_last BEFORE INSERT OR UPDATE ON outbox.event FOR EACH ROW EXECUTE FUNCTION pg_temp.nothing();
SELECT * FROM pg_temp.problems;
ALTER TABLE outbox.event DISABLE TRIGGER zzzz_last;
SELECT * FROM pg_temp.problems;
ROLLBACK;
BEGIN;
ALTER TABLE outbox.event DISABLE TRIGGER zzz_outbox_drainer;
SELECT * FROM pg_temp.problems;
ALTER TABLE outbox.event ENABLE TRIGGER zzz_outbox_drainer;
SELECT * FROM pg_temp.problems;
ROLLBACK;
BEGIN;
ALTER SEQUENCE outbox.event_seq CACHE 20 INCREMENT 5 CYCLE;
SELECT * FROM pg_temp.problems;
ROLLBACK;
BEGIN;
CREATE FUNCTION pg_temp.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON outbox.event
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pg_temp.nothing();
ALTER TABLE outbox.event ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
SELECT value, problem FROM pg_temp.problems ORDER BY value;
ROLLBACK;
BEGIN;
CREATE ROLE regress_outbox_owner;
ALTER TABLE outbox.event OWNER TO regress_outbox_owner;
SELECT name, problem FROM pg_temp.problems;
ROLLBACK;
BEGIN;
DROP INDEX outbox.event_due_idx;
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox.event_held_key_idx'::regclass;
SELECT name, value, problem FROM pg_temp.problems;
ROLLBACK;
SELECT * FROM pg_temp.problems;
