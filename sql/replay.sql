-- outbox.replay() and the functions and the view beside it. What a drainer does of it is tested elsewhere.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event;
ALTER TABLE outbox.replay_job ALTER COLUMN id RESTART;
-- No drainer works for this relay, so nothing moves here but by hand.
INSERT INTO outbox.relay (name, source) VALUES ('regress', 'outbox.event');
\set SHOW_CONTEXT never
SET timezone = 'UTC';

-- Nothing there to be sent.
SELECT outbox.replay('regress');
SELECT relay, state, rate, position, last_seq, remaining, sent, skipped, started_by = session_user AS by_us,
    started_at <= clock_timestamp() AS started, stopped_at, finished_at, last_error
FROM outbox.replays WHERE job = 1;
SELECT outbox.stop_replay(1);

INSERT INTO outbox.event (seq, event_type, payload) SELECT n, 'order.placed', '' FROM generate_series(101, 300) AS n;
SELECT outbox.replay('regress', '2024-01-01', '2024-02-01', 'order.%', 'backfill', 20);
SELECT job, relay, state, from_time, to_time, event_type, exchange, rate, position, last_seq, remaining
FROM outbox.replays WHERE job = 2;
-- By name, each alone. The second waits for the first.
SELECT outbox.replay(relay => 'regress', "from" => '2020-01-01');
SELECT outbox.replay(relay => 'regress', "to" => 'infinity');
SELECT job, state FROM outbox.replays ORDER BY job;
-- Later events are not part of it.
INSERT INTO outbox.event (seq, event_type, payload) VALUES (301, 'order.placed', '');
SELECT job, last_seq FROM outbox.replays WHERE job > 1 ORDER BY job;

-- On the way.
UPDATE outbox.replay_job SET position = 150, sent = 40 WHERE id = 2;
SELECT job, state, position, remaining, sent FROM outbox.replays WHERE job = 2;
SELECT outbox.stop_replay(2);
SELECT state, stopped_at IS NOT NULL AS stopped, position FROM outbox.replays WHERE job = 2;
SELECT job, state FROM outbox.replays ORDER BY job;
SELECT outbox.stop_replay(2);
SELECT outbox.resume_replay(2);
SELECT state, stopped_at, position FROM outbox.replays WHERE job = 2;
SELECT outbox.resume_replay(2);
SELECT outbox.resume_replay(3);
UPDATE outbox.replay_job SET state = 'failed', stopped_at = now(), last_error = 'NOT_FOUND - no exchange ''backfill''' WHERE id = 2;
SELECT outbox.stop_replay(2);
SELECT outbox.resume_replay(2);
SELECT state, stopped_at, last_error FROM outbox.replays WHERE job = 2;
UPDATE outbox.replay_job SET state = 'finished', position = 200, finished_at = now() WHERE id = 2;
SELECT state, remaining FROM outbox.replays WHERE job = 2;
SELECT outbox.stop_replay(2);
SELECT outbox.resume_replay(2);

-- Who did what is on record.
SELECT action, relay, events, detail FROM outbox.operation WHERE relay = 'regress' ORDER BY at;

-- What makes no sense.
SELECT outbox.replay('nowhere');
SELECT outbox.replay(NULL);
SELECT outbox.replay("from" => '2024-01-02', "to" => '2024-01-02');
SELECT outbox.replay("from" => '2024-01-03', "to" => '2024-01-02');
SELECT outbox.replay(rate => 0);
SELECT outbox.replay(rate => -1);
SELECT outbox.replay(rate => NULL);
SELECT outbox.replay(exchange => repeat('x', 256));
SELECT outbox.replay(exchange => repeat(U&'\00e4', 128));
SELECT outbox.replay(event_type => 'order\');
SELECT outbox.replay(event_type => 'a\\\');
SELECT outbox.replay(event_type => E'a\nb\\');
SELECT outbox.stop_replay(99);
SELECT outbox.resume_replay(99);
SELECT outbox.stop_replay(NULL);
-- Nothing of that has left a trace.
SELECT count(*) FROM outbox.replays;
-- What just fits.
SELECT outbox.replay('regress', exchange => repeat('x', 255)) IS NOT NULL AS replayed;
SELECT outbox.replay('regress', exchange => '', event_type => 'order\\', rate => 2147483647) IS NOT NULL AS replayed;
-- The table refuses by itself what would fail in a drainer.
\set VERBOSITY terse
INSERT INTO outbox.replay_job (relay, rate, first_seq, last_seq, position, event_type) VALUES ('regress', 1, 1, 1, 0, 'a\');
UPDATE outbox.replay_job SET rate = 0;
UPDATE outbox.replay_job SET state = 'lost';
\set VERBOSITY default

-- Rights: who may act on events was granted it; those who watch see how far it is.
CREATE ROLE regress_outbox_operator;
CREATE ROLE regress_outbox_monitor;
GRANT pg_monitor TO regress_outbox_monitor;
SET ROLE regress_outbox_operator;
SELECT outbox.replay('regress');
SELECT outbox.stop_replay(3);
SELECT outbox.resume_replay(3);
SELECT count(*) FROM outbox.replays;
RESET ROLE;
GRANT EXECUTE ON FUNCTION outbox.replay, outbox.stop_replay, outbox.resume_replay TO regress_outbox_operator;
SET ROLE regress_outbox_operator;
SET search_path = '';
SELECT outbox.replay('regress') > 0 AS replayed;
SELECT outbox.stop_replay(3);
SELECT outbox.resume_replay(3);
RESET search_path;
SET ROLE regress_outbox_monitor;
SELECT count(*) FROM outbox.replays;
SELECT outbox.replay('regress');
RESET ROLE;
DROP OWNED BY regress_outbox_operator;
DROP ROLE regress_outbox_operator, regress_outbox_monitor;

-- A replay goes with its relay. None is part of a dump, or a restored database would send too.
DELETE FROM outbox.relay WHERE name = 'regress';
SELECT count(*) FROM outbox.replay_job;
SELECT 'outbox.replay_job'::regclass::oid = ANY (extconfig) AS dumped FROM pg_extension WHERE extname = 'outbox_drainer';
TRUNCATE outbox.event;
