-- Waiting for drainers: by polling, without a lock on any row. Each statement sees what was committed before it.
CREATE FUNCTION outbox.written_here(xmin xid) RETURNS boolean
    LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED
    AS 'MODULE_PATHNAME', 'outbox_drainer_written_here';
COMMENT ON FUNCTION outbox.written_here(xid) IS
    'Internal: whether a row with this xmin was written by the current transaction';
REVOKE ALL ON FUNCTION outbox.written_here(xid) FROM PUBLIC;

CREATE FUNCTION outbox.wait_until(timeout interval) RETURNS timestamptz
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF timeout IS NULL OR timeout < '0' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('invalid value for "timeout": %s', coalesce(timeout::text, 'NULL')),
            DETAIL = 'Accepted is a time that is not negative.';
    END IF;
    RETURN clock_timestamp() + timeout;
END
$$;
COMMENT ON FUNCTION outbox.wait_until(interval) IS 'Internal: when a wait that begins now is over';
REVOKE ALL ON FUNCTION outbox.wait_until(interval) FROM PUBLIC;

-- An event never comes back into the fresh lane, so the search goes on where the last one stopped. Rows below
-- that were committed after the call began are nobody's to wait for.
CREATE FUNCTION outbox.flush(timeout interval DEFAULT '30 s', relay text DEFAULT 'default') RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET jit = off
    AS $$
#variable_conflict use_variable
DECLARE
    target outbox.relay := outbox.find_relay(relay);
    deadline timestamptz := outbox.wait_until(timeout);
    last bigint := (SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END FROM outbox.event_seq AS s);
    fresh bigint := coalesce((SELECT s.floor FROM outbox.relay_state AS s WHERE s.relay = relay), 0) + 1;
    pause double precision := 0.01;
    left_over bigint;
BEGIN
    PERFORM outbox.require_read_committed('flush()', 'It would never see the progress.');
    IF EXISTS (
        SELECT FROM outbox.event AS e
        WHERE e.seq BETWEEN fresh AND last AND e.published_at IS NULL AND e.dead_at IS NULL
            AND outbox.written_here(e.xmin)
    ) THEN
        RAISE NOTICE 'flush does not wait for events that this transaction has written';
    END IF;
    IF target.paused_at IS NOT NULL THEN
        RAISE NOTICE 'relay "%" is paused', relay;
    END IF;
    LOOP
        fresh := coalesce((
            SELECT e.seq FROM outbox.event AS e
            WHERE e.seq BETWEEN fresh AND last
                AND e.next_attempt_at IS NULL AND e.published_at IS NULL AND e.dead_at IS NULL
                AND NOT outbox.written_here(e.xmin)
            ORDER BY e.seq LIMIT 1
        ), last + 1);
        -- After that search, since events leave the fresh lane for the deferred one.
        EXIT WHEN fresh > last AND NOT EXISTS (
            SELECT FROM outbox.event AS e
            WHERE e.next_attempt_at IS NOT NULL AND e.seq <= last AND NOT outbox.written_here(e.xmin)
        );
        EXIT WHEN clock_timestamp() >= deadline;
        PERFORM pg_sleep(least(pause, extract(epoch FROM deadline - clock_timestamp())));
        pause := least(pause * 1.5, 0.2);
    END LOOP;
    SELECT
        (SELECT count(*) FROM outbox.event AS e
         WHERE e.seq BETWEEN fresh AND last
            AND e.next_attempt_at IS NULL AND e.published_at IS NULL AND e.dead_at IS NULL
            AND NOT outbox.written_here(e.xmin))
        + (SELECT count(*) FROM outbox.event AS e
           WHERE e.next_attempt_at IS NOT NULL AND e.seq <= last AND NOT outbox.written_here(e.xmin))
    INTO left_over;
    RETURN left_over;
END
$$;
COMMENT ON FUNCTION outbox.flush(interval, text) IS
    'Waits until every event that was committed before the call has ended, published or otherwise, at most for timeout; how many are left. Scheduled events and those that will be tried again count. For roles that were granted EXECUTE';
REVOKE ALL ON FUNCTION outbox.flush(interval, text) FROM PUBLIC;

CREATE FUNCTION outbox.wait_published(id uuid, timeout interval DEFAULT '30 s') RETURNS boolean
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := outbox.wait_until(timeout);
    pause double precision := 0.01;
    event record;
BEGIN
    PERFORM outbox.require_read_committed('wait_published()', 'It would never see the progress.');
    LOOP
        SELECT e.published_at, e.dead_at, e.outcome, e.last_error, outbox.written_here(e.xmin) AS mine
        INTO event
        FROM outbox.event AS e WHERE e.id = id;
        IF NOT FOUND THEN
            RAISE no_data_found USING
                MESSAGE = format('event %s does not exist', coalesce(id::text, 'NULL')),
                HINT = 'It may have been removed after its retention, or the transaction that wrote it is not committed.';
        ELSIF event.published_at IS NOT NULL THEN
            RETURN true;
        ELSIF event.dead_at IS NOT NULL THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = format('event %s will not be published: it is %s', id, coalesce(event.outcome, 'dead')),
                DETAIL = coalesce(event.last_error, 'No error is recorded.'),
                HINT = 'outbox.requeue() lets it begin anew.';
        ELSIF event.mine THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = format('event %s was written by this transaction', id),
                DETAIL = 'It is published after the transaction has committed.',
                HINT = 'Commit first.';
        END IF;
        IF clock_timestamp() >= deadline THEN
            RETURN false;
        END IF;
        PERFORM pg_sleep(least(pause, extract(epoch FROM deadline - clock_timestamp())));
        pause := least(pause * 1.5, 0.2);
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox.wait_published(uuid, interval) IS
    'Waits until an event is published, at most for timeout; false: it is not yet. An error when it ended otherwise. For roles that were granted EXECUTE';
REVOKE ALL ON FUNCTION outbox.wait_published(uuid, interval) FROM PUBLIC;
