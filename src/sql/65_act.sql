-- What operators do to events. A row is locked before it is judged, since a drainer may be claiming it at that
-- moment; each statement then sees what was committed before it.

-- The writes, to rows that the caller has locked.
CREATE FUNCTION outbox.make_due(seqs bigint[]) RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    due timestamptz := clock_timestamp();
BEGIN
    PERFORM outbox.act_as_owner();
    -- Never back into the fresh lane, which drainers may have gone past; and not before its own time.
    UPDATE outbox.event AS e SET
        attempts = 0, last_error = NULL, error_code = NULL, outcome = NULL, dead_at = NULL,
        claimed_at = NULL, claimed_by = NULL, next_attempt_at = greatest(due, e.available_at)
    WHERE e.seq = ANY (seqs);
END
$$;
COMMENT ON FUNCTION outbox.make_due(bigint[]) IS 'Internal: events, locked before, begin anew';
REVOKE ALL ON FUNCTION outbox.make_due(bigint[]) FROM PUBLIC;

CREATE FUNCTION outbox.end_events(seqs bigint[], outcome text, error_code text, last_error text) RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
BEGIN
    PERFORM outbox.act_as_owner();
    UPDATE outbox.event AS e SET
        dead_at = clock_timestamp(), outcome = outcome, next_attempt_at = NULL, claimed_at = NULL, claimed_by = NULL,
        last_error = coalesce(last_error, e.last_error),
        error_code = coalesce(error_code, substring(e.last_error FROM '^([a-z_]+)(?:: |$)'), 'attempts')
    WHERE e.seq = ANY (seqs);
END
$$;
COMMENT ON FUNCTION outbox.end_events(bigint[], text, text, text) IS
    'Internal: ends events, locked before; by default with the class of their last error';
REVOKE ALL ON FUNCTION outbox.end_events(bigint[], text, text, text) FROM PUBLIC;

CREATE FUNCTION outbox.give_back(seqs bigint[]) RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM outbox.act_as_owner();
    UPDATE outbox.event AS e SET claimed_at = NULL, claimed_by = NULL WHERE e.seq = ANY (seqs);
END
$$;
COMMENT ON FUNCTION outbox.give_back(bigint[]) IS 'Internal: takes events, locked before, out of a drainer''s hand';
REVOKE ALL ON FUNCTION outbox.give_back(bigint[]) FROM PUBLIC;

CREATE FUNCTION outbox.remove_events(seqs bigint[]) RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    removed bigint;
BEGIN
    PERFORM outbox.act_as_owner();
    DELETE FROM outbox.event AS e WHERE e.seq = ANY (seqs);
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END
$$;
COMMENT ON FUNCTION outbox.remove_events(bigint[]) IS 'Internal: deletes events, locked before';
REVOKE ALL ON FUNCTION outbox.remove_events(bigint[]) FROM PUBLIC;

CREATE FUNCTION outbox.lock_event(
    INOUT id uuid,
    OUT seq bigint,
    OUT status text,
    OUT source text,
    OUT key text,
    OUT available_at timestamptz,
    OUT attempts integer,
    OUT next_attempt_at timestamptz,
    OUT last_error text,
    OUT claimed_at timestamptz,
    OUT claimed_by text
) RETURNS record
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
BEGIN
    SELECT v.seq, v.status, v.source, v.key, v.available_at, v.attempts, v.next_attempt_at, v.last_error,
        v.claimed_at, v.claimed_by
    INTO seq, status, source, key, available_at, attempts, next_attempt_at, last_error, claimed_at, claimed_by
    FROM outbox.events AS v
    WHERE v.id = id
    FOR UPDATE;
    IF NOT FOUND THEN
        RAISE no_data_found USING
            MESSAGE = format('event %s does not exist', coalesce(id::text, 'NULL')),
            HINT = 'It may have been removed after its retention, or the transaction that wrote it is not committed.';
    END IF;
END
$$;
COMMENT ON FUNCTION outbox.lock_event(uuid) IS 'Internal: locks an event and says how it stands, or raises an error';
REVOKE ALL ON FUNCTION outbox.lock_event(uuid) FROM PUBLIC;

-- No action on an event in a drainer's hand: its message may be on its way.
CREATE FUNCTION outbox.refuse_claimed(id uuid, action text, claimed_at timestamptz, claimed_by text) RETURNS void
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RAISE object_in_use USING
        MESSAGE = format('event %s cannot be %s while a drainer has it in hand', id, action),
        DETAIL = format('It was claimed at %s by %s.', claimed_at, claimed_by),
        HINT = 'Wait until the drainer is done with it. outbox.requeue_stuck() gives back events whose drainer is gone.';
END
$$;
COMMENT ON FUNCTION outbox.refuse_claimed(uuid, text, timestamptz, text) IS
    'Internal: the error for an event that is being published';
REVOKE ALL ON FUNCTION outbox.refuse_claimed(uuid, text, timestamptz, text) FROM PUBLIC;

CREATE FUNCTION outbox.describe_state(status text, attempts integer, last_error text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE
        WHEN last_error LIKE status || ': %' THEN last_error
        ELSE status
            || CASE attempts WHEN 0 THEN '' WHEN 1 THEN ' after 1 attempt' ELSE ' after ' || attempts || ' attempts' END
            || coalesce(' (' || last_error || ')', '')
    END;
END;
COMMENT ON FUNCTION outbox.describe_state(text, integer, text) IS
    'Internal: how an event stood, in words, as in: dead after 20 attempts (nack)';
REVOKE ALL ON FUNCTION outbox.describe_state(text, integer, text) FROM PUBLIC;

-- Reads a bounded part of what follows: an answer for most cases, at a price that is known.
CREATE FUNCTION outbox.overtaken(relay text, source text, key text, seq bigint) RETURNS boolean
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET jit = off
    AS $$
#variable_conflict use_variable
DECLARE
    ordering text := (SELECT r.ordering FROM outbox.relay AS r WHERE r.name = relay);
BEGIN
    IF ordering = 'best_effort' OR ordering = 'per_key' AND key IS NULL THEN
        RETURN false;
    END IF;
    RETURN EXISTS (
        SELECT FROM (
            SELECT e.source, e.key, e.published_at
            FROM outbox.event AS e WHERE e.seq > seq ORDER BY e.seq LIMIT 100000
        ) AS later
        WHERE later.published_at IS NOT NULL
            AND (ordering = 'stop_the_line' OR later.source = source)
            AND (ordering <> 'per_key' OR later.key = key)
    );
END
$$;
COMMENT ON FUNCTION outbox.overtaken(text, text, text, bigint) IS
    'Internal: whether a later event of the group has been published, among the next 100,000 events';
REVOKE ALL ON FUNCTION outbox.overtaken(text, text, text, bigint) FROM PUBLIC;

CREATE FUNCTION outbox.refuse_pending(id uuid, available_at timestamptz, next_attempt_at timestamptz, head uuid)
    RETURNS void
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    scheduled boolean := coalesce(next_attempt_at = available_at AND available_at > clock_timestamp(), false);
    waits boolean := coalesce(next_attempt_at = 'infinity' AND NOT scheduled, false);
BEGIN
    RAISE object_not_in_prerequisite_state USING
        MESSAGE = format('event %s is pending already', id),
        DETAIL = CASE
            WHEN next_attempt_at IS NULL THEN 'It has not been tried yet.'
            WHEN scheduled THEN format('It is scheduled for %s.', available_at)
            WHEN waits AND head IS NULL THEN 'It waits behind an event that is not there any more.'
            WHEN waits THEN format('It waits behind event %s.', head)
            ELSE 'It is due.'
        END,
        HINT = CASE
            WHEN waits AND head IS NULL THEN 'outbox.requeue_stuck() makes such events due.'
            WHEN waits THEN 'Requeue or discard that one.'
            ELSE 'Drainers publish it by themselves.'
        END;
END
$$;
COMMENT ON FUNCTION outbox.refuse_pending(uuid, timestamptz, timestamptz, uuid) IS
    'Internal: the error for an event that needs no requeue';
REVOKE ALL ON FUNCTION outbox.refuse_pending(uuid, timestamptz, timestamptz, uuid) FROM PUBLIC;

CREATE FUNCTION outbox.requeue(id uuid) RETURNS text
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
DECLARE
    event record;
    was text;
BEGIN
    SELECT e.* INTO event FROM outbox.lock_event(id) AS e;
    IF event.status = 'published' THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('event %s has been published', id),
            HINT = 'outbox.replay() sends published events again.';
    ELSIF event.status = 'publishing' THEN
        PERFORM outbox.refuse_claimed(id, 'requeued', event.claimed_at, event.claimed_by);
    -- What is held may be made due, as what has failed.
    ELSIF event.next_attempt_at = 'infinity' OR event.status = 'pending' AND event.last_error IS NULL THEN
        PERFORM outbox.refuse_pending(id, event.available_at, event.next_attempt_at,
            (SELECT h.id FROM outbox.held_events('default', event.source, event.key, false, 1) AS h WHERE h.id <> id));
    END IF;
    IF outbox.overtaken('default', event.source, event.key, event.seq) THEN
        RAISE NOTICE USING
            MESSAGE = format('event %s will be published after later ones', id),
            DETAIL = 'Later events that it should have come before have been published already.';
    END IF;
    PERFORM outbox.make_due(ARRAY[event.seq]);
    was := outbox.describe_state(event.status, event.attempts, event.last_error);
    PERFORM outbox.record_operation('requeue', 'default', ARRAY[id], jsonb_build_object('was', was));
    PERFORM outbox.wake();
    RETURN 'requeued, was ' || was;
END
$$;
COMMENT ON FUNCTION outbox.requeue(uuid) IS
    'Lets an event that failed, is held, died, was rejected or was discarded begin anew, now and ahead of later ones of its group; says what it was. For roles that were granted EXECUTE';
REVOKE ALL ON FUNCTION outbox.requeue(uuid) FROM PUBLIC;

CREATE FUNCTION outbox.requeue_dead(
    relay text DEFAULT 'default',
    error text DEFAULT NULL,
    since timestamptz DEFAULT NULL,
    max_events integer DEFAULT NULL
) RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET jit = off
    AS $$
#variable_conflict use_variable
DECLARE
    target outbox.relay := outbox.find_relay(relay);
    seqs bigint[];
    ids uuid[];
BEGIN
    IF max_events < 1 THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('invalid value for "max_events": %s', max_events),
            DETAIL = 'Accepted is a number greater than 0, or NULL for no limit.';
    END IF;
    -- Sorted apart: in the order of seq the whole history could be read for a few events.
    WITH dead AS MATERIALIZED (
        SELECT e.seq FROM outbox.event AS e
        WHERE e.dead_at IS NOT NULL AND coalesce(e.outcome, 'dead') <> 'discarded'
            AND (since IS NULL OR e.dead_at >= since)
            AND (error IS NULL OR e.last_error LIKE error OR e.error_code LIKE error)
    ),
    chosen AS (
        SELECT d.seq FROM dead AS d ORDER BY d.seq LIMIT max_events
    ),
    locked AS (
        SELECT e.seq, e.id FROM outbox.event AS e
        WHERE e.seq IN (SELECT c.seq FROM chosen AS c)
            AND e.dead_at IS NOT NULL AND coalesce(e.outcome, 'dead') <> 'discarded'
        ORDER BY e.seq
        FOR UPDATE
    )
    SELECT array_agg(l.seq), array_agg(l.id) INTO seqs, ids FROM locked AS l;
    IF seqs IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM outbox.make_due(seqs);
    PERFORM outbox.record_operation('requeue_dead', relay, ids, jsonb_strip_nulls(
        jsonb_build_object('error', error, 'since', since, 'max_events', max_events)));
    PERFORM outbox.wake();
    RETURN cardinality(seqs);
END
$$;
COMMENT ON FUNCTION outbox.requeue_dead(text, text, timestamptz, integer) IS
    'Lets events that ended dead or rejected begin anew, the earliest first, at most max_events: those whose last_error or error_code is LIKE error, that ended at since or later; how many. For roles that were granted EXECUTE';
REVOKE ALL ON FUNCTION outbox.requeue_dead(text, text, timestamptz, integer) FROM PUBLIC;

CREATE FUNCTION outbox.give_back_expired(relay text, lease interval) RETURNS uuid[]
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET jit = off
    AS $$
#variable_conflict use_variable
DECLARE
    claimed_before timestamptz := clock_timestamp() - lease;
    floor bigint := coalesce((SELECT s.floor FROM outbox.relay_state AS s WHERE s.relay = relay), 0);
    seqs bigint[];
    ids uuid[];
BEGIN
    seqs := ARRAY(
        SELECT e.seq FROM outbox.event AS e
        WHERE e.seq > floor AND e.next_attempt_at IS NULL AND e.published_at IS NULL AND e.dead_at IS NULL
            AND e.claimed_by IS NOT NULL
        UNION ALL
        SELECT e.seq FROM outbox.event AS e WHERE e.next_attempt_at IS NOT NULL AND e.claimed_by IS NOT NULL
    );
    WITH expired AS (
        SELECT e.seq, e.id FROM outbox.event AS e
        WHERE e.seq = ANY (seqs) AND e.claimed_by IS NOT NULL
            AND coalesce(e.claimed_at, '-infinity') < claimed_before
            AND e.published_at IS NULL AND e.dead_at IS NULL
        ORDER BY e.seq
        FOR UPDATE SKIP LOCKED
    )
    SELECT array_agg(x.seq), array_agg(x.id) INTO seqs, ids FROM expired AS x;
    IF seqs IS NOT NULL THEN
        PERFORM outbox.give_back(seqs);
    END IF;
    RETURN coalesce(ids, '{}');
END
$$;
COMMENT ON FUNCTION outbox.give_back_expired(text, interval) IS
    'Internal: takes events out of a drainer''s hand whose claim is older than this; which ones';
REVOKE ALL ON FUNCTION outbox.give_back_expired(text, interval) FROM PUBLIC;

CREATE FUNCTION outbox.requeue_stuck(older_than interval DEFAULT NULL) RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
DECLARE
    lease_ttl interval := outbox.server_setting('lease_ttl')::interval;
    ids uuid[];
    released bigint;
BEGIN
    PERFORM outbox.require_read_committed('requeue_stuck()', 'Events that wait for another one could be overlooked.');
    IF older_than < lease_ttl THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('invalid value for "older_than": %s', older_than),
            DETAIL = format('A drainer that is alive may hold an event for "outbox_drainer.lease_ttl" (%s) without a sign.', lease_ttl),
            HINT = 'Give at least that, or nothing. What a drainer held that has died is given back when it is started again.';
    END IF;
    ids := outbox.give_back_expired('default', coalesce(older_than, lease_ttl));
    released := outbox.release_headless('default');
    IF released > 0 THEN
        RAISE NOTICE '% events that waited for one that is not there are due', released;
    END IF;
    IF cardinality(ids) > 0 OR released > 0 THEN
        PERFORM outbox.record_operation('requeue_stuck', 'default', ids, jsonb_strip_nulls(
            jsonb_build_object('older_than', older_than, 'released', nullif(released, 0))));
        PERFORM outbox.wake();
    END IF;
    RETURN cardinality(ids);
END
$$;
COMMENT ON FUNCTION outbox.requeue_stuck(interval) IS
    'Gives back events that were claimed longer ago than this (NULL: lease_ttl) and whose drainer has not been heard of since, without a charge, and makes events due that wait for one that is not there; how many were given back. For roles that were granted EXECUTE';
REVOKE ALL ON FUNCTION outbox.requeue_stuck(interval) FROM PUBLIC;

CREATE FUNCTION outbox.discard(id uuid, reason text) RETURNS text
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
DECLARE
    event record;
    was text;
    released bigint;
BEGIN
    PERFORM outbox.require_read_committed('discard()', 'Events that wait for the discarded one could be overlooked.');
    IF coalesce(reason, '') !~ '\S' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'an event is not discarded without a reason',
            HINT = 'Say for those who will look for it why it is not to be published.';
    END IF;
    SELECT e.* INTO event FROM outbox.lock_event(id) AS e;
    was := outbox.describe_state(event.status, event.attempts, event.last_error);
    IF event.status = 'publishing' THEN
        PERFORM outbox.refuse_claimed(id, 'discarded', event.claimed_at, event.claimed_by);
    ELSIF event.status NOT IN ('pending', 'failed') THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('event %s has ended already', id),
            DETAIL = format('It is %s.', was),
            HINT = 'What has ended stops no other event.';
    END IF;
    PERFORM outbox.end_events(ARRAY[event.seq], 'discarded', 'discarded',
        format('discarded: %s (by %s)', reason, session_user));
    released := outbox.release_group('default', event.source, event.key);
    PERFORM outbox.record_operation('discard', 'default', ARRAY[id], jsonb_strip_nulls(
        jsonb_build_object('reason', reason, 'was', was, 'released', nullif(released, 0))));
    PERFORM outbox.wake();
    RETURN 'discarded, was ' || was || CASE WHEN released > 0 THEN '; events that waited behind it are due' ELSE '' END;
END
$$;
COMMENT ON FUNCTION outbox.discard(uuid, text) IS
    'Ends an event that is pending or failed without publishing it, so that those behind it go on; says what it was. outbox.requeue undoes it. For roles that were granted EXECUTE';
REVOKE ALL ON FUNCTION outbox.discard(uuid, text) FROM PUBLIC;

CREATE FUNCTION outbox.announce_dead(seqs bigint[]) RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM outbox.act_as_owner();
    PERFORM outbox.call_on_dead(seqs);
END
$$;
COMMENT ON FUNCTION outbox.announce_dead(bigint[]) IS
    'Internal: calls the relay''s on_dead function for these events, as the owner of outbox.event';
REVOKE ALL ON FUNCTION outbox.announce_dead(bigint[]) FROM PUBLIC;

-- Events whose attempts are used up and that nobody has in hand: their drainer died at the last one, or
-- max_attempts was lowered. Those that wait behind another one take their turn first.
CREATE FUNCTION outbox.end_exhausted(relay text, max_attempts integer) RETURNS uuid[]
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET jit = off
    AS $$
#variable_conflict use_variable
DECLARE
    ended record;
    ended_group record;
BEGIN
    WITH exhausted AS (
        SELECT e.seq, e.id, e.source, e.key FROM outbox.event AS e
        WHERE e.next_attempt_at < 'infinity' AND e.attempts >= max_attempts AND e.claimed_by IS NULL
            AND e.published_at IS NULL AND e.dead_at IS NULL
        LIMIT 10000
        FOR UPDATE SKIP LOCKED
    )
    SELECT array_agg(x.seq) AS seqs, array_agg(x.id ORDER BY x.seq) AS ids INTO ended FROM exhausted AS x;
    IF ended.seqs IS NULL THEN
        RETURN '{}';
    END IF;
    PERFORM outbox.end_events(ended.seqs, 'dead', NULL, NULL);
    FOR ended_group IN SELECT DISTINCT e.source, e.key FROM outbox.event AS e WHERE e.seq = ANY (ended.seqs) LOOP
        PERFORM outbox.release_group(relay, ended_group.source, ended_group.key);
    END LOOP;
    PERFORM outbox.announce_dead(ended.seqs);
    RAISE WARNING USING
        ERRCODE = 'external_routine_exception',
        MESSAGE = CASE cardinality(ended.ids) WHEN 1 THEN 'one event is dead, its attempts are used up'
            ELSE format('%s events are dead, their attempts are used up', cardinality(ended.ids)) END,
        HINT = 'They are listed in outbox.dead.';
    RETURN ended.ids;
END
$$;
COMMENT ON FUNCTION outbox.end_exhausted(text, integer) IS
    'Internal: ends events as dead that have failed as often as they may; which ones';
REVOKE ALL ON FUNCTION outbox.end_exhausted(text, integer) FROM PUBLIC;

CREATE FUNCTION outbox.collect_expired(relay text, retention interval, dead_retention interval) RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET jit = off
    AS $$
#variable_conflict use_variable
DECLARE
    beginning bigint := coalesce((SELECT s.retention_from FROM outbox.relay_state AS s WHERE s.relay = relay), 0);
    seqs bigint[] := '{}';
BEGIN
    IF retention > '0' THEN
        seqs := ARRAY(
            SELECT e.seq FROM outbox.event AS e
            WHERE e.published_at < now() - retention
                AND e.seq > beginning
                AND e.seq <= (SELECT max(w.seq) FROM (
                    SELECT b.seq FROM outbox.event AS b WHERE b.seq > beginning ORDER BY b.seq LIMIT 100000) AS w)
            ORDER BY e.seq
            LIMIT 10000
            FOR UPDATE SKIP LOCKED
        );
    END IF;
    IF dead_retention > '0' THEN
        seqs := seqs || ARRAY(
            SELECT e.seq FROM outbox.event AS e
            WHERE e.dead_at < now() - dead_retention
            ORDER BY e.dead_at
            LIMIT 10000
            FOR UPDATE SKIP LOCKED
        );
    END IF;
    RETURN CASE WHEN seqs = '{}' THEN 0 ELSE outbox.remove_events(seqs) END;
END
$$;
COMMENT ON FUNCTION outbox.collect_expired(text, interval, interval) IS
    'Internal: removes published events past retention, at most 10,000 of the 100,000 oldest, and as many that ended otherwise past dead_retention; how many';
REVOKE ALL ON FUNCTION outbox.collect_expired(text, interval, interval) FROM PUBLIC;

CREATE FUNCTION outbox.maintain(
    relay text DEFAULT 'default',
    OUT requeued bigint,
    OUT dead_lettered bigint,
    OUT collected bigint,
    OUT backlog bigint
) RETURNS record
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
DECLARE
    target outbox.relay := outbox.lock_relay(relay);
    max_attempts integer := coalesce(target.max_attempts, outbox.server_setting('max_attempts')::integer);
    ids uuid[] := '{}';
    dead uuid[] := '{}';
BEGIN
    PERFORM outbox.require_read_committed('maintain()', 'Events that wait for one that has ended could be overlooked.');
    ids := outbox.give_back_expired(relay, outbox.server_setting('lease_ttl')::interval);
    IF max_attempts > 0 THEN
        dead := outbox.end_exhausted(relay, max_attempts);
    END IF;
    -- What comes after such an event waits for an operator.
    IF cardinality(dead) > 0 AND target.ordering = 'stop_the_line' AND target.paused_at IS NULL THEN
        target.paused_at := clock_timestamp();
        target.paused_by := session_user;
        target.pause_reason := format('event %s is dead', dead[1]);
        PERFORM outbox.put_relay(target);
    END IF;
    collected := outbox.collect_expired(
        relay,
        coalesce(target.retention, outbox.server_setting('retention')::interval),
        coalesce(target.dead_retention, outbox.server_setting('dead_retention')::interval)
    );
    requeued := cardinality(ids);
    dead_lettered := cardinality(dead);
    -- Not what is done every day, or the record would grow without an end.
    IF requeued + dead_lettered > 0 THEN
        PERFORM outbox.record_operation('maintain', relay, dead || ids, jsonb_build_object(
            'requeued', requeued, 'dead_lettered', dead_lettered, 'collected', collected));
        PERFORM outbox.wake();
    END IF;
    SELECT b.pending + b.publishing + b.failed INTO backlog FROM outbox.backlog(relay) AS b;
END
$$;
COMMENT ON FUNCTION outbox.maintain(text) IS
    'Does a pass of what drainers do in the background, at once: gives back events whose claim has run out, ends as dead those that have failed as often as they may, removes up to 10,000 events past retention and as many past dead_retention; how many of each, and how many events are left to publish. For roles that were granted EXECUTE';
REVOKE ALL ON FUNCTION outbox.maintain(text) FROM PUBLIC;
