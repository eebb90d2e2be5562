-- What is not done and what ended badly, and that the history is not read for it.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event, outbox.relay_state;
RESET client_min_messages;
\set SHOW_CONTEXT never

INSERT INTO outbox.event (event_type, payload, available_at) VALUES ('scheduled', '', '2999-01-01');
INSERT INTO outbox.event (event_type, payload)
SELECT unnest(ARRAY['fresh', 'claimed', 'failed', 'held', 'held after failures', 'behind its key', 'requeued', 'sent', 'gave up', 'refused', 'thrown away']), '';
UPDATE outbox.event SET claimed_by = 't', claimed_at = now() WHERE event_type = 'claimed';
UPDATE outbox.event SET attempts = 1, last_error = 'nack', next_attempt_at = now() WHERE event_type = 'failed';
UPDATE outbox.event SET last_error = 'held: exchange "x" does not exist', next_attempt_at = '2999-01-01' WHERE event_type LIKE 'held%';
UPDATE outbox.event SET attempts = 1 WHERE event_type = 'held after failures';
UPDATE outbox.event SET next_attempt_at = 'infinity' WHERE event_type = 'behind its key';
UPDATE outbox.event SET next_attempt_at = now() WHERE event_type = 'requeued';
UPDATE outbox.event SET published_at = now() WHERE event_type = 'sent';
UPDATE outbox.event SET dead_at = now(), outcome = 'dead' WHERE event_type = 'gave up';
UPDATE outbox.event SET dead_at = now(), outcome = 'rejected' WHERE event_type = 'refused';
UPDATE outbox.event SET dead_at = now(), outcome = 'discarded' WHERE event_type = 'thrown away';

SELECT event_type, status FROM outbox.pending ORDER BY seq;
SELECT event_type, status FROM outbox.failed ORDER BY seq;
SELECT event_type, status FROM outbox.dead ORDER BY seq;
-- Each shows the columns of outbox.events.
SELECT v.name, array_agg(a.attname ORDER BY a.attnum) =
    (SELECT array_agg(attname ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'outbox.events'::regclass AND attnum > 0) AS same
FROM unnest(ARRAY['pending', 'failed', 'dead']) AS v (name)
JOIN pg_attribute AS a ON a.attrelid = ('outbox.' || v.name)::regclass AND a.attnum > 0
GROUP BY v.name ORDER BY v.name;

SELECT g.event_type, g.status, g.message_id LIKE 'msg\_%' AS named
FROM outbox.event AS e CROSS JOIN LATERAL outbox.get(e.id) AS g WHERE e.event_type = 'gave up';
SELECT * FROM outbox.get('00000000-0000-7000-8000-000000000000');
SELECT * FROM outbox.get(NULL);

-- Nothing is stuck yet.
SELECT event_type FROM outbox.stuck();
UPDATE outbox.event SET enqueued_at = now() - interval '1 hour', claimed_at = now() - interval '30 min' + (claimed_at - now());
UPDATE outbox.event SET next_attempt_at = now() - interval '20 min' WHERE event_type = 'requeued';
SELECT event_type, reason, date_trunc('minute', now() - since) AS since, status FROM outbox.stuck();
SELECT event_type, reason FROM outbox.stuck('25 min');
SELECT event_type, reason FROM outbox.stuck('2 hours');
SELECT event_type, reason FROM outbox.stuck(NULL);
-- While a drainer renews its claim, the event is on its way.
UPDATE outbox.event SET claimed_at = now() WHERE event_type = 'claimed';
SELECT event_type, reason FROM outbox.stuck();
UPDATE outbox.relay SET paused_at = now();
SELECT event_type, reason FROM outbox.stuck();
UPDATE outbox.relay SET paused_at = NULL;

-- Nothing fresh is looked for below the floor.
INSERT INTO outbox.relay_state (relay, floor) SELECT 'default', max(seq) FROM outbox.event;
INSERT INTO outbox.event (event_type, payload) VALUES ('above', '');
SELECT event_type FROM outbox.pending ORDER BY seq;
SELECT event_type, reason FROM outbox.stuck();
SELECT event_type FROM outbox.stuck('0');

-- Also by the plans.
SET enable_seqscan = off;
CREATE FUNCTION pg_temp.indexes_of(query text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    line text;
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
        IF line ~ 'event' THEN
            RETURN NEXT substring(line FROM '(?:using|on) (\w+)');
        END IF;
    END LOOP;
END
$$;
SELECT DISTINCT i FROM pg_temp.indexes_of('SELECT id FROM outbox.pending') AS i ORDER BY i;
SELECT DISTINCT i FROM pg_temp.indexes_of('SELECT id FROM outbox.failed') AS i ORDER BY i;
SELECT DISTINCT i FROM pg_temp.indexes_of('SELECT id FROM outbox.dead') AS i ORDER BY i;
TRUNCATE outbox.event, outbox.relay_state;
