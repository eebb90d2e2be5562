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

-- With the caller's rights, and without a search_path of its own: the triggers that somebody may have put on
-- outbox.event run as they do for a plain INSERT.
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
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_enqueue_bytea';

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
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_enqueue_text';

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
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_enqueue_jsonb';

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
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_enqueue_json';

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

