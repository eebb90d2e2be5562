-- Belongs to no column: TRUNCATE ... RESTART IDENTITY must not bring numbers back that drainers have
-- passed, or the events that get them would wait below the floor. CACHE 1, because drainers take a
-- number for drawn while its transaction holds the sequence's lock.
CREATE SEQUENCE outbox.event_seq AS bigint CACHE 1;
COMMENT ON SEQUENCE outbox.event_seq IS
    'Numbers the events in the order in which they were inserted; must keep CACHE 1 and must not go back';

-- fillfactor: an event is written three times (insert, claim, mark), and with a third of each page filled
-- at first all three versions fit in one page, so that no index is touched again (HOT).
-- autovacuum: each event leaves two dead versions, and a fifth of a history of days is far too many. The
-- partial indexes rely on vacuum too, once events were deferred.
-- Collation "C": these columns are indexed and compared for equality only, and the indexes then survive a
-- new version of the operating system's collations.
CREATE TABLE outbox.event (
    seq bigint PRIMARY KEY,
    id uuid NOT NULL CONSTRAINT event_id_key UNIQUE,
    source text COLLATE "C" NOT NULL DEFAULT current_database(),
    message_id text COLLATE "C",
    destination text,
    event_type text,
    routing_key text,
    key text COLLATE "C",
    payload bytea NOT NULL,
    content_type text DEFAULT 'application/json',
    content_encoding text,
    schema_version integer,
    schema_reference jsonb,
    attributes jsonb,
    source_event_id text,
    source_position bigint,
    occurred_at timestamptz DEFAULT clock_timestamp(),
    causation_id text,
    correlation_id text,
    reply_to text,
    traceparent text,
    tracestate text,
    priority smallint,
    expiration interval,
    available_at timestamptz,
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    last_error text,
    claimed_at timestamptz,
    claimed_by text,
    published_at timestamptz,
    dead_at timestamptz,
    outcome text,
    error_code text,
    CONSTRAINT event_attempts_check CHECK (attempts >= 0),
    -- An index entry takes at most 2704 bytes. Without these two the UPDATE that defers an event, which is
    -- what brings it into event_held_key_idx, could fail.
    CONSTRAINT event_key_check CHECK (octet_length(key) <= 1024),
    CONSTRAINT event_source_check CHECK (octet_length(source) <= 1024),
    CONSTRAINT event_outcome_check CHECK (outcome IN ('dead', 'rejected', 'discarded')),
    CONSTRAINT event_end_check CHECK (published_at IS NULL OR dead_at IS NULL)
) WITH (
    fillfactor = 33,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000
);

-- A large payload is packed once and unpacked once, and pglz, the default, takes longer for that than all the rest
-- of the way. A server built without lz4 keeps pglz.
DO $$
BEGIN
    ALTER TABLE outbox.event ALTER COLUMN payload SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END
$$;

-- No index holds a column that an event's way from insert to published changes: updates stay HOT. The
-- partial ones are empty as long as nothing is deferred, given a message_id, or dead.
CREATE UNIQUE INDEX event_message_id_key ON outbox.event (source, message_id)
    WHERE message_id IS NOT NULL;
CREATE INDEX event_due_idx ON outbox.event (next_attempt_at, seq)
    WHERE next_attempt_at IS NOT NULL;
-- Deferred events that hold their group: failed, held, requeued, or waiting behind such a one. One that is merely
-- scheduled (next_attempt_at is available_at) holds nobody, and is not in here.
CREATE INDEX event_held_key_idx ON outbox.event (source, key, seq)
    WHERE next_attempt_at IS NOT NULL AND next_attempt_at IS DISTINCT FROM available_at;
CREATE INDEX event_held_source_idx ON outbox.event (source, seq)
    WHERE next_attempt_at IS NOT NULL AND next_attempt_at IS DISTINCT FROM available_at;
CREATE INDEX event_dead_idx ON outbox.event (dead_at)
    WHERE dead_at IS NOT NULL;

CREATE FUNCTION outbox.event_before_insert() RETURNS trigger
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_event_before_insert';
COMMENT ON FUNCTION outbox.event_before_insert() IS
    'Trigger: refuses an event that could not be sent, fills seq and id where they are NULL, defers an event that is not to be sent yet, and wakes the drainer at commit; its argument is the sequence';
REVOKE ALL ON FUNCTION outbox.event_before_insert() FROM PUBLIC;

-- Triggers fire in the order of their names. This one has to be the last: the number must be drawn after
-- whatever a producer's own triggers lock, so that the order of numbers is the order of those locks.
CREATE TRIGGER zzz_outbox_drainer BEFORE INSERT ON outbox.event
    FOR EACH ROW EXECUTE FUNCTION outbox.event_before_insert('event_seq');
COMMENT ON TRIGGER zzz_outbox_drainer ON outbox.event IS
    'Numbers each event and wakes the drainer at commit; must stay the last BEFORE INSERT trigger by name';
-- Also for rows that come by logical replication or in a session with session_replication_role = replica.
ALTER TABLE outbox.event ENABLE ALWAYS TRIGGER zzz_outbox_drainer;

COMMENT ON TABLE outbox.event IS
    'The outbox: one row for each event, published once the transaction that wrote it has committed';
COMMENT ON COLUMN outbox.event.seq IS 'Order in which events were inserted; NULL: drawn from outbox.event_seq. A row that brings its own number is deferred at first';
COMMENT ON COLUMN outbox.event.id IS 'Identity of the event; NULL: a new UUID of version 7';
COMMENT ON COLUMN outbox.event.source IS 'Who produces the event (property app_id); by default the name of the database. At most 1024 bytes';
COMMENT ON COLUMN outbox.event.message_id IS 'Property message_id, unique for each source; NULL: the TypeID of id with prefix msg';
COMMENT ON COLUMN outbox.event.destination IS 'Exchange; empty text: the default exchange, whose routing key names a queue; NULL: the setting outbox_drainer.exchange';
COMMENT ON COLUMN outbox.event.event_type IS 'What happened, as in order.placed (property type)';
COMMENT ON COLUMN outbox.event.routing_key IS 'Routing key; NULL: event_type';
COMMENT ON COLUMN outbox.event.key IS 'Ordering key: events of the same source and key are published in the order of seq. At most 1024 bytes';
COMMENT ON COLUMN outbox.event.payload IS 'The message body, sent as it is';
COMMENT ON COLUMN outbox.event.content_type IS 'Media type of the payload (property content_type)';
COMMENT ON COLUMN outbox.event.content_encoding IS 'Encoding of the payload, as in gzip (property content_encoding)';
COMMENT ON COLUMN outbox.event.schema_version IS 'Version of the payload''s schema (header outbox-schema-version)';
COMMENT ON COLUMN outbox.event.schema_reference IS 'Where the payload''s schema is described (header outbox-schema-reference)';
COMMENT ON COLUMN outbox.event.attributes IS 'JSON object whose members become headers of the same type';
COMMENT ON COLUMN outbox.event.source_event_id IS 'Id of the event that this one was made from (header outbox-source-event-id)';
COMMENT ON COLUMN outbox.event.source_position IS 'Position of the event that this one was made from (header outbox-source-position)';
COMMENT ON COLUMN outbox.event.occurred_at IS 'When it happened (property timestamp); by default the time of the insert';
COMMENT ON COLUMN outbox.event.causation_id IS 'Id of the message that caused this event (header outbox-causation-id)';
COMMENT ON COLUMN outbox.event.correlation_id IS 'Id shared by all messages of one exchange (property correlation_id)';
COMMENT ON COLUMN outbox.event.reply_to IS 'Where an answer is expected (property reply_to)';
COMMENT ON COLUMN outbox.event.traceparent IS 'W3C trace context (header traceparent)';
COMMENT ON COLUMN outbox.event.tracestate IS 'W3C trace state (header tracestate)';
COMMENT ON COLUMN outbox.event.priority IS 'Message priority (property priority)';
COMMENT ON COLUMN outbox.event.expiration IS 'How long the message may wait in a queue, from when it is published (property expiration)';
COMMENT ON COLUMN outbox.event.available_at IS 'Not to be published before this time';
COMMENT ON COLUMN outbox.event.enqueued_at IS 'When the event was inserted';
COMMENT ON COLUMN outbox.event.attempts IS 'Failures that were charged to this event; 0 for an event published at first try';
COMMENT ON COLUMN outbox.event.next_attempt_at IS 'Set while the event is deferred: when it is due; infinity: it waits for an earlier event of its key';
COMMENT ON COLUMN outbox.event.last_error IS 'Why the last attempt failed, or what the event was held for; begins with its class: nack, unroutable, rejected, poison or held';
COMMENT ON COLUMN outbox.event.claimed_at IS 'When a drainer took the event in hand';
COMMENT ON COLUMN outbox.event.claimed_by IS 'Token of the claim under which a drainer has the event in hand';
COMMENT ON COLUMN outbox.event.published_at IS 'When the broker''s confirm was recorded; with dead_at NULL too there is work left';
COMMENT ON COLUMN outbox.event.dead_at IS 'When the event ended without being published';
COMMENT ON COLUMN outbox.event.outcome IS 'How an event ended that was not published: dead (attempts used up), rejected (refused for good) or discarded';
COMMENT ON COLUMN outbox.event.error_code IS 'Short stable code of why the event ended without being published';

COMMENT ON CONSTRAINT event_pkey ON outbox.event IS 'Drainers walk the events in this order';
COMMENT ON CONSTRAINT event_id_key ON outbox.event IS 'An id is written once';
COMMENT ON CONSTRAINT event_attempts_check ON outbox.event IS 'Attempts are counted from zero';
COMMENT ON CONSTRAINT event_key_check ON outbox.event IS 'A key has at most 1024 bytes, so that every event can be deferred';
COMMENT ON CONSTRAINT event_source_check ON outbox.event IS 'A source has at most 1024 bytes, so that every event can be deferred';
COMMENT ON CONSTRAINT event_outcome_check ON outbox.event IS 'The ways to end without being published';
COMMENT ON CONSTRAINT event_end_check ON outbox.event IS 'An event ends in one way only';
COMMENT ON INDEX outbox.event_pkey IS 'Drainers walk the events in this order';
COMMENT ON INDEX outbox.event_id_key IS 'An id is written once';
COMMENT ON INDEX outbox.event_message_id_key IS 'A message_id is written once for each source';
COMMENT ON INDEX outbox.event_due_idx IS 'Deferred events by when they are due, those due at once (a restored dump) in their order';
COMMENT ON INDEX outbox.event_held_key_idx IS 'Events that hold their key or wait behind one that does, to find the next one of a key';
COMMENT ON INDEX outbox.event_held_source_idx IS 'The same by source, for relays with the ordering per_source';
COMMENT ON INDEX outbox.event_dead_idx IS 'Events that ended without being published';

