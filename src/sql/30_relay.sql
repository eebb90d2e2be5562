CREATE TABLE outbox.relay (
    name text PRIMARY KEY,
    source regclass NOT NULL
);
COMMENT ON TABLE outbox.relay IS 'Relays: an outbox table and how it is drained';
COMMENT ON COLUMN outbox.relay.name IS 'Name of the relay';
COMMENT ON COLUMN outbox.relay.source IS 'The outbox table that it reads';
COMMENT ON CONSTRAINT relay_pkey ON outbox.relay IS 'A relay is known by its name';
COMMENT ON INDEX outbox.relay_pkey IS 'A relay is known by its name';

INSERT INTO outbox.relay (name, source) VALUES ('default', 'outbox.event');

-- Written every few seconds by the drainer. Room in the page keeps that HOT.
CREATE TABLE outbox.relay_state (
    relay text PRIMARY KEY
        CONSTRAINT relay_state_relay_fkey REFERENCES outbox.relay (name) ON UPDATE CASCADE ON DELETE CASCADE,
    floor bigint NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 10);
COMMENT ON TABLE outbox.relay_state IS
    'Where a drainer begins to read after a restart; not part of a dump, because a restored floor could hide events';
COMMENT ON COLUMN outbox.relay_state.relay IS 'The relay';
COMMENT ON COLUMN outbox.relay_state.floor IS
    'Every event whose seq is not above this has ended or is deferred';
COMMENT ON COLUMN outbox.relay_state.updated_at IS 'When the floor was written';
COMMENT ON CONSTRAINT relay_state_pkey ON outbox.relay_state IS 'One floor for each relay';
COMMENT ON CONSTRAINT relay_state_relay_fkey ON outbox.relay_state IS 'A floor goes with its relay';
COMMENT ON INDEX outbox.relay_state_pkey IS 'One floor for each relay';

