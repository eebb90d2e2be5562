-- An outbox without the extension: producers may draw numbers themselves, and nothing else drains it.
CREATE SCHEMA late_commits;

CREATE SEQUENCE late_commits.event_seq;
CREATE TABLE late_commits.event (
    seq bigint PRIMARY KEY DEFAULT nextval('late_commits.event_seq'),
    key int,
    version int,
    batch bigint,
    claims int NOT NULL DEFAULT 0
) WITH (fillfactor = 40);
COMMENT ON TABLE late_commits.event IS 'version: position among the events of the key; NULL: in no order. batch: the claim that took the row';

CREATE TABLE late_commits.aggregate (key int PRIMARY KEY, version int NOT NULL) WITH (fillfactor = 10);
COMMENT ON TABLE late_commits.aggregate IS 'The ledger: version counts the committed events of the key, whose transactions lock the row first';

CREATE TABLE late_commits.run (passes bigint, in_gaps bigint, cut_short bigint, most_ranges bigint);
COMMENT ON TABLE late_commits.run IS 'One row, written by the stress drainer when it has come to its end';

CREATE FUNCTION late_commits.start(variant text, before_snapshot int, after_snapshot int, before_writers int)
    RETURNS int
    LANGUAGE C STRICT AS 'late_commits', 'outbox_drainer_late_commits_start';
COMMENT ON FUNCTION late_commits.start IS
    'Starts a stress drainer of the variant and gives its process id; the numbers are its longest pauses in microseconds';

-- One event in one statement: the shortest transaction that a producer can make.
CREATE FUNCTION late_commits.emit(key int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    next int;
BEGIN
    UPDATE late_commits.aggregate a SET version = version + 1 WHERE a.key = emit.key RETURNING version INTO next;
    INSERT INTO late_commits.event (key, version) VALUES (emit.key, next);
END $$;

CREATE PROCEDURE late_commits.reset(keys int) LANGUAGE sql AS $$
    TRUNCATE late_commits.event, late_commits.aggregate, late_commits.run;
    ALTER SEQUENCE late_commits.event_seq RESTART;
    INSERT INTO late_commits.aggregate SELECT k, 0 FROM generate_series(1, keys) k;
$$;

-- lost: committed, never claimed. disorder: claimed after a later event of its key. unwritten: the ledger
-- counts other events than the table has.
CREATE VIEW late_commits.verdict AS
SELECT
    (SELECT count(*) FROM late_commits.event) AS events,
    (SELECT count(*) FROM late_commits.event WHERE claims = 0) AS lost,
    (SELECT count(*) FROM late_commits.event WHERE claims > 1) AS twice,
    (SELECT count(*) FROM (
        SELECT version, max(version) OVER (PARTITION BY key ORDER BY batch, seq
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS latest
        FROM late_commits.event
        WHERE version IS NOT NULL AND batch IS NOT NULL) e WHERE version < latest) AS disorder,
    (SELECT sum(version) FROM late_commits.aggregate)
        - (SELECT count(*) FROM late_commits.event WHERE version IS NOT NULL) AS unwritten;
