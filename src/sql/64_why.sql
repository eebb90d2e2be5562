CREATE FUNCTION outbox.preloaded() RETURNS boolean
    LANGUAGE C STABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_preloaded';
COMMENT ON FUNCTION outbox.preloaded() IS 'Whether the server was started with the library in shared_preload_libraries';
REVOKE ALL ON FUNCTION outbox.preloaded() FROM PUBLIC;

CREATE FUNCTION outbox.launcher_runs() RETURNS boolean
    LANGUAGE C VOLATILE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_launcher_runs';
COMMENT ON FUNCTION outbox.launcher_runs() IS 'Whether the process is there that starts drainers';
REVOKE ALL ON FUNCTION outbox.launcher_runs() FROM PUBLIC;

CREATE FUNCTION outbox.claim_holder(claimed_by text, OUT worker integer, OUT pid integer, OUT alive boolean) RETURNS record
    LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED
    AS 'MODULE_PATHNAME', 'outbox_drainer_claim_holder';
COMMENT ON FUNCTION outbox.claim_holder(text) IS
    'Which drainer of this database holds the claims with this token; alive: false when it is gone, NULL when the token is none of a drainer';
REVOKE ALL ON FUNCTION outbox.claim_holder(text) FROM PUBLIC;

-- The pieces of outbox.why(). Each gives one phrase, or NULL when it has nothing to say. They are stable, so that
-- all of them see the table as it was at one moment.

CREATE FUNCTION outbox.why_time(moment timestamptz) RETURNS text
    LANGUAGE sql STABLE STRICT PARALLEL SAFE
    RETURN date_trunc('second', moment)::text;
COMMENT ON FUNCTION outbox.why_time(timestamptz) IS 'How outbox.why() writes a time';
REVOKE ALL ON FUNCTION outbox.why_time(timestamptz) FROM PUBLIC;

CREATE FUNCTION outbox.why_ended(e outbox.event) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    RETURN CASE
        WHEN e.published_at IS NOT NULL THEN
            'published at ' || outbox.why_time(e.published_at)
                || CASE WHEN e.attempts > 0 THEN '; failed attempts before: ' || e.attempts ELSE '' END
        WHEN e.dead_at IS NOT NULL AND e.outcome IN ('rejected', 'discarded') THEN
            e.outcome || ' at ' || outbox.why_time(e.dead_at)
                || coalesce(': ' || coalesce(regexp_replace(e.last_error, '^(rejected|discarded): ', ''), e.error_code), '')
        WHEN e.dead_at IS NOT NULL THEN
            'dead since ' || outbox.why_time(e.dead_at) || '; failed attempts: ' || e.attempts
                || coalesce('; the last error: ' || coalesce(e.last_error, e.error_code), '')
    END;
COMMENT ON FUNCTION outbox.why_ended(outbox.event) IS 'Piece of outbox.why(): how the event ended';
REVOKE ALL ON FUNCTION outbox.why_ended(outbox.event) FROM PUBLIC;

CREATE FUNCTION outbox.why_claimed(e outbox.event) RETURNS text
    LANGUAGE plpgsql STABLE PARALLEL RESTRICTED
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    lease_end CONSTANT timestamptz := e.claimed_at + current_setting('outbox_drainer.lease_ttl')::interval;
    holder record;
    back CONSTANT text := CASE
        WHEN lease_end > clock_timestamp() THEN 'taken back at ' || outbox.why_time(lease_end) || ' at the latest'
        ELSE 'taken back at the next sweep'
    END;
BEGIN
    IF e.claimed_by IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT h.worker, h.pid, h.alive INTO holder FROM outbox.claim_holder(e.claimed_by) AS h;
    RETURN CASE
        WHEN holder.alive THEN format('held by drainer %s (pid %s) until %s', holder.worker, holder.pid, outbox.why_time(lease_end))
        WHEN NOT holder.alive THEN 'claimed by a drainer that is gone, ' || back
        ELSE format('claimed by "%s", which is no drainer of this server, %s', left(e.claimed_by, 60), back)
    END;
END
$$;
COMMENT ON FUNCTION outbox.why_claimed(outbox.event) IS 'Piece of outbox.why(): who has the event in hand';
REVOKE ALL ON FUNCTION outbox.why_claimed(outbox.event) FROM PUBLIC;

CREATE FUNCTION outbox.why_held(e outbox.event) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    RETURN CASE
        WHEN e.last_error ~ '^held: exchange ".*" does not exist$' THEN
            format('waits for %s, which does not exist; it is looked for every few seconds',
                substring(e.last_error FROM '^held: (exchange ".*") does not exist$'))
                || CASE WHEN e.attempts > 0 THEN '; failed attempts before: ' || e.attempts ELSE '' END
        WHEN e.last_error LIKE 'held: %' THEN
            format('put off until %s, not charged: %s', outbox.why_time(e.next_attempt_at), substr(e.last_error, 7))
    END;
COMMENT ON FUNCTION outbox.why_held(outbox.event) IS 'Piece of outbox.why(): what the event is held for';
REVOKE ALL ON FUNCTION outbox.why_held(outbox.event) FROM PUBLIC;

-- Those that are due say nothing: they are about to be taken.
CREATE FUNCTION outbox.why_deferred(e outbox.event, relay outbox.relay) RETURNS text
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    most CONSTANT integer := coalesce(relay.max_attempts, current_setting('outbox_drainer.max_attempts')::integer);
    until CONSTANT text := outbox.why_time(e.next_attempt_at);
BEGIN
    RETURN CASE
        WHEN e.next_attempt_at IS NULL OR e.next_attempt_at <= clock_timestamp() THEN NULL
        WHEN e.next_attempt_at = e.available_at THEN 'waits for its time, ' || until
        WHEN e.next_attempt_at = 'infinity' THEN NULL
        WHEN e.last_error LIKE 'held: %' THEN outbox.why_held(e)
        WHEN e.attempts > 0 THEN format('backing off until %s after failed attempt %s%s%s', until, e.attempts,
            CASE WHEN most > 0 THEN ' of ' || most END, ': ' || e.last_error)
        WHEN e.last_error IS NOT NULL THEN format('put off until %s, not charged: %s', until, e.last_error)
        ELSE 'deferred until ' || until
    END;
END
$$;
COMMENT ON FUNCTION outbox.why_deferred(outbox.event, outbox.relay) IS 'Piece of outbox.why(): what time the event waits for';
REVOKE ALL ON FUNCTION outbox.why_deferred(outbox.event, outbox.relay) FROM PUBLIC;

-- A lock that several share is not seen here: its holders stand in a multixact.
CREATE FUNCTION outbox.why_locked(seq bigint) RETURNS text
    LANGUAGE plpgsql STABLE STRICT PARALLEL RESTRICTED
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    holder integer;
BEGIN
    SELECT l.pid INTO holder
    FROM outbox.event AS e
    JOIN pg_locks AS l ON l.locktype = 'transactionid' AND l.granted AND l.transactionid = e.xmax
    WHERE e.seq = why_locked.seq AND e.xmax::text <> '0'
        AND l.pid NOT IN (SELECT s.pid FROM outbox.drainer_slots() AS s WHERE s.pid IS NOT NULL);
    RETURN 'locked by the transaction of pid ' || holder;
END
$$;
COMMENT ON FUNCTION outbox.why_locked(bigint) IS 'Piece of outbox.why(): who keeps drainers from taking the event';
REVOKE ALL ON FUNCTION outbox.why_locked(bigint) FROM PUBLIC;

-- The lowest event that holds the group of this one: the first in the index with the same predicate at or after the
-- group's beginning, if it belongs to the group. (Looking for the group by equality, in the order of seq, could be
-- planned as a walk along the primary key.) Where the line is stopped, the failed events are those that come due:
-- few, as all else waits.
CREATE FUNCTION outbox.why_holder(e outbox.event, ordering text) RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET jit = off
    RETURN CASE
        WHEN ordering = 'per_key' AND e.key IS NOT NULL THEN (
            SELECT f.seq FROM (
                SELECT h.source, h.key, h.seq FROM outbox.event AS h
                WHERE h.next_attempt_at IS NOT NULL AND h.next_attempt_at IS DISTINCT FROM h.available_at
                    AND (h.source, h.key, h.seq) >= (e.source, e.key, -9223372036854775808)
                ORDER BY h.source, h.key, h.seq LIMIT 1
            ) AS f
            WHERE f.source = e.source AND f.key = e.key AND f.seq < e.seq
        )
        WHEN ordering = 'per_source' THEN (
            SELECT f.seq FROM (
                SELECT h.source, h.seq FROM outbox.event AS h
                WHERE h.next_attempt_at IS NOT NULL AND h.next_attempt_at IS DISTINCT FROM h.available_at
                    AND (h.source, h.seq) >= (e.source, -9223372036854775808)
                ORDER BY h.source, h.seq LIMIT 1
            ) AS f
            WHERE f.source = e.source AND f.seq < e.seq
        )
        WHEN ordering = 'stop_the_line' THEN (
            SELECT min(f.seq) FROM (
                SELECT d.seq FROM outbox.event AS d
                WHERE d.next_attempt_at IS NOT NULL AND d.next_attempt_at IS DISTINCT FROM d.available_at
                    AND d.next_attempt_at < 'infinity'
                ORDER BY d.next_attempt_at LIMIT 1000
            ) AS f
            WHERE f.seq <> e.seq
        )
    END;
COMMENT ON FUNCTION outbox.why_holder(outbox.event, text) IS 'Piece of outbox.why(): seq of the event that holds the group of this one';
REVOKE ALL ON FUNCTION outbox.why_holder(outbox.event, text) FROM PUBLIC;

-- How many fresh events that nobody has in hand come before this one, and the first of its group, in hand or not.
-- Of a long backlog only the beginning is read.
CREATE FUNCTION outbox.why_queued(e outbox.event, ordering text, OUT before bigint, OUT more boolean, OUT ahead bigint) RETURNS record
    LANGUAGE sql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET jit = off
BEGIN ATOMIC
    SELECT
        count(*) FILTER (WHERE w.fresh AND w.claimed_by IS NULL),
        count(*) = 10000,
        min(w.seq) FILTER (
            WHERE w.fresh AND CASE ordering
                WHEN 'per_key' THEN w.source = e.source AND w.key = e.key
                WHEN 'per_source' THEN w.source = e.source
                WHEN 'stop_the_line' THEN true
            END
        )
    FROM (
        SELECT x.seq, x.source, x.key, x.claimed_by,
            x.published_at IS NULL AND x.dead_at IS NULL AND x.next_attempt_at IS NULL AS fresh
        FROM outbox.event AS x
        WHERE x.seq > coalesce((SELECT s.floor FROM outbox.relay_state AS s WHERE s.relay = 'default'), 0)
            AND x.seq < e.seq
        ORDER BY x.seq
        LIMIT 10000
    ) AS w;
END;
COMMENT ON FUNCTION outbox.why_queued(outbox.event, text) IS 'Piece of outbox.why(): which fresh events come before this one';
REVOKE ALL ON FUNCTION outbox.why_queued(outbox.event, text) FROM PUBLIC;

CREATE FUNCTION outbox.why_drainer(d outbox.stat_drainer) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    RETURN CASE
        WHEN d.pid IS NULL AND d.last_error = 'out of background worker slots' THEN
            'no drainer runs: no background worker is free, raise max_worker_processes'
        WHEN d.pid IS NULL THEN
            'no drainer runs: it is about to be started' || coalesce('; its last error: ' || d.last_error, '')
        WHEN d.state IN ('starting', 'stopping') THEN
            'the drainer is ' || d.state || ' since ' || outbox.why_time(d.state_since)
        WHEN d.state = 'disabled' THEN
            'drainers are disabled since ' || outbox.why_time(d.state_since) || ' by outbox_drainer.enabled'
        WHEN d.state = 'misconfigured' THEN
            'the drainer is misconfigured since ' || outbox.why_time(d.state_since) || coalesce(': ' || d.last_error, '')
        WHEN d.state = 'blocked' THEN
            format('the broker "%s" blocks publishing since %s%s', d.broker, outbox.why_time(d.state_since),
                ': ' || substring(d.last_error FROM '^blocked by the broker: (.*)'))
        WHEN d.connected_since IS NULL AND d.broker IS NULL AND d.state = 'idle' THEN
            'no broker is configured: outbox_drainer.broker_uri is not set'
        WHEN d.connected_since IS NULL AND d.state IN ('connecting', 'backoff', 'idle') THEN
            format('the broker%s is disconnected%s%s', ' "' || nullif(d.broker, '') || '"',
                ' since ' || outbox.why_time(d.disconnected_since),
                CASE WHEN d.last_error_at >= d.disconnected_since THEN ': ' || d.last_error END)
        WHEN d.state = 'backoff' THEN
            'the drainer waits after an error since ' || outbox.why_time(d.state_since) || coalesce(': ' || d.last_error, '')
    END;
COMMENT ON FUNCTION outbox.why_drainer(outbox.stat_drainer) IS 'Piece of outbox.why(): what keeps a drainer from publishing';
REVOKE ALL ON FUNCTION outbox.why_drainer(outbox.stat_drainer) FROM PUBLIC;

CREATE FUNCTION outbox.why_no_drainer_comes() RETURNS text
    LANGUAGE plpgsql STABLE PARALLEL RESTRICTED
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    preloaded CONSTANT boolean := outbox.preloaded();  -- loads the library, so that its settings are known
    databases CONSTANT text := current_setting('outbox_drainer.databases');
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN 'no drainer runs: this server is a standby';
    ELSIF NOT preloaded THEN
        RETURN 'no drainer runs: outbox_drainer is not in shared_preload_libraries';
    ELSIF databases <> '' AND NOT EXISTS (
        SELECT FROM string_to_table(databases, ',') AS d WHERE trim(d) = current_database()
    ) THEN
        RETURN 'no drainer runs: this database is not in outbox_drainer.databases';
    ELSIF NOT outbox.launcher_runs() THEN
        RETURN 'no drainer runs: the launcher does not run; if it stays so, raise max_worker_processes and restart the server';
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION outbox.why_no_drainer_comes() IS
    'Piece of outbox.why(): why this database will have no drainer until somebody does something about it';
REVOKE ALL ON FUNCTION outbox.why_no_drainer_comes() FROM PUBLIC;

CREATE FUNCTION outbox.why_nothing_is_drained() RETURNS text
    LANGUAGE plpgsql STABLE PARALLEL RESTRICTED
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    never CONSTANT text := outbox.why_no_drainer_comes();
    found record;
BEGIN
    IF never IS NOT NULL THEN
        RETURN never;
    END IF;
    SELECT count(*) AS drainers, count(t.trouble) AS troubled, min(t.trouble) AS trouble,
        string_agg(format('drainer %s: %s', d.worker, t.trouble), '; ' ORDER BY d.worker) FILTER (WHERE t.trouble IS NOT NULL) AS each
    INTO found
    FROM outbox.stat_drainer AS d
    CROSS JOIN LATERAL outbox.why_drainer(d) AS t (trouble)
    WHERE d.datid = (SELECT c.oid FROM pg_database AS c WHERE c.datname = current_database());
    RETURN CASE
        WHEN found.drainers = 0 THEN 'no drainer runs: it is about to be started'
        WHEN found.troubled = 0 THEN NULL
        WHEN found.troubled < found.drainers THEN format('of %s drainers not all publish (%s)', found.drainers, found.each)
        ELSE found.trouble
    END;
END
$$;
COMMENT ON FUNCTION outbox.why_nothing_is_drained() IS 'Piece of outbox.why(): what keeps the drainers of this database from publishing';
REVOKE ALL ON FUNCTION outbox.why_nothing_is_drained() FROM PUBLIC;

-- What an event that has not ended waits for itself, apart from those before it.
CREATE FUNCTION outbox.why_own(e outbox.event, relay outbox.relay) RETURNS text
    LANGUAGE sql STABLE PARALLEL RESTRICTED
    SET search_path = pg_catalog, pg_temp
    RETURN coalesce(outbox.why_ended(e), outbox.why_claimed(e), outbox.why_deferred(e, relay), outbox.why_locked(e.seq));
COMMENT ON FUNCTION outbox.why_own(outbox.event, outbox.relay) IS 'Piece of outbox.why(): what is to say of this event alone';
REVOKE ALL ON FUNCTION outbox.why_own(outbox.event, outbox.relay) FROM PUBLIC;

CREATE FUNCTION outbox.why_behind(e outbox.event, relay outbox.relay) RETURNS text
    LANGUAGE plpgsql STABLE PARALLEL RESTRICTED
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    waits CONSTANT boolean := coalesce(e.next_attempt_at = 'infinity', false);
    ahead outbox.event;
    queued record;
BEGIN
    queued := outbox.why_queued(e, relay.ordering);
    SELECT x.* INTO ahead FROM outbox.event AS x
    WHERE x.seq = coalesce(outbox.why_holder(e, relay.ordering), CASE WHEN e.next_attempt_at IS NULL THEN queued.ahead END);
    ahead.payload := NULL;  -- it may be large, and is not needed
    RETURN CASE
        WHEN ahead.seq IS NOT NULL THEN format('%s event %s%s: %s',
            CASE relay.ordering WHEN 'stop_the_line' THEN 'the line waits for' ELSE 'behind' END,
            ahead.id,
            CASE relay.ordering
                WHEN 'per_key' THEN format(' of key "%s"', e.key)
                WHEN 'per_source' THEN format(' of source "%s"', e.source)
            END,
            coalesce(outbox.why_own(ahead, relay), 'due again after ' || regexp_replace(ahead.last_error, '^held: ', 'it was held: '), 'not published yet'))
        WHEN waits THEN 'deferred behind an event that has ended; the next sweep makes it due'
        WHEN e.next_attempt_at IS NULL AND e.seq <= (SELECT s.floor FROM outbox.relay_state AS s WHERE s.relay = relay.name) THEN
            'made free again behind what drainers have read; their sweep finds it'
        WHEN e.next_attempt_at IS NULL AND queued.before > 0 THEN format('waits its turn; events before it: %s%s',
            CASE WHEN queued.more THEN 'at least ' END, queued.before)
    END;
END
$$;
COMMENT ON FUNCTION outbox.why_behind(outbox.event, outbox.relay) IS 'Piece of outbox.why(): what the event waits behind';
REVOKE ALL ON FUNCTION outbox.why_behind(outbox.event, outbox.relay) FROM PUBLIC;

-- With the rights of its owner, since it reads the outbox; of which it tells no more than ids, keys and errors.
CREATE FUNCTION outbox.why(id uuid) RETURNS text
    LANGUAGE plpgsql STABLE STRICT PARALLEL RESTRICTED SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    e outbox.event;
    relay outbox.relay;
    mine boolean;
    own text;
    paused text;
    nobody text;
BEGIN
    PERFORM outbox.preloaded();  -- loads the library, so that its settings are known
    SELECT x.* INTO e FROM outbox.event AS x WHERE x.id = why.id;
    IF NOT FOUND THEN
        RETURN 'unknown: there is no such event, or it is not committed yet, or it was removed after its retention';
    END IF;
    SELECT outbox.written_here(x.xmin) INTO mine FROM outbox.event AS x WHERE x.id = why.id;
    e.payload := NULL;  -- it may be large, and is not needed
    SELECT r.* INTO relay FROM outbox.relay AS r WHERE r.name = 'default';
    own := outbox.why_own(e, relay);
    IF e.published_at IS NULL AND e.dead_at IS NULL THEN
        own := coalesce(own, outbox.why_behind(e, relay));
        paused := 'the relay is paused since ' || outbox.why_time(relay.paused_at)
            || coalesce(' by ' || relay.paused_by, '') || coalesce(': ' || relay.pause_reason, '');
        nobody := outbox.why_nothing_is_drained();
        IF own IS NULL AND paused IS NULL AND nobody IS NULL THEN
            own := CASE WHEN mine THEN 'not committed yet: this transaction has written it'
                ELSE 'is next: a drainer takes it at its next look' || coalesce(CASE
                    WHEN e.last_error LIKE 'held: %' THEN '; it was ' || e.last_error
                    ELSE format('; failed attempts: %s, the last error: ', e.attempts) || e.last_error
                END, '')
                END;
        END IF;
    END IF;
    RETURN regexp_replace(concat_ws('; ', own, paused, nobody), '\s+', ' ', 'g');
END
$$;
COMMENT ON FUNCTION outbox.why(uuid) IS
    'Why an event is where it is, in one line: when it was published, or what it waits for';
REVOKE ALL ON FUNCTION outbox.why(uuid) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.why(uuid) TO pg_monitor;
