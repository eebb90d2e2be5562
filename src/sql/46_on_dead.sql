-- Each call is a subtransaction, so that an error in the function is undone and changes nothing else; OTHERS would
-- let two kinds through. It runs as whoever the drainer works as, the owner of outbox.event. The name is looked
-- up when it is needed: the function may have been dropped, or may not be restored yet.
CREATE FUNCTION outbox.call_on_dead(seqs bigint[]) RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
    AS $function$
DECLARE
    handler regprocedure;
    name text;
    dead_event outbox.event;
    failures integer := 0;
    first_event uuid;
    first_state text;
    first_error text;
BEGIN
    SELECT r.on_dead INTO name FROM outbox.relay AS r WHERE r.name = 'default';
    IF name IS NULL THEN
        RETURN;
    END IF;
    handler := to_regprocedure(name);
    IF handler IS NULL THEN
        RAISE WARNING USING
            ERRCODE = 'undefined_function',
            MESSAGE = format('function %s, which the relay names as on_dead, does not exist', name),
            HINT = 'Create it, or call outbox.alter_relay with another one.';
        RETURN;
    END IF;
    FOR dead_event IN SELECT e.* FROM outbox.event AS e WHERE e.seq = ANY (seqs) ORDER BY e.seq LOOP
        BEGIN
            EXECUTE format('SELECT %s($1)', handler::regproc) USING dead_event;
        EXCEPTION WHEN OTHERS OR assert_failure OR query_canceled THEN
            failures := failures + 1;
            IF failures = 1 THEN
                first_event := dead_event.id;
                first_state := SQLSTATE;
                first_error := SQLERRM;
            END IF;
        END;
    END LOOP;
    IF failures > 0 THEN
        RAISE WARNING USING
            ERRCODE = first_state,
            MESSAGE = format('function %s failed for event %s: %s', name, first_event, first_error),
            DETAIL = format('It failed for %s of these %s events.', failures, cardinality(seqs)),
            HINT = 'The events keep their end. Correct the function, or call it yourself.';
    END IF;
END
$function$;
COMMENT ON FUNCTION outbox.call_on_dead(bigint[]) IS
    'Calls the relay''s on_dead function for these events; the drainer does this when they end dead or rejected';
-- Works with the rights of its caller only, so everybody may try: the drainer calls it as whoever owns the table.
GRANT EXECUTE ON FUNCTION outbox.call_on_dead(bigint[]) TO PUBLIC;
