-- A schema of the name that the extension needs is in the way.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event;
RESET client_min_messages;

DROP EXTENSION outbox_drainer;
CREATE SCHEMA outbox;
CREATE TABLE outbox.mine ();
\set SHOW_CONTEXT never
CREATE EXTENSION outbox_drainer;
CREATE EXTENSION outbox_drainer SCHEMA public;
SELECT extname FROM pg_extension WHERE extname = 'outbox_drainer';
DROP TABLE outbox.mine;
DROP SCHEMA outbox;
SET client_min_messages = error;
CREATE EXTENSION outbox_drainer;
RESET client_min_messages;
-- What somebody puts into the schema is theirs.
CREATE TABLE outbox.mine ();
DROP EXTENSION outbox_drainer;
DROP TABLE outbox.mine;
