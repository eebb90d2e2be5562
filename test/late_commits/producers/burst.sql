\set key random(1, :keys)
\set pause random(0, 10000)
BEGIN;
UPDATE late_commits.aggregate SET version = version + 120 WHERE key = :key RETURNING version - 120 AS version \gset
INSERT INTO late_commits.event (key, version) SELECT :key, :version + i FROM generate_series(1, 120) i;
\sleep :pause us
COMMIT;
