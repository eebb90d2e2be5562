-- The settings: units, ranges, who may set them, and that a password is neither taken nor shown.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
SELECT outbox.uuid_v7() IS NOT NULL AS loaded;
RESET client_min_messages;

SELECT substr(name, 16) AS name, vartype, unit, context, boot_val, min_val, max_val
FROM pg_settings WHERE name LIKE 'outbox\_drainer.%' ORDER BY name COLLATE "C";
-- Each says what it is.
SELECT name FROM pg_settings WHERE name LIKE 'outbox\_drainer.%' AND short_desc = '';

SET outbox_drainer.lease_ttl = '2h';
SHOW outbox_drainer.lease_ttl;
SET outbox_drainer.batch_bytes = '64kB';
SHOW outbox_drainer.batch_bytes;
SET outbox_drainer.heartbeat = '1min';
SHOW outbox_drainer.heartbeat;
SET outbox_drainer.retry_backoff_multiplier = 1.5;
SHOW outbox_drainer.retry_backoff_multiplier;
SET outbox_drainer.retention = '400d';
SHOW outbox_drainer.retention;
SET outbox_drainer.retention = 0;  -- for ever
SET outbox_drainer.dead_retention = '90min';
SHOW outbox_drainer.dead_retention;
SET outbox_drainer.max_attempts = 0;  -- never dead
RESET ALL;
SHOW outbox_drainer.retention;

SET outbox_drainer.batch_size = 0;
SET outbox_drainer.pipeline_depth = 0;
SET outbox_drainer.pipeline_depth = 65536;
SET outbox_drainer.lease_ttl = '25h';
SET outbox_drainer.heartbeat = 0;
SET outbox_drainer.retry_backoff_multiplier = 0.5;
SET outbox_drainer.max_attempts = -1;
SET outbox_drainer.publish_rate = 1000001;
SET outbox_drainer.retention = '-1s';
SET outbox_drainer.retention = '100000d';
SET outbox_drainer.mandatory = 'sometimes';
SET outbox_drainer.poll_interval = 'often';
SET outbox_drainer.databases = 'postgres';
SET outbox_drainer.workers_per_database = 2;
SET outbox_drainer.no_such_setting = 1;

-- An exchange is an AMQP short string; empty is the default exchange.
SET outbox_drainer.exchange = '';
DO $$ BEGIN PERFORM set_config('outbox_drainer.exchange', repeat('x', 255), false); END $$;
\set VERBOSITY sqlstate
DO $$ BEGIN PERFORM set_config('outbox_drainer.exchange', repeat('x', 256), false); END $$;
\set VERBOSITY default
SELECT length(current_setting('outbox_drainer.exchange'));
RESET outbox_drainer.exchange;

-- A broker without a password can be set anywhere.
SET outbox_drainer.broker_uri = 'amqp://shop@broker:5673/%2Fshop';
SHOW outbox_drainer.broker_uri;
SET outbox_drainer.broker_uri = '';
BEGIN;
SET LOCAL outbox_drainer.broker_uri = 'amqp://one';
SAVEPOINT before_two;
SET LOCAL outbox_drainer.broker_uri = 'amqp://two';
ROLLBACK TO before_two;
SHOW outbox_drainer.broker_uri;
ROLLBACK;
SHOW outbox_drainer.broker_uri;
RESET outbox_drainer.broker_uri;

-- With one it can be set in the configuration file only; no message repeats it.
SET outbox_drainer.broker_uri = 'amqp://shop:secret@broker';
SELECT set_config('outbox_drainer.broker_uri', 'amqp://shop:secret@broker', false);
ALTER SYSTEM SET outbox_drainer.broker_uri = 'amqp://shop:secret@broker';
CREATE ROLE regress_outbox_user;
ALTER ROLE regress_outbox_user SET outbox_drainer.broker_uri = 'amqp://shop:secret@broker';
ALTER ROLE regress_outbox_user SET outbox_drainer.broker_uri = 'amqp://shop@broker';
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET outbox_drainer.broker_uri = %L', current_database(), 'amqp://shop:secret@broker'); END $$;
CREATE FUNCTION pg_temp.f() RETURNS void LANGUAGE sql SET outbox_drainer.broker_uri = 'amqp://shop:secret@broker' AS '';
SELECT count(*) FROM pg_db_role_setting WHERE setconfig::text ~ 'secret';

-- What is no URI is refused, also without repeating it.
SET outbox_drainer.broker_uri = 'http://shop:secret@broker';
SET outbox_drainer.broker_uri = 'amqp://shop:sec/ret@broker';
SET outbox_drainer.broker_uri = 'amqp://shop:secret@broker:none';
SET outbox_drainer.broker_uri = 'amqp://shop:12,secret@broker';
ALTER SYSTEM SET outbox_drainer.broker_uri = 'amqp://shop:secret@broker:none';

-- Several are separated by commas; which one is wrong is said.
SET outbox_drainer.broker_uri = 'amqp://shop@one, amqps://shop@two?sslrootcert=/etc/ssl/broker.pem&heartbeat=5';
SHOW outbox_drainer.broker_uri;
SET outbox_drainer.broker_uri = 'amqp://shop@one,amqps://shop@two?sslmode=prefer';
SET outbox_drainer.broker_uri = 'amqp://shop@one,amqp://shop:secret@two';
SET outbox_drainer.broker_uri = 'amqps://shop@two?sslpassword=secret';
RESET outbox_drainer.broker_uri;
SET outbox_drainer.missing_exchange = 'fail';
SET outbox_drainer.missing_exchange = 'ignore';
RESET outbox_drainer.missing_exchange;
-- Others neither set nor see it.
SET ROLE regress_outbox_user;
SHOW outbox_drainer.broker_uri;
SHOW outbox_drainer.password_file;
SHOW outbox_drainer.exchange;
SELECT count(*) FROM pg_settings WHERE name IN ('outbox_drainer.broker_uri', 'outbox_drainer.password_file');
SET outbox_drainer.broker_uri = 'amqp://mine';
SET outbox_drainer.exchange = 'mine';
SET outbox_drainer.allow_drop = on;
RESET ROLE;
RESET ALL;
DROP ROLE regress_outbox_user;
