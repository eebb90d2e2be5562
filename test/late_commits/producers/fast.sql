\set key random(1, :keys)
SELECT late_commits.emit(:key);
