-- DROP EXTENSION does not lose events by accident.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
TRUNCATE outbox.event;
RESET client_min_messages;

SELECT outbox.enqueue('a', '', id => '00000000-0000-7000-8000-000000000001');
SELECT outbox.enqueue('a', '', id => '00000000-0000-7000-8000-000000000001');
INSERT INTO outbox.event (event_type, payload) SELECT 'a', '' FROM generate_series(2, 5);
UPDATE outbox.event SET published_at = now() WHERE seq = (SELECT min(seq) FROM outbox.event);
UPDATE outbox.event SET dead_at = now(), outcome = 'dead' WHERE seq = (SELECT max(seq) FROM outbox.event);
UPDATE outbox.event SET claimed_by = 't', claimed_at = now() WHERE seq = (SELECT max(seq) - 1 FROM outbox.event);
DROP EXTENSION outbox_drainer;
DROP EXTENSION IF EXISTS outbox_drainer CASCADE;
DROP EXTENSION plpgsql CASCADE;
SET session_replication_role = replica;
DROP EXTENSION outbox_drainer;
RESET session_replication_role;
BEGIN ISOLATION LEVEL REPEATABLE READ;
DROP EXTENSION outbox_drainer;
ROLLBACK;
DELETE FROM outbox.event WHERE seq NOT IN (SELECT max(seq) - 1 FROM outbox.event);
DROP EXTENSION outbox_drainer;
SELECT count(*) FROM outbox.event;

-- Another extension, and roles that do not own this one, are none of its business.
DROP EXTENSION IF EXISTS no_such_extension;
CREATE ROLE regress_outbox_nobody;
DROP OWNED BY regress_outbox_nobody;
-- Who may not drop it is not told how much is in it.
SET ROLE regress_outbox_nobody;
DROP EXTENSION outbox_drainer;
DROP EXTENSION plpgsql CASCADE;
DROP OWNED BY CURRENT_USER;
RESET ROLE;
DROP ROLE regress_outbox_nobody;
DROP SCHEMA outbox CASCADE;
SELECT outbox.guard_drop();

-- The extension's owner can be dropped with all that is theirs.
CREATE ROLE regress_outbox_super SUPERUSER;
BEGIN;
UPDATE pg_extension SET extowner = 'regress_outbox_super'::regrole WHERE extname = 'outbox_drainer';
DROP OWNED BY regress_outbox_super;
ROLLBACK;
DROP ROLE regress_outbox_super;

-- Told so, it goes with all it has.
BEGIN;
SET LOCAL outbox_drainer.allow_drop = on;
DROP EXTENSION outbox_drainer;
SELECT count(*) FROM pg_namespace WHERE nspname = 'outbox';
SELECT count(*) FROM pg_event_trigger WHERE evtname ~ 'outbox';
ROLLBACK;

-- With nothing unsent it goes without being told, and comes back empty.
UPDATE outbox.event SET published_at = now();
DROP EXTENSION outbox_drainer;
SET client_min_messages = error;
CREATE EXTENSION outbox_drainer;
RESET client_min_messages;
SELECT count(*) FROM outbox.event;
INSERT INTO outbox.event (event_type, payload) VALUES ('first', '') RETURNING seq;
SELECT outbox.enqueue('second', '', id => '00000000-0000-7000-8000-000000000001');
SELECT outbox.enqueue('second', '', id => '00000000-0000-7000-8000-000000000001');
TRUNCATE outbox.event;
