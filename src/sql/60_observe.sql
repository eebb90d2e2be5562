CREATE FUNCTION outbox.drainer_slots(
    OUT database text,
    OUT worker integer,
    OUT pid integer,
    OUT state text,
    OUT state_since timestamptz,
    OUT broker text,
    OUT connected_since timestamptz,
    OUT last_error text,
    OUT last_error_at timestamptz,
    OUT in_flight integer,
    OUT claimed bigint,
    OUT published bigint,
    OUT failed bigint,
    OUT released bigint,
    OUT expired_leases bigint,
    OUT stale_marks bigint,
    OUT reconnects bigint,
    OUT batches bigint,
    OUT bytes bigint,
    OUT start_failures bigint,
    OUT stats_reset timestamptz
) RETURNS SETOF record
    LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 10
    AS 'MODULE_PATHNAME', 'outbox_drainer_drainer_slots';
COMMENT ON FUNCTION outbox.drainer_slots() IS 'What outbox.stat_drainer shows, from shared memory';
REVOKE ALL ON FUNCTION outbox.drainer_slots() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.drainer_slots() TO pg_monitor;

CREATE VIEW outbox.stat_drainer AS
SELECT
    s.database,
    s.worker,
    s.pid,
    s.state,
    s.state_since,
    s.broker,
    s.connected_since,
    s.last_error,
    s.last_error_at,
    s.in_flight,
    s.claimed,
    s.published,
    s.failed,
    s.released,
    s.expired_leases,
    s.stale_marks,
    s.reconnects,
    s.batches,
    s.bytes,
    s.start_failures,
    s.stats_reset
FROM outbox.drainer_slots() AS s;

COMMENT ON VIEW outbox.stat_drainer IS
    'One row for each drainer of the server, of all databases; empty where the library is not preloaded';
COMMENT ON COLUMN outbox.stat_drainer.database IS 'Database that is drained';
COMMENT ON COLUMN outbox.stat_drainer.worker IS 'Which of the database''s drainers, from 0';
COMMENT ON COLUMN outbox.stat_drainer.pid IS 'Process id; NULL while it is not running';
COMMENT ON COLUMN outbox.stat_drainer.state IS
    'starting, disabled, misconfigured, connecting, idle, publishing, blocked, backoff, paused or stopping; NULL while it is not running';
COMMENT ON COLUMN outbox.stat_drainer.state_since IS 'Since when it has been in this state';
COMMENT ON COLUMN outbox.stat_drainer.broker IS 'The broker, as host:port/vhost';
COMMENT ON COLUMN outbox.stat_drainer.connected_since IS 'Since when it has been connected; NULL while it is not';
COMMENT ON COLUMN outbox.stat_drainer.last_error IS 'The last error; stays after the trouble is over';
COMMENT ON COLUMN outbox.stat_drainer.last_error_at IS 'When the last error occurred';
COMMENT ON COLUMN outbox.stat_drainer.in_flight IS 'Messages sent whose confirm has not come yet';
COMMENT ON COLUMN outbox.stat_drainer.claimed IS 'Events claimed';
COMMENT ON COLUMN outbox.stat_drainer.published IS 'Events marked as published';
COMMENT ON COLUMN outbox.stat_drainer.failed IS 'Attempts that failed and were charged to their event';
COMMENT ON COLUMN outbox.stat_drainer.released IS 'Claims given back without a charge';
COMMENT ON COLUMN outbox.stat_drainer.expired_leases IS 'Claims of dead or stuck drainers taken back';
COMMENT ON COLUMN outbox.stat_drainer.stale_marks IS 'Marks without effect because the claim had been lost';
COMMENT ON COLUMN outbox.stat_drainer.reconnects IS 'Connections made after the first';
COMMENT ON COLUMN outbox.stat_drainer.batches IS 'Batches claimed';
COMMENT ON COLUMN outbox.stat_drainer.bytes IS 'Payload bytes sent, repetitions included';
COMMENT ON COLUMN outbox.stat_drainer.start_failures IS 'Starts that failed, for want of a worker slot for example';
COMMENT ON COLUMN outbox.stat_drainer.stats_reset IS 'Since when the counters have been counting';
GRANT SELECT ON outbox.stat_drainer TO pg_monitor;

CREATE FUNCTION outbox.backlog(
    INOUT relay text DEFAULT 'default',
    OUT pending bigint,
    OUT publishing bigint,
    OUT failed bigint,
    OUT dead bigint,
    OUT oldest_pending timestamptz,
    OUT oldest_pending_age interval
) RETURNS record
    LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_backlog';
COMMENT ON FUNCTION outbox.backlog(text) IS
    'How much a relay has left to do: events pending, publishing and failed, events that ended dead or rejected, and since when the oldest pending event could have been published. Reads what is not done yet, not the history';
REVOKE ALL ON FUNCTION outbox.backlog(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.backlog(text) TO pg_monitor;

CREATE FUNCTION outbox.wake() RETURNS void
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_wake';
COMMENT ON FUNCTION outbox.wake() IS
    'Makes the drainers look at this database when the transaction commits; warns where the library is not preloaded';
REVOKE ALL ON FUNCTION outbox.wake() FROM PUBLIC;

