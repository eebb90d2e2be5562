-- What operators do to relays and events, and the record of it.
--
-- The functions that act are for roles without any right on the tables: they run with the rights of the
-- extension's owner, which is a superuser, and only read with them. Each write is in a function of its own that
-- begins with act_as_owner(), so that triggers on the tables run with the rights of the tables' owner at most.
CREATE FUNCTION outbox.act_as_owner() RETURNS void
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_act_as_owner';
COMMENT ON FUNCTION outbox.act_as_owner() IS
    'Internal: the SECURITY DEFINER function that calls it goes on with the rights of the owner of outbox.event, to its end';
REVOKE ALL ON FUNCTION outbox.act_as_owner() FROM PUBLIC;

CREATE FUNCTION outbox.server_setting(name text) RETURNS text
    LANGUAGE C STABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_server_setting';
COMMENT ON FUNCTION outbox.server_setting(text) IS 'Internal: the value of the setting outbox_drainer.<name>';
REVOKE ALL ON FUNCTION outbox.server_setting(text) FROM PUBLIC;

CREATE FUNCTION outbox.require_read_committed(function text, reason text) RETURNS void
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('outbox.%s cannot be used in a transaction with isolation level %s',
                function, current_setting('transaction_isolation')),
            DETAIL = reason,
            HINT = 'Use the isolation level READ COMMITTED.';
    END IF;
END
$$;
COMMENT ON FUNCTION outbox.require_read_committed(text, text) IS
    'Internal: raises an error where a statement does not see what was committed before it';
REVOKE ALL ON FUNCTION outbox.require_read_committed(text, text) FROM PUBLIC;

CREATE TABLE outbox.operation (
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    by text NOT NULL DEFAULT session_user,
    action text NOT NULL,
    relay text NOT NULL,
    events bigint,
    event_ids uuid[],
    detail jsonb
);
CREATE INDEX operation_at_idx ON outbox.operation (at);
COMMENT ON TABLE outbox.operation IS
    'What operators did to relays and events, by the functions of this schema; nothing removes old rows';
COMMENT ON COLUMN outbox.operation.at IS 'When it was done';
COMMENT ON COLUMN outbox.operation.by IS 'Who did it: the role that had logged in';
COMMENT ON COLUMN outbox.operation.action IS 'What was done: the name of the function';
COMMENT ON COLUMN outbox.operation.relay IS 'The relay';
COMMENT ON COLUMN outbox.operation.events IS 'How many events it was done to; NULL: it was done to the relay';
COMMENT ON COLUMN outbox.operation.event_ids IS 'The ids of these events, the first hundred';
COMMENT ON COLUMN outbox.operation.detail IS 'What else there is to know: arguments, and what was there before';
COMMENT ON INDEX outbox.operation_at_idx IS 'What was done lately';
GRANT SELECT ON outbox.operation TO pg_monitor;

CREATE FUNCTION outbox.record_operation(action text, relay text, ids uuid[], detail jsonb) RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
BEGIN
    PERFORM outbox.act_as_owner();
    INSERT INTO outbox.operation (action, relay, events, event_ids, detail)
    VALUES (action, relay, cardinality(ids), ids[1:100], nullif(detail, '{}'));
END
$$;
COMMENT ON FUNCTION outbox.record_operation(text, text, uuid[], jsonb) IS 'Internal: writes outbox.operation';
REVOKE ALL ON FUNCTION outbox.record_operation(text, text, uuid[], jsonb) FROM PUBLIC;

CREATE FUNCTION outbox.find_relay(relay text) RETURNS outbox.relay
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
DECLARE
    found_relay outbox.relay;
BEGIN
    SELECT r.* INTO found_relay FROM outbox.relay AS r WHERE r.name = relay;
    IF NOT FOUND THEN
        RAISE undefined_object USING
            MESSAGE = format('relay %s does not exist', coalesce('"' || relay || '"', 'NULL')),
            HINT = 'The relays are listed in outbox.relay.';
    END IF;
    RETURN found_relay;
END
$$;
COMMENT ON FUNCTION outbox.find_relay(text) IS 'Internal: the relay of this name, or an error';
REVOKE ALL ON FUNCTION outbox.find_relay(text) FROM PUBLIC;

CREATE FUNCTION outbox.lock_relay(relay text) RETURNS outbox.relay
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
BEGIN
    PERFORM FROM outbox.relay AS r WHERE r.name = relay FOR NO KEY UPDATE;
    RETURN outbox.find_relay(relay);
END
$$;
COMMENT ON FUNCTION outbox.lock_relay(text) IS 'Internal: the same, locked until the transaction ends';
REVOKE ALL ON FUNCTION outbox.lock_relay(text) FROM PUBLIC;

CREATE FUNCTION outbox.put_relay(relay outbox.relay) RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
BEGIN
    PERFORM outbox.act_as_owner();
    UPDATE outbox.relay AS r SET
        source = relay.source,
        ordering = relay.ordering,
        exchange = relay.exchange,
        mandatory = relay.mandatory,
        batch_size = relay.batch_size,
        max_attempts = relay.max_attempts,
        retry_backoff_initial = relay.retry_backoff_initial,
        retry_backoff_multiplier = relay.retry_backoff_multiplier,
        retry_backoff_max = relay.retry_backoff_max,
        retention = relay.retention,
        dead_retention = relay.dead_retention,
        publish_rate = relay.publish_rate,
        serialize_producers = relay.serialize_producers,
        on_dead = relay.on_dead,
        paused_at = relay.paused_at,
        paused_by = relay.paused_by,
        pause_reason = relay.pause_reason
    WHERE r.name = relay.name;
END
$$;
COMMENT ON FUNCTION outbox.put_relay(outbox.relay) IS 'Internal: writes all of a relay that is there';
REVOKE ALL ON FUNCTION outbox.put_relay(outbox.relay) FROM PUBLIC;

-- A dump holds every relay, and the relay 'default' is there before it is restored.
CREATE FUNCTION outbox.relay_before_insert() RETURNS trigger
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM FROM outbox.relay AS r WHERE r.name = NEW.name FOR NO KEY UPDATE;
    IF FOUND THEN
        PERFORM outbox.put_relay(NEW);
        RETURN NULL;
    END IF;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION outbox.relay_before_insert() IS
    'Trigger: a relay that is there already is altered instead, so that a dump can be restored';
REVOKE ALL ON FUNCTION outbox.relay_before_insert() FROM PUBLIC;

CREATE FUNCTION outbox.relay_changed() RETURNS trigger
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_relay_changed';
COMMENT ON FUNCTION outbox.relay_changed() IS
    'Trigger: drainers and producers read the settings of the relays again when the transaction commits';
REVOKE ALL ON FUNCTION outbox.relay_changed() FROM PUBLIC;

CREATE TRIGGER relay_before_insert BEFORE INSERT ON outbox.relay
    FOR EACH ROW EXECUTE FUNCTION outbox.relay_before_insert();
COMMENT ON TRIGGER relay_before_insert ON outbox.relay IS
    'Inserting a relay that is there already alters it, so that a dump can be restored';
ALTER TABLE outbox.relay ENABLE ALWAYS TRIGGER relay_before_insert;

CREATE TRIGGER relay_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.relay
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.relay_changed();
COMMENT ON TRIGGER relay_changed ON outbox.relay IS 'A change takes effect as soon as it is committed';
ALTER TABLE outbox.relay ENABLE ALWAYS TRIGGER relay_changed;

CREATE FUNCTION outbox.relay_settings(
    relay text DEFAULT 'default',
    OUT name text,
    OUT value text,
    OUT source text
) RETURNS SETOF record
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER ROWS 13
    SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT s.name,
        CASE WHEN s.value IS NULL AND s.of_server THEN outbox.server_setting(s.name) ELSE s.value END,
        CASE WHEN s.value IS NULL AND s.of_server THEN 'outbox_drainer.' || s.name ELSE 'relay' END
    FROM outbox.find_relay(relay) AS r
    CROSS JOIN LATERAL (
        VALUES
            (1, 'ordering', r.ordering, false),
            (2, 'exchange', r.exchange, true),
            (3, 'mandatory', CASE WHEN r.mandatory THEN 'on' WHEN NOT r.mandatory THEN 'off' END, true),
            (4, 'batch_size', r.batch_size::text, true),
            (5, 'max_attempts', r.max_attempts::text, true),
            (6, 'retry_backoff_initial', r.retry_backoff_initial::text, true),
            (7, 'retry_backoff_multiplier', r.retry_backoff_multiplier::text, true),
            (8, 'retry_backoff_max', r.retry_backoff_max::text, true),
            (9, 'retention', r.retention::text, true),
            (10, 'dead_retention', r.dead_retention::text, true),
            (11, 'publish_rate', r.publish_rate::text, true),
            (12, 'serialize_producers', CASE WHEN r.serialize_producers THEN 'on' ELSE 'off' END, false),
            (13, 'on_dead', r.on_dead, false)
    ) AS s (place, name, value, of_server)
    ORDER BY s.place;
END;
COMMENT ON FUNCTION outbox.relay_settings(text) IS
    'Each setting of a relay with the value that is in force, and where it comes from: the relay, or the setting of the server that is named. For members of pg_monitor';
REVOKE ALL ON FUNCTION outbox.relay_settings(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.relay_settings(text) TO pg_monitor;

-- Whoever may execute alter_relay shall not be able to have code of his own run with the rights of the table's
-- owner: so the function has to be the owner's, or a superuser's.
CREATE FUNCTION outbox.check_on_dead(function regprocedure) RETURNS text
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
DECLARE
    proc record;
    table_owner oid := (SELECT c.relowner FROM pg_class AS c WHERE c.oid = 'outbox.event'::regclass);
BEGIN
    SELECT p.pronamespace, p.prokind, p.proretset, p.proowner, p.pronargs, p.proargtypes[0] AS argument,
        format('%I.%I(outbox.event)', n.nspname, p.proname) AS signature
    INTO proc
    FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
    WHERE p.oid = function;
    IF NOT FOUND THEN
        RAISE undefined_function USING MESSAGE = format('function %s does not exist', function);
    END IF;
    IF proc.prokind <> 'f' OR proc.proretset OR proc.pronargs <> 1
        OR proc.argument <> 'outbox.event'::regtype OR proc.pronamespace = pg_my_temp_schema() THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('%s cannot be used as "on_dead"', function),
            DETAIL = 'Accepted is a function that takes one argument of type outbox.event, returns no set and is not temporary.';
    END IF;
    IF proc.proowner <> table_owner
        AND NOT (SELECT a.rolsuper FROM pg_authid AS a WHERE a.oid = proc.proowner) THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('%s cannot be used as "on_dead"', function),
            DETAIL = format('It belongs to %I, and it is called with the rights of %I, the owner of outbox.event.',
                pg_get_userbyid(proc.proowner), pg_get_userbyid(table_owner)),
            HINT = 'Give it to the owner of outbox.event: ALTER FUNCTION ... OWNER TO ....';
    END IF;
    IF NOT has_function_privilege(table_owner, function, 'EXECUTE')
        OR NOT has_schema_privilege(table_owner, proc.pronamespace, 'USAGE') THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('%s cannot be used as "on_dead"', function),
            DETAIL = format('%I, the owner of outbox.event, may not execute it.', pg_get_userbyid(table_owner)),
            HINT = 'Grant EXECUTE on the function, and USAGE on its schema.';
    END IF;
    RETURN proc.signature;
END
$$;
COMMENT ON FUNCTION outbox.check_on_dead(regprocedure) IS
    'Internal: the signature of a function that can be called for dead events, or an error';
REVOKE ALL ON FUNCTION outbox.check_on_dead(regprocedure) FROM PUBLIC;

-- Ranges are those of the server's settings. A day is 24 hours long here; a month has no length.
CREATE FUNCTION outbox.check_relay(relay outbox.relay) RETURNS void
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
DECLARE
    problem record;
    first_delay interval := coalesce(relay.retry_backoff_initial, outbox.server_setting('retry_backoff_initial')::interval);
    longest_delay interval := coalesce(relay.retry_backoff_max, outbox.server_setting('retry_backoff_max')::interval);
BEGIN
    SELECT s.name, s.value, s.accepted INTO problem
    FROM (
        VALUES
            ('ordering', quote_nullable(relay.ordering),
                relay.ordering IN ('best_effort', 'per_key', 'per_source', 'stop_the_line'),
                'best_effort, per_key, per_source or stop_the_line'),
            ('exchange', quote_nullable(relay.exchange), octet_length(relay.exchange) <= 255,
                'a name of at most 255 bytes'),
            ('batch_size', relay.batch_size::text, relay.batch_size BETWEEN 1 AND 100000,
                'a number from 1 to 100000'),
            ('max_attempts', relay.max_attempts::text, relay.max_attempts BETWEEN 0 AND 1000000,
                'a number from 1 to 1000000, or 0 for no limit'),
            ('retry_backoff_multiplier', relay.retry_backoff_multiplier::text,
                relay.retry_backoff_multiplier BETWEEN 1 AND 100, 'a number from 1 to 100'),
            ('publish_rate', relay.publish_rate::text, relay.publish_rate BETWEEN 0 AND 1000000,
                'a number of events a second from 1 to 1000000, or 0 for no limit')
    ) AS s (name, value, valid, accepted)
    WHERE NOT s.valid
    UNION ALL
    SELECT t.name, t.value::text, t.accepted || ', without months and years'
    FROM (
        VALUES
            ('retry_backoff_initial', relay.retry_backoff_initial, interval '10 ms', interval '1 hour',
                'a time from 10 milliseconds to 1 hour'),
            ('retry_backoff_max', relay.retry_backoff_max, interval '10 ms', interval '24 hours',
                'a time from 10 milliseconds to 24 hours'),
            ('retention', relay.retention, interval '0', interval '24855 days',
                'a time up to 24855 days, or 0 for ever'),
            ('dead_retention', relay.dead_retention, interval '0', interval '24855 days',
                'a time up to 24855 days, or 0 for ever')
    ) AS t (name, value, least, most, accepted)
    WHERE t.value NOT BETWEEN t.least AND t.most
        OR extract(year FROM t.value) <> 0 OR extract(month FROM t.value) <> 0
    LIMIT 1;
    IF FOUND THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('invalid value for "%s": %s', problem.name, problem.value),
            DETAIL = format('Accepted is %s.', problem.accepted),
            HINT = 'To go back to the default, name it in "reset".';
    END IF;
    IF first_delay > longest_delay THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('"retry_backoff_initial" (%s) must not be greater than "retry_backoff_max" (%s)',
                first_delay, longest_delay),
            DETAIL = 'What the relay does not set is the server''s: see outbox.relay_settings().',
            HINT = 'Give both in one call.';
    END IF;
END
$$;
COMMENT ON FUNCTION outbox.check_relay(outbox.relay) IS 'Internal: raises an error for settings that cannot work';
REVOKE ALL ON FUNCTION outbox.check_relay(outbox.relay) FROM PUBLIC;

CREATE FUNCTION outbox.reset_values(reset text[], given jsonb) RETURNS jsonb
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
DECLARE
    initial jsonb := '{"ordering": "per_key", "exchange": null, "mandatory": null, "batch_size": null,
        "max_attempts": null, "retry_backoff_initial": null, "retry_backoff_multiplier": null,
        "retry_backoff_max": null, "retention": null, "dead_retention": null, "publish_rate": null,
        "serialize_producers": false, "on_dead": null}';
    name text;
    result jsonb := '{}';
BEGIN
    FOREACH name IN ARRAY coalesce(reset, '{}') LOOP
        IF name IS NULL OR NOT initial ? name THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('a relay has no setting %s', quote_nullable(name)),
                DETAIL = format('Accepted in "reset" is %s.', (SELECT string_agg(k, ', ' ORDER BY k) FROM jsonb_object_keys(initial) AS k));
        END IF;
        IF given ? name THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('"%s" is both set and reset', name),
                HINT = 'Do one of the two.';
        END IF;
        result := result || jsonb_build_object(name, initial -> name);
    END LOOP;
    RETURN result;
END
$$;
COMMENT ON FUNCTION outbox.reset_values(text[], jsonb) IS
    'Internal: what the columns of outbox.relay hold in which a relay follows the server';
REVOKE ALL ON FUNCTION outbox.reset_values(text[], jsonb) FROM PUBLIC;

CREATE FUNCTION outbox.alter_relay(
    relay text DEFAULT 'default',
    ordering text DEFAULT NULL,
    exchange text DEFAULT NULL,
    mandatory boolean DEFAULT NULL,
    batch_size integer DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    retry_backoff_initial interval DEFAULT NULL,
    retry_backoff_multiplier double precision DEFAULT NULL,
    retry_backoff_max interval DEFAULT NULL,
    retention interval DEFAULT NULL,
    dead_retention interval DEFAULT NULL,
    publish_rate integer DEFAULT NULL,
    serialize_producers boolean DEFAULT NULL,
    on_dead regprocedure DEFAULT NULL,
    reset text[] DEFAULT NULL
) RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
DECLARE
    old outbox.relay := outbox.lock_relay(relay);
    new outbox.relay;
    changes jsonb := jsonb_strip_nulls(jsonb_build_object(
        'ordering', ordering,
        'exchange', exchange,
        'mandatory', mandatory,
        'batch_size', batch_size,
        'max_attempts', max_attempts,
        'retry_backoff_initial', retry_backoff_initial,
        'retry_backoff_multiplier', retry_backoff_multiplier,
        'retry_backoff_max', retry_backoff_max,
        'retention', retention,
        'dead_retention', dead_retention,
        'publish_rate', publish_rate,
        'serialize_producers', serialize_producers,
        'on_dead', CASE WHEN on_dead <> 0 THEN outbox.check_on_dead(on_dead) END
    ));
BEGIN
    IF on_dead = 0 THEN
        reset := reset || 'on_dead'::text;
    END IF;
    changes := changes || outbox.reset_values(reset, changes);
    IF changes = '{}' THEN
        RETURN;
    END IF;
    new := jsonb_populate_record(old, changes);
    PERFORM outbox.check_relay(new);
    PERFORM outbox.put_relay(new);
    -- Events that waited in a group that is none any more.
    IF new.ordering <> old.ordering THEN
        PERFORM outbox.release_headless(relay);
    END IF;
    PERFORM outbox.record_operation('alter_relay', relay, NULL, changes);
END
$$;
COMMENT ON FUNCTION outbox.alter_relay(
    text, text, text, boolean, integer, integer, interval, double precision, interval, interval, interval, integer,
    boolean, regprocedure, text[]
) IS
    'Alters the settings that are given, and takes those named in reset back to the server''s; the rest stays. on_dead ''-'' removes the function. Takes effect at commit. For roles that were granted EXECUTE';
REVOKE ALL ON FUNCTION outbox.alter_relay(
    text, text, text, boolean, integer, integer, interval, double precision, interval, interval, interval, integer,
    boolean, regprocedure, text[]
) FROM PUBLIC;

CREATE FUNCTION outbox.pause(relay text DEFAULT 'default', reason text DEFAULT NULL) RETURNS boolean
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
DECLARE
    target outbox.relay := outbox.lock_relay(relay);
BEGIN
    IF target.paused_at IS NOT NULL THEN
        RAISE NOTICE USING
            MESSAGE = format('relay "%s" is paused already', relay),
            DETAIL = format('It was paused by %s%s.', coalesce(target.paused_by, 'somebody'), ': ' || target.pause_reason);
        RETURN false;
    END IF;
    target.paused_at := clock_timestamp();
    target.paused_by := session_user;
    target.pause_reason := reason;
    PERFORM outbox.put_relay(target);
    PERFORM outbox.record_operation('pause', relay, NULL, jsonb_strip_nulls(jsonb_build_object('reason', reason)));
    RETURN true;
END
$$;
COMMENT ON FUNCTION outbox.pause(text, text) IS
    'Makes a relay publish nothing until it is resumed; false: it was paused already. What is on its way to the broker is still recorded. For roles that were granted EXECUTE';
REVOKE ALL ON FUNCTION outbox.pause(text, text) FROM PUBLIC;

CREATE FUNCTION outbox.resume(relay text DEFAULT 'default') RETURNS boolean
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
DECLARE
    target outbox.relay := outbox.lock_relay(relay);
    detail jsonb := jsonb_strip_nulls(jsonb_build_object('paused_at', target.paused_at,
        'paused_by', target.paused_by, 'reason', target.pause_reason));
BEGIN
    IF target.paused_at IS NULL THEN
        RAISE NOTICE 'relay "%" is not paused', relay;
        RETURN false;
    END IF;
    target.paused_at := NULL;
    target.paused_by := NULL;
    target.pause_reason := NULL;
    PERFORM outbox.put_relay(target);
    PERFORM outbox.record_operation('resume', relay, NULL, detail);
    RETURN true;
END
$$;
COMMENT ON FUNCTION outbox.resume(text) IS
    'Makes a paused relay publish again; false: it was not paused. For roles that were granted EXECUTE';
REVOKE ALL ON FUNCTION outbox.resume(text) FROM PUBLIC;
