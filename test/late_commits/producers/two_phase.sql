\set key random(1, :keys)
\set pause random(0, 10000)
\set number random(1, 1000000000)
BEGIN;
UPDATE late_commits.aggregate SET version = version + 1 WHERE key = :key RETURNING version \gset
INSERT INTO late_commits.event (key, version) VALUES (:key, :version);
PREPARE TRANSACTION 'p:client_id:number';
\sleep :pause us
COMMIT PREPARED 'p:client_id:number';
