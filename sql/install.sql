-- What CREATE EXTENSION makes, and that all of it says what it is.
SET client_min_messages = error;  -- whether the library is preloaded is not this test's subject
CREATE EXTENSION IF NOT EXISTS outbox_drainer;
RESET client_min_messages;

SELECT e.extversion, e.extrelocatable, n.nspname
FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
WHERE e.extname = 'outbox_drainer';

-- Its objects. (PostgreSQL 17 counts the tables' row types too.)
SELECT pg_describe_object(d.classid, d.objid, 0) AS object
FROM pg_depend d
JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
WHERE d.deptype = 'e' AND e.extname = 'outbox_drainer' AND d.classid <> 'pg_type'::regclass
ORDER BY pg_describe_object(d.classid, d.objid, 0) COLLATE "C";

\d outbox.event
\d outbox.relay
\d outbox.relay_state
\d outbox.operation
SELECT relname, reloptions, relpersistence FROM pg_class
WHERE oid IN ('outbox.event'::regclass, 'outbox.relay_state'::regclass) ORDER BY relname;
-- Large payloads are compressed by lz4 where the server has it.
SELECT attcompression = CASE WHEN 'lz4' = ANY (enumvals) THEN 'l' ELSE '' END AS right_compression
FROM pg_attribute, pg_settings
WHERE attrelid = 'outbox.event'::regclass AND attname = 'payload' AND name = 'default_toast_compression';
SELECT seqtypid::regtype, seqstart, seqincrement, seqmin, seqcache, seqcycle
FROM pg_sequence WHERE seqrelid = 'outbox.event_seq'::regclass;
SELECT tgname, tgenabled, tgtype FROM pg_trigger WHERE tgrelid = 'outbox.event'::regclass AND NOT tgisinternal;
SELECT tgname, tgenabled, tgtype FROM pg_trigger WHERE tgrelid = 'outbox.relay'::regclass AND NOT tgisinternal ORDER BY tgname;
SELECT evtname, evtevent, evtenabled, evttags FROM pg_event_trigger WHERE evtname ~ 'outbox';
SELECT name, source FROM outbox.relay ORDER BY name;

-- How its functions are declared.
SELECT p.oid::regprocedure AS function, provolatile AS volatile,
    proisstrict AS strict, proparallel AS parallel, prosecdef AS definer
FROM pg_proc p WHERE pronamespace = 'outbox'::regnamespace AND proname <> 'enqueue'
ORDER BY proname, pronargs;
SELECT proargtypes[1]::regtype AS payload, provolatile, proisstrict, proparallel, prosecdef
FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND proname = 'enqueue'
ORDER BY proargtypes[1];
SELECT argument, count(*) AS variants
FROM pg_proc, string_to_table(pg_get_function_arguments(oid), ', ') WITH ORDINALITY AS a (argument, place)
WHERE pronamespace = 'outbox'::regnamespace AND proname = 'enqueue'
GROUP BY place, argument ORDER BY place, argument;

-- What a dump carries.
SELECT c.oid::regclass, k.condition
FROM pg_extension e, unnest(e.extconfig, e.extcondition) AS k (oid, condition)
JOIN pg_class c ON c.oid = k.oid
WHERE e.extname = 'outbox_drainer' ORDER BY c.oid;

-- Nothing is without a comment, but for NOT NULL, which PostgreSQL 18 counts among the constraints.
WITH member AS (
    SELECT d.classid, d.objid
    FROM pg_depend d
    JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
    WHERE d.deptype = 'e' AND e.extname = 'outbox_drainer' AND d.classid <> 'pg_type'::regclass
),
relation AS (
    SELECT c.* FROM member m JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass
),
object AS (
    SELECT classid, objid, 0 AS objsubid FROM member
    UNION ALL
    SELECT 'pg_class'::regclass, a.attrelid, a.attnum
    FROM pg_attribute a JOIN relation r ON r.oid = a.attrelid
    WHERE a.attnum > 0 AND NOT a.attisdropped AND r.relkind <> 'S'
    UNION ALL
    SELECT 'pg_class'::regclass, i.indexrelid, 0 FROM pg_index i JOIN relation r ON r.oid = i.indrelid
    UNION ALL
    SELECT 'pg_constraint'::regclass, k.oid, 0 FROM pg_constraint k JOIN relation r ON r.oid = k.conrelid
    WHERE k.contype <> 'n'
    UNION ALL
    SELECT 'pg_trigger'::regclass, t.oid, 0 FROM pg_trigger t JOIN relation r ON r.oid = t.tgrelid
    WHERE NOT t.tgisinternal
)
SELECT pg_describe_object(o.classid, o.objid, o.objsubid) AS without_comment
FROM object o
LEFT JOIN pg_description d
    ON d.classoid = o.classid AND d.objoid = o.objid AND d.objsubid = o.objsubid
WHERE coalesce(d.description, '') = ''
ORDER BY pg_describe_object(o.classid, o.objid, o.objsubid) COLLATE "C";
