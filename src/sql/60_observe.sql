CREATE FUNCTION outbox.drainer_slots(
    OUT datid oid,
    OUT database text,
    OUT worker integer,
    OUT pid integer,
    OUT state text,
    OUT state_since timestamptz,
    OUT broker text,
    OUT connected_since timestamptz,
    OUT disconnected_since timestamptz,
    OUT last_error text,
    OUT last_error_at timestamptz,
    OUT in_flight integer,
    OUT halted_on bigint,
    OUT claimed bigint,
    OUT published bigint,
    OUT failed bigint,
    OUT rejected bigint,
    OUT dead bigint,
    OUT deferred bigint,
    OUT held bigint,
    OUT released bigint,
    OUT expired_leases bigint,
    OUT stale_marks bigint,
    OUT reconnects bigint,
    OUT batches bigint,
    OUT bytes bigint,
    OUT collected bigint,
    OUT replayed bigint,
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
    s.datid,
    s.database,
    s.worker,
    s.pid,
    s.state,
    s.state_since,
    s.broker,
    s.connected_since,
    s.disconnected_since,
    s.last_error,
    s.last_error_at,
    s.in_flight,
    s.halted_on,
    s.claimed,
    s.published,
    s.failed,
    s.rejected,
    s.dead,
    s.deferred,
    s.held,
    s.released,
    s.expired_leases,
    s.stale_marks,
    s.reconnects,
    s.batches,
    s.bytes,
    s.collected,
    s.replayed,
    s.start_failures,
    s.stats_reset
FROM outbox.drainer_slots() AS s;

COMMENT ON VIEW outbox.stat_drainer IS
    'One row for each drainer of the server, of all databases; empty where the library is not preloaded';
COMMENT ON COLUMN outbox.stat_drainer.datid IS 'Database that is drained, by its oid';
COMMENT ON COLUMN outbox.stat_drainer.database IS 'Database that is drained, by its name';
COMMENT ON COLUMN outbox.stat_drainer.worker IS 'Which of the database''s drainers, from 0';
COMMENT ON COLUMN outbox.stat_drainer.pid IS 'Process id; NULL while it is not running';
COMMENT ON COLUMN outbox.stat_drainer.state IS
    'starting, disabled, misconfigured, connecting, idle, publishing, blocked, backoff, paused or stopping; NULL while it is not running';
COMMENT ON COLUMN outbox.stat_drainer.state_since IS 'Since when it has been in this state';
COMMENT ON COLUMN outbox.stat_drainer.broker IS 'The broker, as host:port/vhost';
COMMENT ON COLUMN outbox.stat_drainer.connected_since IS 'Since when it has been connected; NULL while it is not';
COMMENT ON COLUMN outbox.stat_drainer.disconnected_since IS
    'Since when it has not been connected, its restarts included; NULL while it is, and before it first tries';
COMMENT ON COLUMN outbox.stat_drainer.last_error IS 'The last error; stays after the trouble is over';
COMMENT ON COLUMN outbox.stat_drainer.last_error_at IS 'When the last error occurred';
COMMENT ON COLUMN outbox.stat_drainer.in_flight IS 'Messages sent whose confirm has not come yet';
COMMENT ON COLUMN outbox.stat_drainer.halted_on IS
    'seq of the event that has to be published first, where the relays ordering is stop_the_line; NULL: none';
COMMENT ON COLUMN outbox.stat_drainer.claimed IS 'Events claimed';
COMMENT ON COLUMN outbox.stat_drainer.published IS 'Events marked as published';
COMMENT ON COLUMN outbox.stat_drainer.failed IS 'Attempts that failed and were charged to their event';
COMMENT ON COLUMN outbox.stat_drainer.rejected IS 'Events refused for good';
COMMENT ON COLUMN outbox.stat_drainer.dead IS 'Events that used up their attempts';
COMMENT ON COLUMN outbox.stat_drainer.deferred IS 'Events put behind another one that failed';
COMMENT ON COLUMN outbox.stat_drainer.held IS 'Times that events were put off, without a charge, until the broker has what they need';
COMMENT ON COLUMN outbox.stat_drainer.released IS 'Claims given back without a charge';
COMMENT ON COLUMN outbox.stat_drainer.expired_leases IS 'Claims of dead or stuck drainers taken back';
COMMENT ON COLUMN outbox.stat_drainer.stale_marks IS 'Marks without effect because the claim had been lost';
COMMENT ON COLUMN outbox.stat_drainer.reconnects IS 'Connections made after the first';
COMMENT ON COLUMN outbox.stat_drainer.batches IS 'Batches claimed';
COMMENT ON COLUMN outbox.stat_drainer.bytes IS 'Payload bytes sent, repetitions included';
COMMENT ON COLUMN outbox.stat_drainer.collected IS 'Events removed at the end of their retention';
COMMENT ON COLUMN outbox.stat_drainer.replayed IS 'Published events that were sent again by a replay';
COMMENT ON COLUMN outbox.stat_drainer.start_failures IS 'Starts that failed, for want of a worker slot for example';
COMMENT ON COLUMN outbox.stat_drainer.stats_reset IS 'Since when the counters have been counting';
GRANT SELECT ON outbox.stat_drainer TO pg_monitor;

-- Only the default relay is drained, so all that this database's drainers did was done for it.
CREATE VIEW outbox.stat_relay AS
SELECT
    r.name AS relay,
    r.ordering,
    r.paused_at,
    r.paused_by,
    r.pause_reason,
    s.backlog,
    s.backlog_at,
    d.drainers,
    (SELECT e.id FROM outbox.event AS e WHERE e.seq = d.halted_on) AS halted_on,
    d.claimed,
    d.published,
    greatest(d.failed - d.dead, 0) AS retried,
    d.failed,
    d.rejected,
    d.dead,
    d.deferred,
    d.held,
    d.released,
    d.expired_leases AS reclaimed,
    d.stale_marks,
    d.collected,
    d.replayed,
    d.batches,
    d.bytes,
    d.reconnects,
    d.stats_reset
FROM outbox.relay AS r
LEFT JOIN outbox.relay_state AS s ON s.relay = r.name
CROSS JOIN LATERAL (
    SELECT
        count(s.pid) AS drainers,
        max(s.halted_on) AS halted_on,
        coalesce(sum(s.claimed), 0)::bigint AS claimed,
        coalesce(sum(s.published), 0)::bigint AS published,
        coalesce(sum(s.failed), 0)::bigint AS failed,
        coalesce(sum(s.rejected), 0)::bigint AS rejected,
        coalesce(sum(s.dead), 0)::bigint AS dead,
        coalesce(sum(s.deferred), 0)::bigint AS deferred,
        coalesce(sum(s.held), 0)::bigint AS held,
        coalesce(sum(s.released), 0)::bigint AS released,
        coalesce(sum(s.expired_leases), 0)::bigint AS expired_leases,
        coalesce(sum(s.stale_marks), 0)::bigint AS stale_marks,
        coalesce(sum(s.collected), 0)::bigint AS collected,
        coalesce(sum(s.replayed), 0)::bigint AS replayed,
        coalesce(sum(s.batches), 0)::bigint AS batches,
        coalesce(sum(s.bytes), 0)::bigint AS bytes,
        coalesce(sum(s.reconnects), 0)::bigint AS reconnects,
        min(s.stats_reset) AS stats_reset
    FROM outbox.stat_drainer AS s
    WHERE r.name = 'default'
        AND s.datid = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
) AS d;

COMMENT ON VIEW outbox.stat_relay IS
    'One row for each relay of this database, with what its drainers have done, all of them together; the counters are zero where the library is not preloaded';
COMMENT ON COLUMN outbox.stat_relay.relay IS 'Name of the relay';
COMMENT ON COLUMN outbox.stat_relay.ordering IS 'Which events keep their order';
COMMENT ON COLUMN outbox.stat_relay.paused_at IS 'Since when the relay has been paused; NULL: it is not';
COMMENT ON COLUMN outbox.stat_relay.paused_by IS 'Who paused it';
COMMENT ON COLUMN outbox.stat_relay.pause_reason IS 'Why it was paused';
COMMENT ON COLUMN outbox.stat_relay.backlog IS 'Events that were left to do at backlog_at, sampled now and then; outbox.backlog() counts them now';
COMMENT ON COLUMN outbox.stat_relay.backlog_at IS 'When the backlog was sampled';
COMMENT ON COLUMN outbox.stat_relay.drainers IS 'Drainers that are running';
COMMENT ON COLUMN outbox.stat_relay.halted_on IS 'The event that has to be published first, where the ordering is stop_the_line; NULL: none';
COMMENT ON COLUMN outbox.stat_relay.claimed IS 'Events claimed, those claimed again included';
COMMENT ON COLUMN outbox.stat_relay.published IS 'Events marked as published';
COMMENT ON COLUMN outbox.stat_relay.retried IS 'Attempts that failed and are followed by another';
COMMENT ON COLUMN outbox.stat_relay.failed IS 'Attempts that failed and were charged to their event: those retried and the last ones of dead events';
COMMENT ON COLUMN outbox.stat_relay.rejected IS 'Events refused for good';
COMMENT ON COLUMN outbox.stat_relay.dead IS 'Events that used up their attempts';
COMMENT ON COLUMN outbox.stat_relay.deferred IS 'Events put behind another one that failed';
COMMENT ON COLUMN outbox.stat_relay.held IS 'Times that events were put off, without a charge, until the broker has what they need';
COMMENT ON COLUMN outbox.stat_relay.released IS 'Claims given back without a charge';
COMMENT ON COLUMN outbox.stat_relay.reclaimed IS 'Claims of dead or stuck drainers taken back';
COMMENT ON COLUMN outbox.stat_relay.stale_marks IS 'Marks without effect because the claim had been lost';
COMMENT ON COLUMN outbox.stat_relay.collected IS 'Events removed at the end of their retention';
COMMENT ON COLUMN outbox.stat_relay.replayed IS 'Published events that were sent again by a replay';
COMMENT ON COLUMN outbox.stat_relay.batches IS 'Batches claimed; outbox.stat_batch_sizes has their sizes';
COMMENT ON COLUMN outbox.stat_relay.bytes IS 'Payload bytes sent, repetitions included';
COMMENT ON COLUMN outbox.stat_relay.reconnects IS 'Connections made after the first';
COMMENT ON COLUMN outbox.stat_relay.stats_reset IS 'Since when the counters have been counting';
GRANT SELECT ON outbox.stat_relay TO pg_monitor;

CREATE FUNCTION outbox.batch_size_counts(OUT up_to integer, OUT batches bigint) RETURNS SETOF record
    LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 7
    AS 'MODULE_PATHNAME', 'outbox_drainer_batch_size_counts';
COMMENT ON FUNCTION outbox.batch_size_counts() IS 'What outbox.stat_batch_sizes shows, from shared memory';
REVOKE ALL ON FUNCTION outbox.batch_size_counts() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.batch_size_counts() TO pg_monitor;

CREATE VIEW outbox.stat_batch_sizes AS
SELECT 'default'::text AS relay, b.up_to, b.batches FROM outbox.batch_size_counts() AS b;
COMMENT ON VIEW outbox.stat_batch_sizes IS 'How many events the batches of this database''s drainers had';
COMMENT ON COLUMN outbox.stat_batch_sizes.relay IS 'Name of the relay';
COMMENT ON COLUMN outbox.stat_batch_sizes.up_to IS
    'Batches with at most so many events, and more than in the row before; NULL: the rest';
COMMENT ON COLUMN outbox.stat_batch_sizes.batches IS 'How many batches';
GRANT SELECT ON outbox.stat_batch_sizes TO pg_monitor;

CREATE FUNCTION outbox.stat_reset() RETURNS void
    LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED
    AS 'MODULE_PATHNAME', 'outbox_drainer_stat_reset';
COMMENT ON FUNCTION outbox.stat_reset() IS 'Sets the counters of this database''s drainers to zero';
REVOKE ALL ON FUNCTION outbox.stat_reset() FROM PUBLIC;

CREATE FUNCTION outbox.backlog(
    INOUT relay text DEFAULT 'default',
    OUT pending bigint,
    OUT publishing bigint,
    OUT failed bigint,
    OUT deferred bigint,
    OUT dead bigint,
    OUT oldest_pending timestamptz,
    OUT oldest_pending_age interval,
    OUT estimated boolean
) RETURNS record
    LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_backlog';
COMMENT ON FUNCTION outbox.backlog(text) IS
    'How much a relay has left to do: events pending, publishing and failed, how many of these are deferred behind another event, events that ended dead or rejected, and since when the oldest pending event could have been published. Counts some 20000 of each kind and estimates the rest, as estimated says';
REVOKE ALL ON FUNCTION outbox.backlog(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.backlog(text) TO pg_monitor;

CREATE FUNCTION outbox.wake() RETURNS void
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_wake';
COMMENT ON FUNCTION outbox.wake() IS
    'Makes the drainers look at this database when the transaction commits; warns where the library is not preloaded';
REVOKE ALL ON FUNCTION outbox.wake() FROM PUBLIC;

