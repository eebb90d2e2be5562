-- Dumps carry the events, where the sequence stands, and the relays beside the one that is always there.
SELECT pg_catalog.pg_extension_config_dump('outbox.event', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.event_seq', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.relay', $$WHERE name <> 'default'$$);

SELECT outbox.wake();
