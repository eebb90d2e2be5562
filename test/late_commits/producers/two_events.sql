\set key random(1, :keys)
\set pause random(0, 5000)
BEGIN;
UPDATE late_commits.aggregate SET version = version + 1 WHERE key = :key RETURNING version \gset
INSERT INTO late_commits.event (key, version) VALUES (:key, :version);
\sleep :pause us
UPDATE late_commits.aggregate SET version = version + 1 WHERE key = :key RETURNING version \gset
INSERT INTO late_commits.event (key, version) VALUES (:key, :version);
\sleep :pause us
COMMIT;
