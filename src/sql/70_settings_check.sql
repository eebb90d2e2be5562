CREATE FUNCTION outbox.setting_problems(OUT name text, OUT problem text) RETURNS SETOF record
    LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE ROWS 3
    AS 'MODULE_PATHNAME', 'outbox_drainer_setting_problems';
COMMENT ON FUNCTION outbox.setting_problems() IS
    'What outbox.settings_check() finds wrong with the values of settings';
REVOKE ALL ON FUNCTION outbox.setting_problems() FROM PUBLIC;

-- What would make the table lose its promises without any error.
CREATE FUNCTION outbox.table_problems(OUT name text, OUT value text, OUT problem text) RETURNS SETOF record
    LANGUAGE sql STABLE PARALLEL RESTRICTED ROWS 1
BEGIN ATOMIC
    SELECT 'outbox.event', 'unlogged',
        'a crash would empty the table and events would be published whose transaction is lost; make it logged: ALTER TABLE outbox.event SET LOGGED'
    FROM pg_catalog.pg_class AS c
    WHERE c.oid = 'outbox.event'::regclass AND c.relpersistence <> 'p'
    UNION ALL
    SELECT 'outbox.event', 'trigger ' || quote_ident(t.tgname),
        'it fires after zzz_outbox_drainer: events of one key can be published in an order other than that of the locks it takes; give it a name that sorts before'
    FROM pg_catalog.pg_trigger AS t
    WHERE t.tgrelid = 'outbox.event'::regclass
        AND t.tgtype & 7 = 7  -- BEFORE INSERT FOR EACH ROW
        AND t.tgenabled <> 'D'
        AND t.tgname > 'zzz_outbox_drainer'
    UNION ALL
    SELECT 'outbox.event', 'trigger zzz_outbox_drainer',
        CASE t.tgenabled
            WHEN 'D' THEN 'the trigger is disabled: inserts that give no seq and id fail; enable it: ALTER TABLE outbox.event ENABLE ALWAYS TRIGGER zzz_outbox_drainer'
            ELSE 'the trigger does not fire for every insert: enable it always: ALTER TABLE outbox.event ENABLE ALWAYS TRIGGER zzz_outbox_drainer'
        END
    FROM pg_catalog.pg_trigger AS t
    WHERE t.tgrelid = 'outbox.event'::regclass
        AND t.tgname = 'zzz_outbox_drainer'
        AND t.tgenabled <> 'A'
    UNION ALL
    SELECT 'outbox.event', 'trigger ' || quote_ident(t.tgname),
        'it is deferred and fires for updates: the drainer works in a security-restricted context, where that is an error, and would publish nothing; make it INITIALLY IMMEDIATE'
    FROM pg_catalog.pg_trigger AS t
    WHERE t.tgrelid = 'outbox.event'::regclass
        AND t.tginitdeferred
        AND t.tgtype & 16 = 16  -- UPDATE
        AND t.tgenabled <> 'D'
    UNION ALL
    SELECT 'outbox.event', 'forced row security',
        'the drainer works as the owner and would see only what the policies let the owner see: it publishes nothing; ALTER TABLE outbox.event NO FORCE ROW LEVEL SECURITY'
    FROM pg_catalog.pg_class AS c
    WHERE c.oid = 'outbox.event'::regclass AND c.relrowsecurity AND c.relforcerowsecurity
    UNION ALL
    SELECT 'outbox.event_seq', 'cache ' || s.seqcache,
        'numbers drawn ahead by a session can be passed by before they are used; turn it off: ALTER SEQUENCE outbox.event_seq CACHE 1'
    FROM pg_catalog.pg_sequence AS s
    WHERE s.seqrelid = 'outbox.event_seq'::regclass AND s.seqcache <> 1
    UNION ALL
    SELECT 'outbox.event_seq', 'increment ' || s.seqincrement || CASE WHEN s.seqcycle THEN ', cycle' ELSE '' END,
        'numbers must go up and never come back: ALTER SEQUENCE outbox.event_seq INCREMENT 1 NO CYCLE'
    FROM pg_catalog.pg_sequence AS s
    WHERE s.seqrelid = 'outbox.event_seq'::regclass AND (s.seqincrement < 1 OR s.seqcycle)
    UNION ALL
    SELECT 'outbox.event', 'index ' || expected.name,
        'it is missing or not valid: looking for events reads the whole table; ' || coalesce('REINDEX INDEX CONCURRENTLY outbox.' || found.relname, 'create it again as the extension''s script does')
    FROM (VALUES ('event_due_idx'), ('event_held_key_idx'), ('event_held_source_idx'), ('event_dead_idx')) AS expected (name)
    LEFT JOIN (
        pg_catalog.pg_class AS found
        JOIN pg_catalog.pg_index AS i ON i.indexrelid = found.oid AND i.indrelid = 'outbox.event'::regclass
    ) ON found.relname = expected.name
    WHERE i.indisvalid IS NOT TRUE
    UNION ALL
    SELECT other.oid::regclass::text, 'owner ' || quote_ident(pg_get_userbyid(other.relowner)),
        'outbox.event belongs to another role, as which the drainer works and uses this; give both the same owner'
    FROM pg_catalog.pg_class AS other
    JOIN pg_catalog.pg_class AS e ON e.relowner <> other.relowner
    WHERE e.oid = 'outbox.event'::regclass
        AND other.oid IN ('outbox.event_seq'::regclass, 'outbox.relay'::regclass, 'outbox.relay_state'::regclass,
            'outbox.operation'::regclass, 'outbox.replay_job'::regclass);
END;
COMMENT ON FUNCTION outbox.table_problems() IS 'What outbox.settings_check() finds wrong with the outbox table';
REVOKE ALL ON FUNCTION outbox.table_problems() FROM PUBLIC;

-- What alter_relay would refuse, and came about in another way: the function was dropped, a setting was changed.
CREATE FUNCTION outbox.relay_problems(OUT name text, OUT value text, OUT problem text) RETURNS SETOF record
    LANGUAGE sql STABLE PARALLEL RESTRICTED ROWS 1
BEGIN ATOMIC
    SELECT 'relay ' || quote_ident(r.name), 'on_dead ' || r.on_dead,
        'there is no such function: nothing is called for events that end dead or rejected; create it or take it off with outbox.alter_relay'
    FROM outbox.relay AS r
    WHERE r.on_dead IS NOT NULL AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_proc AS p
        JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
        WHERE format('%I.%I(outbox.event)', n.nspname, p.proname) = r.on_dead
            AND p.pronargs = 1 AND p.proargtypes[0] = 'outbox.event'::regtype
    )
    UNION ALL
    SELECT 'relay ' || quote_ident(r.name), format('retry_backoff_initial %s, retry_backoff_max %s', b.initial, b.most),
        'the first delay is longer than the longest, and one of them is the server''s setting: no drainer can start with these; correct one with outbox.alter_relay'
    FROM outbox.relay AS r
    CROSS JOIN LATERAL (
        SELECT coalesce(r.retry_backoff_initial, current_setting('outbox_drainer.retry_backoff_initial', true)::interval),
            coalesce(r.retry_backoff_max, current_setting('outbox_drainer.retry_backoff_max', true)::interval)
    ) AS b (initial, most)
    WHERE b.initial > b.most AND (r.retry_backoff_initial IS NOT NULL OR r.retry_backoff_max IS NOT NULL);
END;
COMMENT ON FUNCTION outbox.relay_problems() IS 'What outbox.settings_check() finds wrong with the settings of relays';
REVOKE ALL ON FUNCTION outbox.relay_problems() FROM PUBLIC;

-- With the rights of its owner, since file names and superusers' settings are not shown to everybody. The
-- value of broker_uri is safe to show: the setting itself never holds the password.
CREATE FUNCTION outbox.settings_check(
    OUT name text,
    OUT value text,
    OUT source text,
    OUT sourcefile text,
    OUT sourceline integer,
    OUT problem text
) RETURNS SETOF record
    LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER ROWS 30
    SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH problem AS (
        SELECT p.name, p.problem FROM outbox.setting_problems() AS p
        UNION ALL
        SELECT s.name,
            'set in this session only: drainers use the value of the configuration file or of the database'
        FROM pg_catalog.pg_settings AS s
        WHERE s.name LIKE 'outbox\_drainer.%'
            AND s.source IN ('session', 'client')
            AND s.name <> 'outbox_drainer.allow_drop'
        UNION ALL
        SELECT s.name,
            'set for a role: drainers use the value of the configuration file or of the database'
        FROM pg_catalog.pg_settings AS s
        WHERE s.name LIKE 'outbox\_drainer.%'
            AND s.source IN ('user', 'database user')
            AND s.name <> 'outbox_drainer.allow_drop'
        UNION ALL
        SELECT 'outbox_drainer.databases', 'there is no database ' || quote_ident(d.name)
        FROM (
            SELECT trim(listed) AS name
            FROM string_to_table(current_setting('outbox_drainer.databases'), ',') AS listed
        ) AS d
        WHERE d.name <> '' AND d.name NOT IN (SELECT datname FROM pg_catalog.pg_database)
        UNION ALL
        SELECT 'outbox_drainer.workers_per_database',
            'not all of them can start: max_worker_processes is ' || current_setting('max_worker_processes') || ', and the launcher takes one of these'
        WHERE current_setting('outbox_drainer.workers_per_database', true)::integer >= current_setting('max_worker_processes')::integer
    ),
    setting AS (
        SELECT s.name, current_setting(s.name) AS value, s.source, s.sourcefile, s.sourceline
        FROM pg_catalog.pg_settings AS s
        WHERE s.name LIKE 'outbox\_drainer.%' OR s.name = 'shared_preload_libraries'
    ),
    finding AS (
        SELECT 1 AS part, s.*, (SELECT string_agg(p.problem, '; ') FROM problem AS p WHERE p.name = s.name) AS problem
        FROM setting AS s
        UNION ALL
        SELECT 2, p.name, NULL, NULL, NULL, NULL, p.problem
        FROM problem AS p
        WHERE p.name NOT IN (SELECT s.name FROM setting AS s)
        UNION ALL
        SELECT 3, r.name, r.value, NULL, NULL, NULL, r.problem
        FROM outbox.relay_problems() AS r
        UNION ALL
        SELECT 4, t.name, t.value, NULL, NULL, NULL, t.problem
        FROM outbox.table_problems() AS t
    )
    SELECT f.name, f.value, f.source, f.sourcefile, f.sourceline, f.problem
    FROM finding AS f
    ORDER BY f.part, f.name, f.value;
END;
COMMENT ON FUNCTION outbox.settings_check() IS
    'Each setting with its value, where it came from and what is wrong with it (NULL: nothing); then what is wrong with their combination, with the settings of relays and with the outbox table';
REVOKE ALL ON FUNCTION outbox.settings_check() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.settings_check() TO pg_monitor;

