-- outbox.stat_relay, outbox.stat_batch_sizes and outbox.stat_reset(). That they count is shown in test/t.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event;
RESET client_min_messages;

SELECT outbox.stat_reset();
SELECT relay, ordering, paused_at, halted_on, claimed, published, retried, failed, rejected, dead, deferred, held, released, reclaimed
FROM outbox.stat_relay;
SELECT * FROM outbox.stat_batch_sizes;
-- All of this database's drainers, and nothing else.
SELECT sum(d.published) IS NOT DISTINCT FROM r.published AS same
FROM outbox.stat_relay AS r LEFT JOIN outbox.stat_drainer AS d ON d.database = current_database()
WHERE r.relay = 'default' GROUP BY r.published;

-- What the relay says of itself.
BEGIN;
UPDATE outbox.relay SET ordering = 'stop_the_line', paused_at = '2026-01-02 03:04:05+00', paused_by = 'ops', pause_reason = 'repair';
SELECT ordering, paused_at = '2026-01-02 03:04:05+00' AS paused, paused_by, pause_reason FROM outbox.stat_relay;
INSERT INTO outbox.relay (name, source) VALUES ('another', 'outbox.event');
SELECT relay, drainers, claimed, stats_reset FROM outbox.stat_relay WHERE relay = 'another';
ROLLBACK;

\set SHOW_CONTEXT never
CREATE ROLE regress_outbox_monitor;
GRANT pg_monitor TO regress_outbox_monitor;
CREATE ROLE regress_outbox_stranger;
SET ROLE regress_outbox_monitor;
SELECT count(*) FROM outbox.stat_relay;
SELECT count(*) FROM outbox.stat_batch_sizes;
SELECT outbox.stat_reset();
SET ROLE regress_outbox_stranger;
SELECT count(*) FROM outbox.stat_relay;
SELECT count(*) FROM outbox.stat_batch_sizes;
RESET ROLE;
DROP ROLE regress_outbox_monitor, regress_outbox_stranger;
