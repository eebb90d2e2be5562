CREATE VIEW outbox.events AS
SELECT
    e.seq,
    e.id,
    CASE
        WHEN e.published_at IS NOT NULL THEN 'published'
        WHEN e.dead_at IS NOT NULL THEN coalesce(e.outcome, 'dead')
        WHEN e.claimed_by IS NOT NULL THEN 'publishing'
        WHEN e.next_attempt_at IS NOT NULL AND e.attempts > 0 THEN 'failed'
        ELSE 'pending'
    END AS status,
    e.source,
    coalesce(e.message_id, outbox.typeid('msg', e.id)) AS message_id,
    e.destination,
    e.event_type,
    e.routing_key,
    e.key,
    e.payload,
    e.content_type,
    e.content_encoding,
    e.schema_version,
    e.schema_reference,
    e.attributes,
    e.source_event_id,
    e.source_position,
    e.occurred_at,
    e.causation_id,
    e.correlation_id,
    e.reply_to,
    e.traceparent,
    e.tracestate,
    e.priority,
    e.expiration,
    e.available_at,
    e.enqueued_at,
    e.attempts,
    e.next_attempt_at,
    e.last_error,
    e.claimed_at,
    e.claimed_by,
    e.published_at,
    e.dead_at,
    e.outcome,
    e.error_code
FROM outbox.event AS e;

COMMENT ON VIEW outbox.events IS 'The events with their status and the message_id under which they are sent';
-- The columns mean what they mean in the table.
DO $$
DECLARE
    col record;
BEGIN
    FOR col IN
        SELECT attname, pg_catalog.col_description(attrelid, attnum) AS text
        FROM pg_catalog.pg_attribute
        WHERE attrelid = 'outbox.event'::regclass AND attnum > 0 AND NOT attisdropped
    LOOP
        EXECUTE pg_catalog.format('COMMENT ON COLUMN outbox.events.%I IS %L', col.attname, col.text);
    END LOOP;
END
$$;
COMMENT ON COLUMN outbox.events.message_id IS
    'The message_id under which the event is sent: the one it was given, else the TypeID of its id';
COMMENT ON COLUMN outbox.events.status IS
    'pending (no attempt was charged: new, scheduled, waiting behind its key, or held for an exchange that does not exist), publishing (in a drainer''s hand), failed (will be tried again), published, or how it ended: dead, rejected, discarded';

