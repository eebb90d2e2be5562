-- A column that is NULL leaves the matter to the setting of the same name.
CREATE TABLE outbox.relay (
    name text PRIMARY KEY,
    source regclass NOT NULL,
    ordering text NOT NULL DEFAULT 'per_key',
    exchange text,
    mandatory boolean,
    batch_size integer,
    max_attempts integer,
    retry_backoff_initial interval,
    retry_backoff_multiplier double precision,
    retry_backoff_max interval,
    retention interval,
    dead_retention interval,
    publish_rate integer,
    serialize_producers boolean NOT NULL DEFAULT false,
    on_dead text,
    paused_at timestamptz,
    paused_by text,
    pause_reason text,
    CONSTRAINT relay_ordering_check CHECK (ordering IN ('best_effort', 'per_key', 'per_source', 'stop_the_line')),
    CONSTRAINT relay_exchange_check CHECK (octet_length(exchange) <= 255),
    CONSTRAINT relay_batch_size_check CHECK (batch_size BETWEEN 1 AND 100000),
    CONSTRAINT relay_max_attempts_check CHECK (max_attempts >= 0),
    CONSTRAINT relay_retry_backoff_initial_check CHECK (retry_backoff_initial > interval '0'),
    CONSTRAINT relay_retry_backoff_multiplier_check CHECK (retry_backoff_multiplier BETWEEN 1 AND 100),
    CONSTRAINT relay_retry_backoff_max_check CHECK (retry_backoff_max > interval '0'),
    CONSTRAINT relay_retention_check CHECK (retention >= interval '0'),
    CONSTRAINT relay_dead_retention_check CHECK (dead_retention >= interval '0'),
    CONSTRAINT relay_publish_rate_check CHECK (publish_rate >= 0)
);
COMMENT ON TABLE outbox.relay IS 'Relays: an outbox table and how it is drained; changed by outbox.alter_relay';
COMMENT ON COLUMN outbox.relay.name IS 'Name of the relay';
COMMENT ON COLUMN outbox.relay.source IS 'The outbox table that it reads';
COMMENT ON COLUMN outbox.relay.ordering IS 'Which events keep their order: best_effort, per_key, per_source or stop_the_line';
COMMENT ON COLUMN outbox.relay.exchange IS 'Exchange for events whose destination is NULL';
COMMENT ON COLUMN outbox.relay.mandatory IS 'Whether an event that the broker cannot route to any queue has failed';
COMMENT ON COLUMN outbox.relay.batch_size IS 'Most events claimed at once';
COMMENT ON COLUMN outbox.relay.max_attempts IS 'Charged failures until an event is dead; 0: never';
COMMENT ON COLUMN outbox.relay.retry_backoff_initial IS 'Delay after the first failure of an event';
COMMENT ON COLUMN outbox.relay.retry_backoff_multiplier IS 'What the delay is multiplied by after each further failure; 1: the delay is constant';
COMMENT ON COLUMN outbox.relay.retry_backoff_max IS 'Longest delay after a failure';
COMMENT ON COLUMN outbox.relay.retention IS 'How long published events are kept; 0: for ever';
COMMENT ON COLUMN outbox.relay.dead_retention IS 'How long events are kept that ended without being published; 0: for ever';
COMMENT ON COLUMN outbox.relay.publish_rate IS 'Most events published in a second, by all drainers together; 0: no limit';
COMMENT ON COLUMN outbox.relay.serialize_producers IS 'Whether producers that write the same key wait for each other until they commit, for those that lock nothing of their own; two transactions that write keys in different orders can then deadlock, and PostgreSQL ends one of them';
COMMENT ON COLUMN outbox.relay.on_dead IS 'Function (outbox.event) that is called for each event that ended dead or rejected';
COMMENT ON COLUMN outbox.relay.paused_at IS 'Since when the relay has been paused; NULL: it is not';
COMMENT ON COLUMN outbox.relay.paused_by IS 'Who paused it';
COMMENT ON COLUMN outbox.relay.pause_reason IS 'Why it was paused';
COMMENT ON CONSTRAINT relay_pkey ON outbox.relay IS 'A relay is known by its name';
COMMENT ON CONSTRAINT relay_ordering_check ON outbox.relay IS 'The known ways to order';
COMMENT ON CONSTRAINT relay_exchange_check ON outbox.relay IS 'The name of an exchange has at most 255 bytes';
COMMENT ON CONSTRAINT relay_batch_size_check ON outbox.relay IS 'The range of the setting batch_size';
COMMENT ON CONSTRAINT relay_max_attempts_check ON outbox.relay IS 'The range of the setting max_attempts';
COMMENT ON CONSTRAINT relay_retry_backoff_initial_check ON outbox.relay IS 'A delay is longer than nothing';
COMMENT ON CONSTRAINT relay_retry_backoff_multiplier_check ON outbox.relay IS 'The range of the setting retry_backoff_multiplier';
COMMENT ON CONSTRAINT relay_retry_backoff_max_check ON outbox.relay IS 'A delay is longer than nothing';
COMMENT ON CONSTRAINT relay_retention_check ON outbox.relay IS 'A time to keep is not negative';
COMMENT ON CONSTRAINT relay_dead_retention_check ON outbox.relay IS 'A time to keep is not negative';
COMMENT ON CONSTRAINT relay_publish_rate_check ON outbox.relay IS 'A rate is not negative';
COMMENT ON INDEX outbox.relay_pkey IS 'A relay is known by its name';

INSERT INTO outbox.relay (name, source) VALUES ('default', 'outbox.event');

-- Written every few seconds by the drainers. Room in the page keeps that HOT.
CREATE TABLE outbox.relay_state (
    relay text PRIMARY KEY
        CONSTRAINT relay_state_relay_fkey REFERENCES outbox.relay (name) ON UPDATE CASCADE ON DELETE CASCADE,
    floor bigint NOT NULL DEFAULT 0,
    retention_from bigint NOT NULL DEFAULT 0,
    backlog bigint,
    backlog_at timestamptz,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 10);
COMMENT ON TABLE outbox.relay_state IS
    'Where drainers begin to read after a restart; not part of a dump, because a restored floor could hide events';
COMMENT ON COLUMN outbox.relay_state.relay IS 'The relay';
COMMENT ON COLUMN outbox.relay_state.floor IS
    'Every event whose seq is not above this has ended or is deferred';
COMMENT ON COLUMN outbox.relay_state.retention_from IS
    'No event whose seq is not above this is waiting for the end of retention, unless it was deferred';
COMMENT ON COLUMN outbox.relay_state.backlog IS 'Events that were left to do at backlog_at, as outbox.backlog() counts or estimates them';
COMMENT ON COLUMN outbox.relay_state.backlog_at IS 'When the backlog was looked at; now and then, and not again while it is empty';
COMMENT ON COLUMN outbox.relay_state.updated_at IS 'When the floor was written';
COMMENT ON CONSTRAINT relay_state_pkey ON outbox.relay_state IS 'One floor for each relay';
COMMENT ON CONSTRAINT relay_state_relay_fkey ON outbox.relay_state IS 'A floor goes with its relay';
COMMENT ON INDEX outbox.relay_state_pkey IS 'One floor for each relay';
