-- Groups of events that are held, and how they go on.
--
-- An event holds its group when it is deferred other than by its own available_at: it failed, was requeued, or
-- waits behind such a one (next_attempt_at is infinity). Its group is what the relay's ordering says.

-- Sequential scans and, for stop_the_line, the primary key would be read to the end of the history.
CREATE FUNCTION outbox.held_events(
    relay text,
    source text,
    key text,
    only_waiting boolean,
    most integer,
    OUT seq bigint,
    OUT id uuid,
    OUT waits boolean
) RETURNS SETOF record
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 1
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET jit = off
    AS $$
#variable_conflict use_variable
DECLARE
    ordering text := (SELECT r.ordering FROM outbox.relay AS r WHERE r.name = relay);
BEGIN
    IF ordering = 'per_key' AND key IS NOT NULL THEN
        RETURN QUERY
        SELECT e.seq, e.id, e.next_attempt_at = 'infinity' AND e.claimed_by IS NULL
        FROM outbox.event AS e
        WHERE e.source = source AND e.key = key
            AND e.next_attempt_at IS NOT NULL AND e.next_attempt_at IS DISTINCT FROM e.available_at
            AND (NOT only_waiting OR e.next_attempt_at = 'infinity' AND e.claimed_by IS NULL)
        ORDER BY e.seq LIMIT most;
    ELSIF ordering = 'per_source' THEN
        RETURN QUERY
        SELECT e.seq, e.id, e.next_attempt_at = 'infinity' AND e.claimed_by IS NULL
        FROM outbox.event AS e
        WHERE e.source = source
            AND e.next_attempt_at IS NOT NULL AND e.next_attempt_at IS DISTINCT FROM e.available_at
            AND (NOT only_waiting OR e.next_attempt_at = 'infinity' AND e.claimed_by IS NULL)
        ORDER BY e.seq LIMIT most;
    ELSIF ordering = 'stop_the_line' THEN
        RETURN QUERY
        WITH held AS MATERIALIZED (
            SELECT e.seq, e.id, e.next_attempt_at = 'infinity' AND e.claimed_by IS NULL AS waits
            FROM outbox.event AS e
            WHERE e.next_attempt_at IS NOT NULL AND e.next_attempt_at IS DISTINCT FROM e.available_at
        )
        SELECT h.seq, h.id, h.waits FROM held AS h
        WHERE NOT only_waiting OR h.waits
        ORDER BY h.seq LIMIT most;
    END IF;
END
$$;
COMMENT ON FUNCTION outbox.held_events(text, text, text, boolean, integer) IS
    'Internal: the first of the events that hold the group of this source and key, in the order of seq, and whether each waits behind another one';
REVOKE ALL ON FUNCTION outbox.held_events(text, text, text, boolean, integer) FROM PUBLIC;

-- Judges each event again, because it may have waited for another transaction.
CREATE FUNCTION outbox.end_wait(seqs bigint[]) RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    released bigint;
BEGIN
    PERFORM outbox.act_as_owner();
    -- The same time for all, so that they are claimed in the order of seq.
    UPDATE outbox.event AS e SET next_attempt_at = now()
    FROM unnest(seqs) AS s(seq)
    WHERE e.seq = s.seq AND e.next_attempt_at = 'infinity' AND e.claimed_by IS NULL;
    GET DIAGNOSTICS released = ROW_COUNT;
    RETURN released;
END
$$;
COMMENT ON FUNCTION outbox.end_wait(bigint[]) IS 'Internal: makes events due that wait behind another one';
REVOKE ALL ON FUNCTION outbox.end_wait(bigint[]) FROM PUBLIC;

-- The rule by which a group goes on: to be called in the transaction that ended an event that held it, in a
-- later statement, which sees whatever was deferred behind that event (who defers behind an event locks it).
CREATE FUNCTION outbox.release_group(relay text, source text, key text) RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
BEGIN
    IF coalesce((SELECT h.waits FROM outbox.held_events(relay, source, key, false, 1) AS h), false) THEN
        RETURN outbox.end_wait(ARRAY(SELECT h.seq FROM outbox.held_events(relay, source, key, true, 64) AS h));
    END IF;
    RETURN 0;
END
$$;
COMMENT ON FUNCTION outbox.release_group(text, text, text) IS
    'Internal: where the first of a group''s held events waits for nobody, makes the first of those that wait due; how many these are';
REVOKE ALL ON FUNCTION outbox.release_group(text, text, text) FROM PUBLIC;

-- One index probe for each group, however many events are held.
CREATE FUNCTION outbox.headless_groups(relay text, OUT source text, OUT key text) RETURNS SETOF record
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET jit = off
    AS $$
#variable_conflict use_variable
DECLARE
    ordering text := (SELECT r.ordering FROM outbox.relay AS r WHERE r.name = relay);
BEGIN
    IF ordering = 'per_key' THEN
        RETURN QUERY
        WITH RECURSIVE first AS (
            (SELECT e.source, e.key, e.next_attempt_at = 'infinity' AND e.claimed_by IS NULL AS waits
             FROM outbox.event AS e
             WHERE e.key IS NOT NULL
                AND e.next_attempt_at IS NOT NULL AND e.next_attempt_at IS DISTINCT FROM e.available_at
             ORDER BY e.source, e.key, e.seq LIMIT 1)
            UNION ALL
            SELECT n.source, n.key, n.waits
            FROM first AS f
            CROSS JOIN LATERAL (
                SELECT e.source, e.key, e.next_attempt_at = 'infinity' AND e.claimed_by IS NULL AS waits
                FROM outbox.event AS e
                WHERE (e.source, e.key) > (f.source, f.key) AND e.key IS NOT NULL
                    AND e.next_attempt_at IS NOT NULL AND e.next_attempt_at IS DISTINCT FROM e.available_at
                ORDER BY e.source, e.key, e.seq LIMIT 1
            ) AS n
        )
        SELECT f.source, f.key FROM first AS f WHERE f.waits;
    ELSIF ordering = 'per_source' THEN
        RETURN QUERY
        WITH RECURSIVE first AS (
            (SELECT e.source, e.next_attempt_at = 'infinity' AND e.claimed_by IS NULL AS waits
             FROM outbox.event AS e
             WHERE e.next_attempt_at IS NOT NULL AND e.next_attempt_at IS DISTINCT FROM e.available_at
             ORDER BY e.source, e.seq LIMIT 1)
            UNION ALL
            SELECT n.source, n.waits
            FROM first AS f
            CROSS JOIN LATERAL (
                SELECT e.source, e.next_attempt_at = 'infinity' AND e.claimed_by IS NULL AS waits
                FROM outbox.event AS e
                WHERE e.source > f.source
                    AND e.next_attempt_at IS NOT NULL AND e.next_attempt_at IS DISTINCT FROM e.available_at
                ORDER BY e.source, e.seq LIMIT 1
            ) AS n
        )
        SELECT f.source, NULL FROM first AS f WHERE f.waits;
    ELSIF ordering = 'stop_the_line' THEN
        RETURN QUERY VALUES (NULL, NULL);
    END IF;
END
$$;
COMMENT ON FUNCTION outbox.headless_groups(text) IS
    'Internal: groups whose first held event waits for one that is not there';
REVOKE ALL ON FUNCTION outbox.headless_groups(text) FROM PUBLIC;

-- Events wait for nobody after an end that did not release them, which takes a hand that wrote to the table
-- past these functions, or after the ordering was changed to one with smaller groups.
CREATE FUNCTION outbox.release_headless(relay text) RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET jit = off
    AS $$
#variable_conflict use_variable
DECLARE
    ordering text := (SELECT r.ordering FROM outbox.relay AS r WHERE r.name = relay);
    released bigint;
BEGIN
    SELECT coalesce(sum(outbox.release_group(relay, g.source, g.key)), 0) INTO released
    FROM outbox.headless_groups(relay) AS g;
    -- Those that belong to no group.
    IF ordering = 'best_effort' OR ordering = 'per_key' THEN
        released := released + outbox.end_wait(ARRAY(
            SELECT e.seq FROM outbox.event AS e
            WHERE e.next_attempt_at = 'infinity' AND e.next_attempt_at IS DISTINCT FROM e.available_at
                AND e.claimed_by IS NULL AND (ordering = 'best_effort' OR e.key IS NULL)
            LIMIT 100000
        ));
    END IF;
    RETURN released;
END
$$;
COMMENT ON FUNCTION outbox.release_headless(text) IS
    'Internal: makes events due that wait for one that is not there; how many these are';
REVOKE ALL ON FUNCTION outbox.release_headless(text) FROM PUBLIC;
