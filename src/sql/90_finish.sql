-- Dumps carry the events, where the sequence stands, the relays, and what operators did.
SELECT pg_catalog.pg_extension_config_dump('outbox.event', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.event_seq', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.relay', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.operation', '');

SELECT outbox.wake();
