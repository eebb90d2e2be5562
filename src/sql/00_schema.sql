\echo Use "CREATE EXTENSION outbox_drainer" to load this file. \quit

-- The schema's name is part of the interface, and all of it belongs to the extension: DROP EXTENSION takes
-- it away. So one that is there already cannot be used.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname OPERATOR(pg_catalog.=) 'outbox') THEN
        RAISE duplicate_schema USING
            MESSAGE = 'schema "outbox" exists already and does not belong to outbox_drainer',
            DETAIL = 'The extension creates a schema of this name for itself.',
            HINT = 'Rename or drop the schema, then repeat CREATE EXTENSION outbox_drainer.';
    END IF;
END
$$;

CREATE SCHEMA outbox;
COMMENT ON SCHEMA outbox IS 'Transactional outbox: events written here are published to RabbitMQ by outbox_drainer';

-- Naming a table or a function is all that USAGE allows; what may be done with them is granted one by one.
GRANT USAGE ON SCHEMA outbox TO PUBLIC;

