-- What operators do to events: effects and refusals. Drainers are idle here, so states are made by hand.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event, outbox.relay_state, outbox.operation;
RESET client_min_messages;
\set SHOW_CONTEXT never

-- An event by its name, and how the events stand.
CREATE FUNCTION pg_temp.id(name text) RETURNS uuid LANGUAGE sql
AS 'SELECT id FROM outbox.event WHERE event_type = name';
CREATE VIEW pg_temp.state AS
SELECT e.event_type, e.status, e.attempts, e.last_error, e.error_code, e.outcome,
    CASE WHEN e.next_attempt_at = 'infinity' THEN 'waits' WHEN e.next_attempt_at <= clock_timestamp() THEN 'due'
        WHEN e.next_attempt_at IS NOT NULL THEN 'later' END AS next
FROM outbox.events AS e ORDER BY e.seq;
-- Errors without what differs from run to run.
CREATE FUNCTION pg_temp.try(command text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    result text;
    message text;
    detail text;
    hint text;
    event record;
BEGIN
    EXECUTE 'SELECT ' || command INTO result;
    RETURN result;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    result := concat_ws(E'\n', SQLSTATE || ': ' || message, nullif(detail, ''), nullif(hint, ''));
    FOR event IN SELECT e.id, e.event_type FROM outbox.event AS e LOOP
        result := replace(result, event.id::text, '<' || event.event_type || '>');
    END LOOP;
    RETURN regexp_replace(result, 'claimed at .* by', 'claimed at <time> by');
END
$$;

-- requeue: what is refused.
INSERT INTO outbox.event (event_type, key, payload) VALUES ('fresh', NULL, ''), ('published', NULL, ''), ('claimed', NULL, ''),
    ('head', 'k', ''), ('follower', 'k', ''), ('failed follower', 'k', ''), ('orphan', 'o', ''), ('due', NULL, '');
INSERT INTO outbox.event (event_type, payload, available_at) VALUES ('scheduled', '', '2999-01-01 UTC'), ('never', '', 'infinity');
UPDATE outbox.event SET published_at = now() WHERE event_type = 'published';
UPDATE outbox.event SET claimed_at = now(), claimed_by = 'token' WHERE event_type = 'claimed';
UPDATE outbox.event SET attempts = 3, last_error = 'nack: full', next_attempt_at = '2999-01-01' WHERE event_type = 'head';
UPDATE outbox.event SET next_attempt_at = 'infinity' WHERE event_type IN ('follower', 'failed follower', 'orphan');
UPDATE outbox.event SET attempts = 1 WHERE event_type = 'failed follower';
UPDATE outbox.event SET next_attempt_at = now() WHERE event_type = 'due';
SET timezone = 'UTC';
\pset format unaligned
\pset tuples_only on
SELECT pg_temp.try($$outbox.requeue('00000000-0000-7000-8000-000000000000')$$);
SELECT pg_temp.try($$outbox.requeue(NULL)$$);
SELECT pg_temp.try($$outbox.requeue(pg_temp.id('published'))$$);
SELECT pg_temp.try($$outbox.requeue(pg_temp.id('claimed'))$$);
SELECT pg_temp.try($$outbox.requeue(pg_temp.id('fresh'))$$);
SELECT pg_temp.try($$outbox.requeue(pg_temp.id('due'))$$);
SELECT pg_temp.try($$outbox.requeue(pg_temp.id('scheduled'))$$);
SELECT pg_temp.try($$outbox.requeue(pg_temp.id('never'))$$);
SELECT pg_temp.try($$outbox.requeue(pg_temp.id('follower'))$$);
SELECT pg_temp.try($$outbox.requeue(pg_temp.id('failed follower'))$$);
SELECT pg_temp.try($$outbox.requeue(pg_temp.id('orphan'))$$);
-- discard: what is refused.
SELECT pg_temp.try($$outbox.discard('00000000-0000-7000-8000-000000000000', 'x')$$);
SELECT pg_temp.try($$outbox.discard(pg_temp.id('fresh'), E' \n')$$);
SELECT pg_temp.try($$outbox.discard(pg_temp.id('fresh'), NULL)$$);
SELECT pg_temp.try($$outbox.discard(pg_temp.id('published'), 'x')$$);
SELECT pg_temp.try($$outbox.discard(pg_temp.id('claimed'), 'x')$$);
\pset format aligned
\pset tuples_only off
SELECT count(*) AS operations FROM outbox.operation;

-- A failed event is tried at once; what waits behind it goes on waiting.
SELECT outbox.requeue(pg_temp.id('head'));
SELECT * FROM pg_temp.state WHERE event_type IN ('head', 'follower', 'failed follower');

-- So is one that is held.
INSERT INTO outbox.event (event_type, payload) VALUES ('held', ''), ('held too', '');
UPDATE outbox.event SET last_error = 'held: exchange "x" does not exist', next_attempt_at = '2999-01-01' WHERE event_type LIKE 'held%';
SELECT outbox.requeue(pg_temp.id('held'));
SELECT outbox.discard(pg_temp.id('held too'), 'a test');
SELECT event_type, status, next FROM pg_temp.state WHERE event_type LIKE 'held%';
DELETE FROM outbox.event WHERE event_type LIKE 'held%';

-- discard: the end of an event that others wait for makes these due.
CREATE ROLE regress_outbox_operator;
GRANT EXECUTE ON FUNCTION outbox.discard, outbox.requeue, outbox.requeue_dead, outbox.requeue_stuck, outbox.maintain TO regress_outbox_operator;
SELECT pg_temp.id('head') AS head, pg_temp.id('fresh') AS fresh, pg_temp.id('scheduled') AS scheduled, pg_temp.id('follower') AS follower \gset
SET SESSION AUTHORIZATION regress_outbox_operator;
SELECT outbox.discard(:'follower', 'not wanted');
SELECT outbox.discard(:'head', 'a test');
SELECT outbox.discard(:'fresh', 'never to be sent');
SELECT outbox.discard(:'scheduled', 'called off');
RESET SESSION AUTHORIZATION;
SELECT * FROM pg_temp.state;
\pset format unaligned
\pset tuples_only on
SELECT pg_temp.try($$outbox.discard(pg_temp.id('fresh'), 'x')$$);
\pset format aligned
\pset tuples_only off
-- And back: what is scheduled keeps its time.
SELECT outbox.requeue(:'scheduled');
SELECT outbox.requeue(:'head');
SELECT event_type, status, next FROM pg_temp.state WHERE event_type IN ('scheduled', 'head');
SELECT next_attempt_at = available_at AS scheduled FROM outbox.event WHERE event_type = 'scheduled';
SELECT by = session_user AS self, nullif(by, session_user) AS by, action, relay, events,
    (SELECT array_agg(e.event_type) FROM outbox.event AS e WHERE e.id = ANY (o.event_ids)) AS of, detail
FROM outbox.operation AS o ORDER BY at;

-- At most 64 at a time, the first ones.
TRUNCATE outbox.event, outbox.operation;
INSERT INTO outbox.event (event_type, key, payload) SELECT 'n' || n, 'k', '' FROM generate_series(0, 100) AS n;
UPDATE outbox.event SET next_attempt_at = CASE event_type WHEN 'n0' THEN timestamptz '2999-01-01' ELSE 'infinity' END;
SELECT outbox.discard(pg_temp.id('n0'), 'x');
SELECT next, count(*), min(substr(event_type, 2)::integer), max(substr(event_type, 2)::integer) FROM pg_temp.state GROUP BY next ORDER BY next;
SELECT count(DISTINCT next_attempt_at) AS times FROM outbox.event WHERE next_attempt_at < 'infinity';

-- Groups by each ordering. The head of a key with another one's events beside.
CREATE FUNCTION pg_temp.group_released(ordering text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    TRUNCATE outbox.event;
    UPDATE outbox.relay SET ordering = group_released.ordering;
    INSERT INTO outbox.event (source, key, event_type, payload) VALUES ('s', 'k', 'head', ''),
        ('s', 'k', 'same key', ''), ('s', 'other', 'other key', ''), ('s', NULL, 'no key', ''), ('t', 'k', 'other source', '');
    UPDATE outbox.event SET next_attempt_at = CASE event_type WHEN 'head' THEN now() + '1 day' ELSE 'infinity' END;
    PERFORM outbox.discard(pg_temp.id('head'), 'x');
    RETURN QUERY SELECT event_type FROM pg_temp.state WHERE next = 'due';
END
$$;
SELECT pg_temp.group_released('per_key');
SELECT pg_temp.group_released('per_source');
SELECT pg_temp.group_released('stop_the_line');
SELECT pg_temp.group_released('best_effort');
UPDATE outbox.relay SET ordering = 'per_key';
-- Another event is at the head: it stays so.
TRUNCATE outbox.event;
INSERT INTO outbox.event (event_type, key, payload) VALUES ('first', 'k', ''), ('second', 'k', ''), ('third', 'k', ''), ('follower', 'k', '');
UPDATE outbox.event SET attempts = 1, last_error = 'nack', next_attempt_at = '2999-01-01';
UPDATE outbox.event SET next_attempt_at = 'infinity', last_error = NULL WHERE event_type = 'follower';
SELECT outbox.discard(pg_temp.id('second'), 'x');
SELECT event_type, next FROM pg_temp.state WHERE status <> 'discarded';
-- Nor do events go on that wait behind one in a drainer's hand.
UPDATE outbox.event SET claimed_by = 't', claimed_at = now() WHERE event_type = 'third';
SELECT outbox.discard(pg_temp.id('first'), 'x');
SELECT event_type, next FROM pg_temp.state WHERE status <> 'discarded';

-- A NOTICE where later events went before.
TRUNCATE outbox.event;
INSERT INTO outbox.event (id, event_type, key, payload) VALUES ('00000000-0000-7000-8000-000000000001', 'dead', 'k', '');
INSERT INTO outbox.event (event_type, key, payload) VALUES ('other key', 'other', ''), ('later', 'k', '');
UPDATE outbox.event SET dead_at = now(), outcome = 'dead', attempts = 20, last_error = 'nack: full', error_code = 'nack' WHERE event_type = 'dead';
UPDATE outbox.event SET published_at = now() WHERE event_type = 'other key';
BEGIN;
SELECT outbox.requeue(pg_temp.id('dead'));
ROLLBACK;
UPDATE outbox.event SET published_at = now() WHERE event_type = 'later';
SELECT outbox.requeue(pg_temp.id('dead'));
SELECT * FROM pg_temp.state WHERE event_type = 'dead';

-- requeue_dead: in order, filtered, limited, without what was discarded.
TRUNCATE outbox.event, outbox.operation;
INSERT INTO outbox.event (event_type, payload) VALUES ('a', ''), ('b', ''), ('c', ''), ('d', ''), ('discarded', ''), ('live', '');
UPDATE outbox.event SET attempts = 5, dead_at = now() - interval '1 hour', outcome = 'dead', last_error = 'nack: queue full', error_code = 'nack'
WHERE event_type IN ('a', 'c');
UPDATE outbox.event SET dead_at = now(), outcome = 'rejected', last_error = 'rejected: key_too_long: 300 bytes', error_code = 'key_too_long'
WHERE event_type = 'b';
UPDATE outbox.event SET dead_at = now(), outcome = 'dead', last_error = 'unroutable: no queue', error_code = 'unroutable' WHERE event_type = 'd';
UPDATE outbox.event SET dead_at = now(), outcome = 'discarded', error_code = 'discarded' WHERE event_type = 'discarded';
SELECT outbox.requeue_dead('nowhere');
SELECT outbox.requeue_dead(max_events => 0);
SELECT outbox.requeue_dead(error => 'poison%');
CREATE FUNCTION pg_temp.requeued() RETURNS text[] LANGUAGE sql
AS $$SELECT array_agg(event_type ORDER BY next_attempt_at, seq) FROM outbox.event WHERE next_attempt_at IS NOT NULL$$;
BEGIN;
SELECT outbox.requeue_dead(), pg_temp.requeued();
SELECT count(DISTINCT next_attempt_at) AS times FROM outbox.event WHERE next_attempt_at IS NOT NULL;
SELECT * FROM pg_temp.state;
ROLLBACK;
BEGIN; SELECT outbox.requeue_dead('default', max_events => 2), pg_temp.requeued(); ROLLBACK;
BEGIN; SELECT outbox.requeue_dead(error => 'nack: %full'), pg_temp.requeued(); ROLLBACK;
BEGIN; SELECT outbox.requeue_dead(error => 'key_too_long'), pg_temp.requeued(); ROLLBACK;
BEGIN; SELECT outbox.requeue_dead(since => now() - interval '1 min'), pg_temp.requeued(); ROLLBACK;
SELECT outbox.requeue_dead(error => 'nack%', since => now() - interval '2 hours', max_events => 1), pg_temp.requeued();
SELECT action, relay, events, cardinality(event_ids) AS ids, detail - 'since' AS detail FROM outbox.operation;
TRUNCATE outbox.event, outbox.operation;
INSERT INTO outbox.event (event_type, payload, dead_at, outcome) SELECT 'x', '', now(), 'dead' FROM generate_series(1, 150);
SELECT outbox.requeue_dead();
SELECT events, cardinality(event_ids) AS ids FROM outbox.operation;

-- requeue_stuck: claims that have run out, in both lanes, without a charge.
TRUNCATE outbox.event, outbox.operation;
INSERT INTO outbox.event (event_type, payload, attempts) VALUES ('old', '', 2), ('old and deferred', '', 1), ('recent', '', 0), ('no time', '', 0);
UPDATE outbox.event SET claimed_by = 't', claimed_at = now() - interval '6 min' WHERE event_type LIKE 'old%';
UPDATE outbox.event SET next_attempt_at = now(), last_error = 'nack' WHERE event_type = 'old and deferred';
UPDATE outbox.event SET claimed_by = 't', claimed_at = now() - interval '4 min' WHERE event_type = 'recent';
UPDATE outbox.event SET claimed_by = 't' WHERE event_type = 'no time';
SHOW outbox_drainer.lease_ttl;
SELECT outbox.requeue_stuck('4 min');
SELECT outbox.requeue_stuck('-1 min');
BEGIN; SELECT outbox.requeue_stuck('7 min'); ROLLBACK;
SELECT outbox.requeue_stuck();
SELECT event_type, status, attempts FROM pg_temp.state;
SELECT outbox.requeue_stuck();
SELECT action, events, detail FROM outbox.operation;
-- And groups whose head somebody took away.
TRUNCATE outbox.event, outbox.operation;
INSERT INTO outbox.event (source, event_type, key, payload) VALUES ('s', 'a1', 'a', ''), ('s', 'a2', 'a', ''), ('s', 'b1', 'b', ''),
    ('s', 'b2', 'b', ''), ('t', 'c1', 'c', ''), ('t', 'none', NULL, '');
UPDATE outbox.event SET next_attempt_at = 'infinity';
UPDATE outbox.event SET next_attempt_at = '2999-01-01', attempts = 1 WHERE event_type = 'b1';
BEGIN; SELECT outbox.requeue_stuck(); SELECT event_type, next FROM pg_temp.state; ROLLBACK;
UPDATE outbox.relay SET ordering = 'per_source';
BEGIN; SELECT outbox.requeue_stuck(); SELECT event_type, next FROM pg_temp.state; ROLLBACK;
UPDATE outbox.relay SET ordering = 'stop_the_line';
BEGIN; SELECT outbox.requeue_stuck(); SELECT event_type, next FROM pg_temp.state; ROLLBACK;
UPDATE outbox.relay SET ordering = 'best_effort';
SELECT outbox.requeue_stuck();
SELECT event_type, next FROM pg_temp.state;
UPDATE outbox.relay SET ordering = 'per_key';
SELECT action, events, detail FROM outbox.operation;

-- maintain.
TRUNCATE outbox.event, outbox.operation;
SELECT * FROM outbox.maintain();
SELECT * FROM outbox.maintain('nowhere');
INSERT INTO outbox.event (event_type, payload, published_at) SELECT 'old', '', now() - interval '8 days' FROM generate_series(1, 10500);
INSERT INTO outbox.event (event_type, payload, published_at) VALUES ('new', '', now() - interval '6 days');
INSERT INTO outbox.event (event_type, payload, dead_at, outcome) VALUES ('long dead', '', now() - interval '100 days', 'dead'),
    ('discarded', '', now() - interval '2 days', 'discarded');
INSERT INTO outbox.event (event_type, key, payload) VALUES ('exhausted', 'k', ''), ('follower', 'k', ''), ('died at its last attempt', 'l', ''),
    ('once more', NULL, ''), ('fresh', NULL, '');
UPDATE outbox.event SET attempts = 20, last_error = 'nack: full', next_attempt_at = '2999-01-01' WHERE event_type IN ('exhausted', 'died at its last attempt');
UPDATE outbox.event SET claimed_by = 't', claimed_at = now() - interval '1 hour' WHERE event_type IN ('died at its last attempt', 'fresh');
UPDATE outbox.event SET next_attempt_at = 'infinity' WHERE event_type = 'follower';
UPDATE outbox.event SET attempts = 19, last_error = 'nack', next_attempt_at = '2999-01-01' WHERE event_type = 'once more';
SELECT * FROM outbox.maintain();
SELECT * FROM pg_temp.state WHERE event_type <> 'old';
SELECT * FROM outbox.maintain();
SELECT action, events, detail FROM outbox.operation;
SELECT outbox.alter_relay(max_attempts => 0, retention => '0', dead_retention => '99 days');
UPDATE outbox.event SET attempts = 1000000 WHERE event_type = 'once more';
SELECT * FROM outbox.maintain();
SELECT outbox.alter_relay(retention => '1 day', reset => '{max_attempts}');
-- What drainers have been through is not read again.
INSERT INTO outbox.relay_state (relay, retention_from) SELECT 'default', max(seq) FROM outbox.event;
SELECT * FROM outbox.maintain();
DELETE FROM outbox.relay_state;
SELECT * FROM outbox.maintain();
SELECT event_type, status, error_code FROM pg_temp.state;
SELECT outbox.alter_relay(reset => '{retention,dead_retention}');
-- Where one dead event stops all the others, it stops the relay.
UPDATE outbox.relay SET ordering = 'stop_the_line';
TRUNCATE outbox.event, outbox.operation;
INSERT INTO outbox.event (id, event_type, payload) VALUES ('00000000-0000-7000-8000-000000000002', 'exhausted', '');
UPDATE outbox.event SET attempts = 20, last_error = 'odd', next_attempt_at = now();
SELECT * FROM outbox.maintain();
SELECT error_code FROM outbox.event;
SELECT paused_at IS NOT NULL AS paused, pause_reason FROM outbox.relay;
UPDATE outbox.relay SET ordering = 'per_key', paused_at = NULL, paused_by = NULL, pause_reason = NULL;

-- Only in READ COMMITTED, where the release of a group sees who has come to it.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT outbox.discard('00000000-0000-7000-8000-000000000002', 'x');
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outbox.requeue_stuck();
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT outbox.maintain();
ROLLBACK;

-- What the owner of the table attached to it runs as the owner, whoever acts.
TRUNCATE outbox.event, outbox.operation;
INSERT INTO outbox.event (event_type, payload, id) VALUES ('e', '', '00000000-0000-7000-8000-000000000003');
CREATE ROLE regress_outbox_owner;
CREATE TABLE public.outbox_seen (who text);
GRANT ALL ON public.outbox_seen TO regress_outbox_owner;
CREATE FUNCTION public.outbox_spy() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.outbox_seen VALUES (current_user);
    RETURN coalesce(NEW, OLD);
END
$$;
CREATE TRIGGER spy AFTER UPDATE OR DELETE ON outbox.event FOR EACH ROW EXECUTE FUNCTION public.outbox_spy();
CREATE TRIGGER spy AFTER UPDATE ON outbox.relay FOR EACH ROW EXECUTE FUNCTION public.outbox_spy();
CREATE TRIGGER spy AFTER INSERT ON outbox.operation FOR EACH ROW EXECUTE FUNCTION public.outbox_spy();
SELECT pg_get_userbyid(relowner) AS owner FROM pg_class WHERE oid = 'outbox.event'::regclass \gset
ALTER TABLE outbox.event OWNER TO regress_outbox_owner;
ALTER SEQUENCE outbox.event_seq OWNER TO regress_outbox_owner;
ALTER TABLE outbox.relay OWNER TO regress_outbox_owner;
ALTER TABLE outbox.relay_state OWNER TO regress_outbox_owner;
ALTER TABLE outbox.operation OWNER TO regress_outbox_owner;
GRANT EXECUTE ON FUNCTION outbox.pause, outbox.resume, outbox.alter_relay TO regress_outbox_operator;
SET SESSION AUTHORIZATION regress_outbox_operator;
SELECT outbox.discard('00000000-0000-7000-8000-000000000003', 'x');
SELECT outbox.requeue('00000000-0000-7000-8000-000000000003');
SELECT outbox.discard('00000000-0000-7000-8000-000000000003', 'x');
SELECT outbox.pause();
SELECT outbox.resume();
SELECT outbox.alter_relay(batch_size => 5, dead_retention => '1 us');
SELECT * FROM outbox.maintain();
SELECT outbox.alter_relay(reset => '{batch_size,dead_retention}');
SELECT current_user;
SELECT count(*) FROM outbox.event;
UPDATE outbox.relay SET batch_size = 1;
RESET SESSION AUTHORIZATION;
SELECT who, count(*) FROM public.outbox_seen GROUP BY who;
SELECT by, action FROM outbox.operation ORDER BY at;
DROP TRIGGER spy ON outbox.event;
DROP TRIGGER spy ON outbox.relay;
DROP TRIGGER spy ON outbox.operation;
DROP FUNCTION public.outbox_spy();
DROP TABLE public.outbox_seen;
ALTER TABLE outbox.event OWNER TO :"owner";
ALTER SEQUENCE outbox.event_seq OWNER TO :"owner";
ALTER TABLE outbox.relay OWNER TO :"owner";
ALTER TABLE outbox.relay_state OWNER TO :"owner";
ALTER TABLE outbox.operation OWNER TO :"owner";
DROP OWNED BY regress_outbox_operator, regress_outbox_owner;
DROP ROLE regress_outbox_operator, regress_outbox_owner;
TRUNCATE outbox.event, outbox.relay_state, outbox.operation;
