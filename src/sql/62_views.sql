-- What is not done, and what ended badly. Whatever is not above the floor has ended or is deferred: so these
-- read the table above the floor and the deferred events by their index, and not the history.
CREATE VIEW outbox.pending AS
SELECT v.*
FROM outbox.events AS v
WHERE v.next_attempt_at IS NULL AND v.published_at IS NULL AND v.dead_at IS NULL AND v.claimed_by IS NULL
    AND v.seq > (SELECT coalesce(min(s.floor), 0) FROM outbox.relay_state AS s)
UNION ALL
SELECT v.*
FROM outbox.events AS v
WHERE v.next_attempt_at IS NOT NULL AND v.status = 'pending';
COMMENT ON VIEW outbox.pending IS
    'Events without a charged attempt: new, scheduled, requeued, waiting behind an earlier one, or held for an exchange that does not exist, which last_error names';

CREATE VIEW outbox.failed AS
SELECT v.*
FROM outbox.events AS v
WHERE v.next_attempt_at IS NOT NULL AND v.status = 'failed';
COMMENT ON VIEW outbox.failed IS 'Events of which at least one attempt failed, and that will be tried again';

CREATE VIEW outbox.dead AS
SELECT v.*
FROM outbox.events AS v
WHERE v.dead_at IS NOT NULL AND v.status IN ('dead', 'rejected');
COMMENT ON VIEW outbox.dead IS
    'Events that ended without being published, dead or rejected; those that were discarded are not among them';

-- The columns mean what they mean in outbox.events.
DO $$
DECLARE
    col record;
BEGIN
    FOR col IN
        SELECT v.name, a.attname, pg_catalog.col_description(a.attrelid, a.attnum) AS text
        FROM pg_catalog.pg_attribute AS a
        CROSS JOIN pg_catalog.unnest(ARRAY['pending', 'failed', 'dead']) AS v (name)
        WHERE a.attrelid = 'outbox.events'::regclass AND a.attnum > 0 AND NOT a.attisdropped
    LOOP
        EXECUTE pg_catalog.format('COMMENT ON COLUMN outbox.%I.%I IS %L', col.name, col.attname, col.text);
    END LOOP;
END
$$;
GRANT SELECT ON outbox.pending, outbox.failed, outbox.dead TO pg_monitor;

CREATE FUNCTION outbox.get(id uuid) RETURNS SETOF outbox.events
    LANGUAGE sql STABLE STRICT PARALLEL SAFE SECURITY DEFINER ROWS 1
    SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT v.* FROM outbox.events AS v WHERE v.id = get.id;
END;
COMMENT ON FUNCTION outbox.get(uuid) IS
    'The row of outbox.events with this id; none when there is no such event. For members of pg_monitor';
REVOKE ALL ON FUNCTION outbox.get(uuid) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.get(uuid) TO pg_monitor;

-- Planned without sequential scans: the planner may know nothing yet of a table that grew an hour ago.
CREATE FUNCTION outbox.stuck(
    older_than interval DEFAULT '15 min',
    OUT id uuid,
    OUT seq bigint,
    OUT reason text,
    OUT since timestamptz,
    OUT status text,
    OUT source text,
    OUT key text,
    OUT event_type text,
    OUT attempts integer,
    OUT next_attempt_at timestamptz,
    OUT last_error text,
    OUT claimed_at timestamptz,
    OUT claimed_by text
) RETURNS SETOF record
    LANGUAGE sql VOLATILE STRICT PARALLEL SAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET jit = off
BEGIN ATOMIC
    WITH undone AS (
        SELECT v.* FROM outbox.events AS v
        WHERE v.next_attempt_at IS NULL AND v.published_at IS NULL AND v.dead_at IS NULL
            AND v.seq > (SELECT coalesce(min(s.floor), 0) FROM outbox.relay_state AS s)
        UNION ALL
        SELECT v.* FROM outbox.events AS v
        WHERE v.next_attempt_at IS NOT NULL AND v.published_at IS NULL AND v.dead_at IS NULL
    ),
    judged AS (
        SELECT u.*,
            CASE
                WHEN u.claimed_by IS NOT NULL THEN 'claimed'
                WHEN EXISTS (SELECT FROM outbox.relay AS r WHERE r.paused_at IS NOT NULL) THEN 'paused'
                WHEN u.next_attempt_at = 'infinity' THEN 'behind'
                WHEN u.next_attempt_at IS NOT NULL AND u.last_error LIKE 'held: %' THEN 'held'
                WHEN u.status = 'failed' THEN 'failing'
                ELSE 'pending'
            END AS reason,
            -- What was requeued or released is due since then. What is held was due before it was put off.
            greatest(u.enqueued_at, u.available_at, u.claimed_at,
                CASE WHEN u.status = 'pending' AND u.last_error IS NULL AND u.next_attempt_at < 'infinity' THEN u.next_attempt_at END) AS since
        FROM undone AS u
    )
    SELECT j.id, j.seq, j.reason, j.since, j.status, j.source, j.key, j.event_type, j.attempts,
        j.next_attempt_at, j.last_error, j.claimed_at, j.claimed_by
    FROM judged AS j
    WHERE j.since <= clock_timestamp() - stuck.older_than
    ORDER BY j.seq;
END;
COMMENT ON FUNCTION outbox.stuck(interval) IS
    'Events that should have been done for longer than this, in the order of seq, with the reason in a word: claimed (in a drainer''s hand for that long), paused (the relay is), failing (tried in vain), held (for an exchange that does not exist, see last_error), behind (waits for an earlier event) or pending (nobody has tried it). For members of pg_monitor';
REVOKE ALL ON FUNCTION outbox.stuck(interval) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.stuck(interval) TO pg_monitor;
