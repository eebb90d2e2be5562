-- outbox.uuid_v7() and outbox.typeid().
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
RESET client_min_messages;

-- Version, variant, time, order.
SELECT count(*), count(DISTINCT id), bool_and(id > earlier) AS ascending,
    bool_and(substr(id::text, 15, 1) = '7') AS version_7, bool_and(substr(id::text, 20, 1) IN ('8', '9', 'a', 'b')) AS variant
FROM (SELECT id, lag(id, 1, '00000000-0000-0000-0000-000000000000') OVER (ORDER BY n) AS earlier
      FROM (SELECT n, outbox.uuid_v7() AS id FROM generate_series(1, 20000) AS n) AS minted) AS pairs;
SELECT abs(extract(epoch FROM clock_timestamp()) * 1000
    - ('x0000' || substr(replace(outbox.uuid_v7()::text, '-', ''), 1, 12))::bit(64)::bigint) < 60000 AS is_now;

-- The vectors of the TypeID specification.
SELECT outbox.typeid('prefix', '0188bac7-4afa-78aa-bc3b-bd1eef28d881');
SELECT outbox.typeid('prefix', '01890a5d-ac96-774b-bcce-b302099a8057');
SELECT outbox.typeid('a', '00000000-0000-0000-0000-000000000000');
SELECT outbox.typeid('a', 'ffffffff-ffff-ffff-ffff-ffffffffffff');
SELECT outbox.typeid('order') ~ '^order_0[0-7][0-9a-hjkmnp-tv-z]{24}$' AS minted, outbox.typeid('order') < outbox.typeid('order') AS ascending;
SELECT length(outbox.typeid(repeat('p', 63)));

-- Of the prefixes that the specification allows, the empty one and those with underscores are refused too.
SELECT outbox.typeid('');
SELECT outbox.typeid('Order');
SELECT outbox.typeid('order_line');
SELECT outbox.typeid('order1', '00000000-0000-0000-0000-000000000000');
SELECT outbox.typeid('order ');
SELECT outbox.typeid(repeat('p', 64));
\set VERBOSITY sqlstate
SELECT outbox.typeid('_');
\set VERBOSITY default
SELECT outbox.typeid(NULL) IS NULL AS nothing, outbox.typeid('a', NULL) IS NULL AS nothing;
