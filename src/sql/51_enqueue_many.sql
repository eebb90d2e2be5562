-- The rights and the duplicates are those of enqueue: INSERT is enough, so RETURNING, which reads, cannot be
-- used, and the ids are made beforehand. Whether every row was stored is told by their number; only if not,
-- each is looked for.
CREATE FUNCTION outbox.enqueue_many(events outbox.event[]) RETURNS SETOF uuid
    LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
    AS $function$
#variable_conflict use_variable
DECLARE
    ids pg_catalog.uuid[];
    stored pg_catalog.int8;
    refused pg_catalog.int8;
    refused_columns pg_catalog.text;
    event record;
BEGIN
    SELECT pg_catalog.array_agg(coalesce(e.id, outbox.uuid_v7())),
        pg_catalog.min(e.ordinality) FILTER (WHERE pg_catalog.num_nonnulls(
            e.seq, nullif(e.attempts, 0), e.enqueued_at, e.next_attempt_at, e.last_error, e.claimed_at,
            e.claimed_by, e.published_at, e.dead_at, e.outcome, e.error_code
        ) OPERATOR(pg_catalog.>) 0)
    INTO ids, refused
    FROM pg_catalog.unnest(events) WITH ORDINALITY AS e;

    IF refused IS NOT NULL THEN
        SELECT pg_catalog.concat_ws(', ',
            CASE WHEN e.seq IS NOT NULL THEN 'seq' END,
            CASE WHEN e.attempts OPERATOR(pg_catalog.<>) 0 THEN 'attempts' END,
            CASE WHEN e.enqueued_at IS NOT NULL THEN 'enqueued_at' END,
            CASE WHEN e.next_attempt_at IS NOT NULL THEN 'next_attempt_at' END,
            CASE WHEN e.last_error IS NOT NULL THEN 'last_error' END,
            CASE WHEN e.claimed_at IS NOT NULL THEN 'claimed_at' END,
            CASE WHEN e.claimed_by IS NOT NULL THEN 'claimed_by' END,
            CASE WHEN e.published_at IS NOT NULL THEN 'published_at' END,
            CASE WHEN e.dead_at IS NOT NULL THEN 'dead_at' END,
            CASE WHEN e.outcome IS NOT NULL THEN 'outcome' END,
            CASE WHEN e.error_code IS NOT NULL THEN 'error_code' END)
        INTO refused_columns
        FROM pg_catalog.unnest(events) WITH ORDINALITY AS e
        WHERE e.ordinality OPERATOR(pg_catalog.=) refused;
        RAISE invalid_parameter_value USING
            MESSAGE = pg_catalog.format('event %s of the array has a value in %s', refused, refused_columns),
            DETAIL = 'enqueue_many writes new events; these columns are filled by the table and by drainers.',
            HINT = 'Leave them NULL; for an event that is not to be sent yet, set available_at.';
    END IF;

    INSERT INTO outbox.event (
        id, event_type, payload, key, source, message_id, destination, routing_key, attributes,
        content_type, content_encoding, available_at, occurred_at, correlation_id, causation_id,
        traceparent, tracestate, reply_to, priority, expiration, schema_version, schema_reference,
        source_event_id, source_position
    )
    SELECT ids[e.ordinality], e.event_type, e.payload, e.key,
        coalesce(e.source, pg_catalog.current_database()), e.message_id, e.destination, e.routing_key,
        e.attributes, coalesce(e.content_type, 'application/json'), e.content_encoding,
        e.available_at, coalesce(e.occurred_at, pg_catalog.clock_timestamp()), e.correlation_id,
        e.causation_id, e.traceparent, e.tracestate, e.reply_to, e.priority, e.expiration,
        e.schema_version, e.schema_reference, e.source_event_id, e.source_position
    FROM pg_catalog.unnest(events) WITH ORDINALITY AS e
    ORDER BY e.ordinality
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS stored = ROW_COUNT;

    IF stored OPERATOR(pg_catalog.=) pg_catalog.cardinality(ids) THEN
        RETURN QUERY SELECT i.id FROM pg_catalog.unnest(ids) AS i (id);
        RETURN;
    END IF;

    -- An event that is neither stored nor there already was deleted meanwhile: enqueue tries again, and
    -- says so when it is no use.
    FOR event IN SELECT e.* FROM pg_catalog.unnest(events) WITH ORDINALITY AS e ORDER BY e.ordinality LOOP
        RETURN NEXT coalesce(
            outbox.find_duplicate(ids[event.ordinality],
                coalesce(event.source, pg_catalog.current_database()), event.message_id),
            outbox.enqueue(
                event_type => event.event_type, payload => event.payload, key => event.key,
                destination => event.destination, routing_key => event.routing_key,
                attributes => event.attributes,
                content_type => coalesce(event.content_type, 'application/json'),
                source => event.source, message_id => event.message_id, id => ids[event.ordinality],
                available_at => event.available_at, correlation_id => event.correlation_id,
                causation_id => event.causation_id, traceparent => event.traceparent,
                tracestate => event.tracestate, reply_to => event.reply_to,
                priority => event.priority::pg_catalog.int4, expiration => event.expiration,
                occurred_at => event.occurred_at, schema_version => event.schema_version,
                schema_reference => event.schema_reference, source_event_id => event.source_event_id,
                source_position => event.source_position, content_encoding => event.content_encoding
            )
        );
    END LOOP;
END
$function$;
COMMENT ON FUNCTION outbox.enqueue_many(outbox.event[]) IS
    'Writes the events of an array in its order and returns their ids in that order; as with enqueue, for an id, or a source and message_id, that is there already the id of that event, and nothing is written. Columns that are NULL get the table''s defaults; those that drainers fill must be NULL. Columns added to the table are not written';
