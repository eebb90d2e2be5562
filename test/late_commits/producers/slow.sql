\set key random(1, :keys)
\set before random(0, 2000)
\set after random(0, 8000)
BEGIN;
UPDATE late_commits.aggregate SET version = version + 1 WHERE key = :key RETURNING version \gset
\sleep :before us
INSERT INTO late_commits.event (key, version) VALUES (:key, :version);
\sleep :after us
COMMIT;
