\set before random(0, 4000)
\set after random(0, 4000)
BEGIN;
SELECT nextval('late_commits.event_seq') AS seq \gset
\sleep :before us
INSERT INTO late_commits.event (seq) VALUES (:seq);
\sleep :after us
COMMIT;
