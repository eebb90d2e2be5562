-- Not part of a dump: a restored database would go on sending events that its origin sends already.
-- The drainers write a running job's row about once a second. Room in the page keeps that HOT.
CREATE TABLE outbox.replay_job (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    relay text NOT NULL
        CONSTRAINT replay_job_relay_fkey REFERENCES outbox.relay (name) ON UPDATE CASCADE ON DELETE CASCADE,
    from_time timestamptz,
    to_time timestamptz,
    event_type text,
    exchange text,
    rate integer NOT NULL,
    first_seq bigint NOT NULL,
    last_seq bigint NOT NULL,
    position bigint NOT NULL,
    sent bigint NOT NULL DEFAULT 0,
    skipped bigint NOT NULL DEFAULT 0,
    state text NOT NULL DEFAULT 'running',
    started_by text NOT NULL DEFAULT session_user,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    stopped_at timestamptz,
    finished_at timestamptz,
    last_error text,
    CONSTRAINT replay_job_time_check CHECK (from_time < to_time),
    -- A pattern that ends in the middle of an escape would fail when it is matched, in the drainer.
    CONSTRAINT replay_job_event_type_check CHECK (event_type !~ '^([^\\]|\\.)*\\$'),
    CONSTRAINT replay_job_exchange_check CHECK (octet_length(exchange) <= 255),
    CONSTRAINT replay_job_rate_check CHECK (rate > 0),
    CONSTRAINT replay_job_state_check CHECK (state IN ('running', 'stopped', 'finished', 'failed'))
) WITH (fillfactor = 50);
CREATE INDEX replay_job_running_idx ON outbox.replay_job (relay, id) WHERE state = 'running';

COMMENT ON TABLE outbox.replay_job IS
    'Replays: published events that are sent again; written by outbox.replay, shown by outbox.replays. Not part of a dump';
COMMENT ON SEQUENCE outbox.replay_job_id_seq IS 'Numbers the replays';
COMMENT ON COLUMN outbox.replay_job.id IS 'Number of the replay, which its messages carry in the header outbox-replay';
COMMENT ON COLUMN outbox.replay_job.relay IS 'The relay whose events are sent again';
COMMENT ON COLUMN outbox.replay_job.from_time IS 'Events enqueued before this are left out; NULL: none are';
COMMENT ON COLUMN outbox.replay_job.to_time IS 'Events enqueued at this time or later are left out; NULL: none are';
COMMENT ON COLUMN outbox.replay_job.event_type IS 'LIKE pattern for the event_type; NULL: all events, also those without a type';
COMMENT ON COLUMN outbox.replay_job.exchange IS 'Exchange to send to instead of the events'' own; NULL: their own';
COMMENT ON COLUMN outbox.replay_job.rate IS 'Events a second at most';
COMMENT ON COLUMN outbox.replay_job.first_seq IS 'The first event that was there when the replay began';
COMMENT ON COLUMN outbox.replay_job.last_seq IS 'The last event that was there when the replay began: later ones reach subscribers as new events';
COMMENT ON COLUMN outbox.replay_job.position IS 'Every event whose seq is not above this is done with';
COMMENT ON COLUMN outbox.replay_job.sent IS 'Messages confirmed by the broker, repetitions included';
COMMENT ON COLUMN outbox.replay_job.skipped IS 'Events that cannot be sent under the present limits; last_error names the last one';
COMMENT ON COLUMN outbox.replay_job.state IS 'running (or waiting for its turn), stopped, finished, or failed: it broke the connection and waits for outbox.resume_replay';
COMMENT ON COLUMN outbox.replay_job.started_by IS 'Who started it';
COMMENT ON COLUMN outbox.replay_job.started_at IS 'When it was started';
COMMENT ON COLUMN outbox.replay_job.stopped_at IS 'When it was stopped or failed; NULL: it is not';
COMMENT ON COLUMN outbox.replay_job.finished_at IS 'When it was finished; NULL: it is not';
COMMENT ON COLUMN outbox.replay_job.last_error IS 'The last failure; stays after the trouble is over';
COMMENT ON CONSTRAINT replay_job_pkey ON outbox.replay_job IS 'A replay is known by its number';
COMMENT ON CONSTRAINT replay_job_relay_fkey ON outbox.replay_job IS 'A replay goes with its relay';
COMMENT ON CONSTRAINT replay_job_time_check ON outbox.replay_job IS 'A time begins before it ends';
COMMENT ON CONSTRAINT replay_job_event_type_check ON outbox.replay_job IS 'A pattern does not end with a lone escape character';
COMMENT ON CONSTRAINT replay_job_exchange_check ON outbox.replay_job IS 'The name of an exchange has at most 255 bytes';
COMMENT ON CONSTRAINT replay_job_rate_check ON outbox.replay_job IS 'A rate is greater than zero';
COMMENT ON CONSTRAINT replay_job_state_check ON outbox.replay_job IS 'The known states';
COMMENT ON INDEX outbox.replay_job_pkey IS 'A replay is known by its number';
COMMENT ON INDEX outbox.replay_job_running_idx IS 'The replay that a relay''s drainers work on is the first in here';

CREATE VIEW outbox.replays AS
SELECT
    j.id AS job,
    j.relay,
    CASE
        WHEN j.state = 'running' AND EXISTS (
            SELECT FROM outbox.replay_job AS earlier
            WHERE earlier.relay = j.relay AND earlier.state = 'running' AND earlier.id < j.id
        ) THEN 'waiting'
        ELSE j.state
    END AS state,
    j.from_time,
    j.to_time,
    j.event_type,
    j.exchange,
    j.rate,
    j.position,
    j.last_seq,
    CASE
        WHEN j.state = 'finished' OR j.position >= j.last_seq THEN 0
        ELSE round((j.last_seq::numeric - j.position) / (j.last_seq::numeric - j.first_seq + 1), 4)
    END AS remaining,
    j.sent,
    j.skipped,
    j.started_by,
    j.started_at,
    j.stopped_at,
    j.finished_at,
    j.last_error
FROM outbox.replay_job AS j;
COMMENT ON VIEW outbox.replays IS 'Replays and how far they are; a running one saves its progress every second';
DO $$
DECLARE
    col record;
BEGIN
    FOR col IN
        SELECT attname, pg_catalog.col_description(attrelid, attnum) AS text
        FROM pg_catalog.pg_attribute
        WHERE attrelid = 'outbox.replay_job'::regclass AND attnum > 0 AND NOT attisdropped
            AND attname NOT IN ('id', 'first_seq')
    LOOP
        EXECUTE pg_catalog.format('COMMENT ON COLUMN outbox.replays.%I IS %L', col.attname, col.text);
    END LOOP;
END
$$;
COMMENT ON COLUMN outbox.replays.job IS 'Number of the replay, for outbox.stop_replay and outbox.resume_replay';
COMMENT ON COLUMN outbox.replays.state IS
    'running, waiting (for an earlier replay of the relay), stopped, finished, or failed: it broke the connection and waits for outbox.resume_replay';
COMMENT ON COLUMN outbox.replays.remaining IS 'Share of the way that is left, from 1 to 0';
GRANT SELECT ON outbox.replays TO pg_monitor;

-- The replay with this number, locked; or the error that says why there is none.
CREATE FUNCTION outbox.lock_replay(job bigint) RETURNS outbox.replay_job
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    found_job outbox.replay_job;
BEGIN
    SELECT j.* INTO found_job FROM outbox.replay_job AS j WHERE j.id = job FOR UPDATE;
    IF NOT FOUND THEN
        RAISE undefined_object USING
            MESSAGE = format('replay job %s does not exist', coalesce(job::text, 'NULL')),
            HINT = 'The replays are listed in outbox.replays.';
    END IF;
    RETURN found_job;
END
$$;
COMMENT ON FUNCTION outbox.lock_replay(bigint) IS 'Internal: the replay with this number, locked, or an error';
REVOKE ALL ON FUNCTION outbox.lock_replay(bigint) FROM PUBLIC;

CREATE FUNCTION outbox.check_replay("from" timestamptz, "to" timestamptz, event_type text, exchange text, rate integer)
    RETURNS void
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF "from" >= "to" THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('a replay cannot be from %s to %s', "from", "to"),
            DETAIL = 'It covers the events that were enqueued at "from" or later and before "to".',
            HINT = 'Give a "to" that is later than "from".';
    END IF;
    IF rate IS NULL OR rate <= 0 THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('the rate of a replay must be greater than zero, it is %s', coalesce(rate::text, 'NULL')),
            HINT = 'Give the number of events a second.';
    END IF;
    IF octet_length(convert_to(exchange, 'UTF8')) > 255 THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('the exchange of a replay is %s bytes long, the limit is 255', octet_length(convert_to(exchange, 'UTF8')));
    END IF;
    IF event_type ~ '^([^\\]|\\.)*\\$' THEN
        RAISE invalid_escape_sequence USING
            MESSAGE = format('the event type pattern of a replay ends with an escape character: %s', event_type),
            DETAIL = 'It is a pattern as LIKE takes it, in which a backslash makes the next character literal.';
    END IF;
END
$$;
COMMENT ON FUNCTION outbox.check_replay(timestamptz, timestamptz, text, text, integer) IS
    'Internal: raises an error when a replay cannot be like this';
REVOKE ALL ON FUNCTION outbox.check_replay(timestamptz, timestamptz, text, text, integer) FROM PUBLIC;

-- The writes, with the rights of the tables' owner.
CREATE FUNCTION outbox.add_replay(
    relay text,
    "from" timestamptz,
    "to" timestamptz,
    event_type text,
    exchange text,
    rate integer
) RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    job bigint;
BEGIN
    PERFORM outbox.act_as_owner();
    INSERT INTO outbox.replay_job AS j (relay, from_time, to_time, event_type, exchange, rate, first_seq, last_seq, position)
    SELECT relay, "from", "to", event_type, exchange, rate, e.first_seq, e.last_seq, e.first_seq - 1
    FROM (
        SELECT coalesce(min(seq), 1) AS first_seq, coalesce(max(seq), 0) AS last_seq
        FROM outbox.event
    ) AS e
    RETURNING j.id INTO job;
    RETURN job;
END
$$;
COMMENT ON FUNCTION outbox.add_replay(text, timestamptz, timestamptz, text, text, integer) IS 'Internal: writes a new replay';
REVOKE ALL ON FUNCTION outbox.add_replay(text, timestamptz, timestamptz, text, text, integer) FROM PUBLIC;

CREATE FUNCTION outbox.set_replay_state(job bigint, state text) RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
BEGIN
    PERFORM outbox.act_as_owner();
    UPDATE outbox.replay_job AS j SET
        state = state,
        stopped_at = CASE state WHEN 'stopped' THEN clock_timestamp() END
    WHERE j.id = job;
END
$$;
COMMENT ON FUNCTION outbox.set_replay_state(bigint, text) IS 'Internal: stops a replay, or lets it go on';
REVOKE ALL ON FUNCTION outbox.set_replay_state(bigint, text) FROM PUBLIC;

CREATE FUNCTION outbox.replay(
    relay text DEFAULT 'default',
    "from" timestamptz DEFAULT NULL,
    "to" timestamptz DEFAULT NULL,
    event_type text DEFAULT NULL,
    exchange text DEFAULT NULL,
    rate integer DEFAULT 500
) RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    job bigint;
BEGIN
    PERFORM outbox.find_relay(relay);
    PERFORM outbox.check_replay("from", "to", event_type, exchange, rate);
    job := outbox.add_replay(relay, "from", "to", event_type, exchange, rate);
    PERFORM outbox.record_operation('replay', relay, NULL, jsonb_strip_nulls(jsonb_build_object(
        'job', job, 'from', "from", 'to', "to", 'event_type', event_type, 'exchange', exchange, 'rate', rate)));
    PERFORM outbox.wake();
    RETURN job;
END
$$;
COMMENT ON FUNCTION outbox.replay(text, timestamptz, timestamptz, text, text, integer) IS
    'Sends published events that are still kept again, in their order: those enqueued at "from" or later and before "to" whose event_type is LIKE the pattern, to the exchange if one is given, so many a second. Returns the number of the replay. For roles that were granted EXECUTE';
REVOKE ALL ON FUNCTION outbox.replay(text, timestamptz, timestamptz, text, text, integer) FROM PUBLIC;

CREATE FUNCTION outbox.stop_replay(job bigint) RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    replay outbox.replay_job;
BEGIN
    replay := outbox.lock_replay(job);
    IF replay.state <> 'running' THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('replay job %s is not running, it is %s', job, replay.state);
    END IF;
    PERFORM outbox.set_replay_state(job, 'stopped');
    PERFORM outbox.record_operation('stop_replay', replay.relay, NULL, jsonb_build_object('job', job));
    PERFORM outbox.wake();
END
$$;
COMMENT ON FUNCTION outbox.stop_replay(bigint) IS
    'Stops a replay, so that outbox.resume_replay can go on with it; messages on their way still arrive. For roles that were granted EXECUTE';
REVOKE ALL ON FUNCTION outbox.stop_replay(bigint) FROM PUBLIC;

CREATE FUNCTION outbox.resume_replay(job bigint) RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    replay outbox.replay_job;
BEGIN
    replay := outbox.lock_replay(job);
    IF replay.state = 'finished' THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('replay job %s is finished', job),
            HINT = 'Start a new one by outbox.replay.';
    ELSIF replay.state = 'running' THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('replay job %s is not stopped', job);
    END IF;
    PERFORM outbox.set_replay_state(job, 'running');
    PERFORM outbox.record_operation('resume_replay', replay.relay, NULL, jsonb_build_object('job', job, 'was', replay.state));
    PERFORM outbox.wake();
END
$$;
COMMENT ON FUNCTION outbox.resume_replay(bigint) IS
    'Goes on with a replay that was stopped or has failed, where it was; events that were on their way may be sent twice. For roles that were granted EXECUTE';
REVOKE ALL ON FUNCTION outbox.resume_replay(bigint) FROM PUBLIC;
