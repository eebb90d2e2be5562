-- What the INSERT of enqueue ran into. It reads with the rights of the table's owner, because a producer may
-- write but not read, and demands the right to INSERT of its caller. VOLATILE: it must see what was
-- committed since the caller's statement began.
CREATE FUNCTION outbox.find_duplicate(id uuid, source text, message_id text) RETURNS uuid
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_find_duplicate';
COMMENT ON FUNCTION outbox.find_duplicate(uuid, text, text) IS
    'The id of the event that has this id, or else this source and message_id; NULL when there is none';

CREATE FUNCTION outbox.guess_content_type(payload text) RETURNS text
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_guess_content_type';
COMMENT ON FUNCTION outbox.guess_content_type(text) IS
    'application/json for text that parses as JSON, else text/plain';

-- Every name is qualified instead of a search_path being set: the triggers that somebody may have put on
-- outbox.event then run as they do for a plain INSERT. ON CONFLICT names no columns, because that would
-- need the right to read them. An INSERT that meets an open transaction waits for its end; after a
-- commit the other event is looked up in a new statement, which may find that it has been deleted since.
-- In REPEATABLE READ the INSERT itself fails with a serialization failure.
CREATE FUNCTION outbox.enqueue(
    event_type text,
    payload bytea,
    key text DEFAULT NULL,
    destination text DEFAULT NULL,
    routing_key text DEFAULT NULL,
    attributes jsonb DEFAULT NULL,
    content_type text DEFAULT NULL,
    source text DEFAULT NULL,
    message_id text DEFAULT NULL,
    id uuid DEFAULT NULL,
    available_at timestamptz DEFAULT NULL,
    correlation_id text DEFAULT NULL,
    causation_id text DEFAULT NULL,
    traceparent text DEFAULT NULL,
    tracestate text DEFAULT NULL,
    reply_to text DEFAULT NULL,
    priority integer DEFAULT NULL,
    expiration interval DEFAULT NULL,
    occurred_at timestamptz DEFAULT NULL,
    schema_version integer DEFAULT NULL,
    schema_reference jsonb DEFAULT NULL,
    source_event_id text DEFAULT NULL,
    source_position bigint DEFAULT NULL,
    content_encoding text DEFAULT NULL
) RETURNS uuid
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    AS $function$
#variable_conflict use_variable
DECLARE
    new_id pg_catalog.uuid := coalesce(id, outbox.uuid_v7());
    event_source pg_catalog.text := coalesce(source, pg_catalog.current_database());
    first_id pg_catalog.uuid;
BEGIN
    FOR attempt IN 1..10 LOOP
        INSERT INTO outbox.event (
            id, event_type, payload, key, source, message_id, destination, routing_key, attributes,
            content_type, content_encoding, available_at, occurred_at, correlation_id, causation_id,
            traceparent, tracestate, reply_to, priority, expiration, schema_version, schema_reference,
            source_event_id, source_position
        ) VALUES (
            new_id, event_type, payload, key, event_source, message_id, destination, routing_key,
            attributes, coalesce(content_type, 'application/octet-stream'), content_encoding,
            available_at, coalesce(occurred_at, pg_catalog.clock_timestamp()), correlation_id,
            causation_id, traceparent, tracestate, reply_to,
            -- Within the type, so that the check of the row names the column and the limit.
            CASE WHEN priority IS NOT NULL THEN greatest(least(priority, 32767), -32768)::pg_catalog.int2 END,
            expiration,
            schema_version, schema_reference, source_event_id, source_position
        ) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN new_id;
        END IF;
        first_id := outbox.find_duplicate(new_id, event_source, message_id);
        IF first_id IS NOT NULL THEN
            RETURN first_id;
        END IF;
    END LOOP;
    RAISE integrity_constraint_violation USING
        MESSAGE = 'event was not stored, and there is none with its id or message_id',
        HINT = 'Look for a trigger on outbox.event that drops rows, for a unique index of your own, and whether outbox.event_seq is behind the table.';
END
$function$;

CREATE FUNCTION outbox.enqueue(
    event_type text,
    payload text,
    key text DEFAULT NULL,
    destination text DEFAULT NULL,
    routing_key text DEFAULT NULL,
    attributes jsonb DEFAULT NULL,
    content_type text DEFAULT NULL,
    source text DEFAULT NULL,
    message_id text DEFAULT NULL,
    id uuid DEFAULT NULL,
    available_at timestamptz DEFAULT NULL,
    correlation_id text DEFAULT NULL,
    causation_id text DEFAULT NULL,
    traceparent text DEFAULT NULL,
    tracestate text DEFAULT NULL,
    reply_to text DEFAULT NULL,
    priority integer DEFAULT NULL,
    expiration interval DEFAULT NULL,
    occurred_at timestamptz DEFAULT NULL,
    schema_version integer DEFAULT NULL,
    schema_reference jsonb DEFAULT NULL,
    source_event_id text DEFAULT NULL,
    source_position bigint DEFAULT NULL,
    content_encoding text DEFAULT NULL
) RETURNS uuid
    LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN outbox.enqueue(
        event_type, pg_catalog.convert_to(payload, 'UTF8'), key, destination, routing_key, attributes,
        coalesce(content_type, outbox.guess_content_type(payload)), source, message_id, id,
        available_at, correlation_id, causation_id, traceparent, tracestate, reply_to, priority,
        expiration, occurred_at, schema_version, schema_reference, source_event_id, source_position,
        content_encoding
    );

CREATE FUNCTION outbox.enqueue(
    event_type text,
    payload jsonb,
    key text DEFAULT NULL,
    destination text DEFAULT NULL,
    routing_key text DEFAULT NULL,
    attributes jsonb DEFAULT NULL,
    content_type text DEFAULT NULL,
    source text DEFAULT NULL,
    message_id text DEFAULT NULL,
    id uuid DEFAULT NULL,
    available_at timestamptz DEFAULT NULL,
    correlation_id text DEFAULT NULL,
    causation_id text DEFAULT NULL,
    traceparent text DEFAULT NULL,
    tracestate text DEFAULT NULL,
    reply_to text DEFAULT NULL,
    priority integer DEFAULT NULL,
    expiration interval DEFAULT NULL,
    occurred_at timestamptz DEFAULT NULL,
    schema_version integer DEFAULT NULL,
    schema_reference jsonb DEFAULT NULL,
    source_event_id text DEFAULT NULL,
    source_position bigint DEFAULT NULL,
    content_encoding text DEFAULT NULL
) RETURNS uuid
    LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN outbox.enqueue(
        event_type, pg_catalog.convert_to(payload::text, 'UTF8'), key, destination, routing_key,
        attributes, coalesce(content_type, 'application/json'), source, message_id, id, available_at,
        correlation_id, causation_id, traceparent, tracestate, reply_to, priority, expiration,
        occurred_at, schema_version, schema_reference, source_event_id, source_position,
        content_encoding
    );

CREATE FUNCTION outbox.enqueue(
    event_type text,
    payload json,
    key text DEFAULT NULL,
    destination text DEFAULT NULL,
    routing_key text DEFAULT NULL,
    attributes jsonb DEFAULT NULL,
    content_type text DEFAULT NULL,
    source text DEFAULT NULL,
    message_id text DEFAULT NULL,
    id uuid DEFAULT NULL,
    available_at timestamptz DEFAULT NULL,
    correlation_id text DEFAULT NULL,
    causation_id text DEFAULT NULL,
    traceparent text DEFAULT NULL,
    tracestate text DEFAULT NULL,
    reply_to text DEFAULT NULL,
    priority integer DEFAULT NULL,
    expiration interval DEFAULT NULL,
    occurred_at timestamptz DEFAULT NULL,
    schema_version integer DEFAULT NULL,
    schema_reference jsonb DEFAULT NULL,
    source_event_id text DEFAULT NULL,
    source_position bigint DEFAULT NULL,
    content_encoding text DEFAULT NULL
) RETURNS uuid
    LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN outbox.enqueue(
        event_type, pg_catalog.convert_to(payload::text, 'UTF8'), key, destination, routing_key,
        attributes, coalesce(content_type, 'application/json'), source, message_id, id, available_at,
        correlation_id, causation_id, traceparent, tracestate, reply_to, priority, expiration,
        occurred_at, schema_version, schema_reference, source_event_id, source_position,
        content_encoding
    );

DO $$
DECLARE
    variant record;
BEGIN
    FOR variant IN
        SELECT p.oid::regprocedure AS signature, t.type_name, t.content_type
        FROM pg_catalog.pg_proc AS p
        JOIN (VALUES
            ('bytea', 'application/octet-stream'),
            ('text', 'application/json where it parses as JSON, else text/plain'),
            ('jsonb', 'application/json'),
            ('json', 'application/json')
        ) AS t (type_name, content_type) ON p.proargtypes[1] = t.type_name::regtype
        WHERE p.pronamespace = 'outbox'::regnamespace AND p.proname = 'enqueue'
    LOOP
        EXECUTE pg_catalog.format(
            'COMMENT ON FUNCTION %s IS %L', variant.signature, pg_catalog.format(
                'Writes an event with a payload of type %s and returns its id; with an id, or a source and message_id, that is there already, returns the id of that event and writes nothing. content_type is by default %s',
                variant.type_name, variant.content_type
            )
        );
    END LOOP;
END
$$;

