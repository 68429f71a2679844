-- without_journal: nothing here outlives the process, so nothing is made safe against a crash
PRAGMA journal_mode = OFF

-- without_sync: and nothing waits for the disk
PRAGMA synchronous = OFF

-- one_transaction: measured: row by row it takes forty times as long
BEGIN

-- links: every row, in the order in which it came, with the highest id before it
CREATE TABLE links (id INTEGER NOT NULL, pid INTEGER NOT NULL, highest INTEGER NOT NULL)

-- keep_link: a row
INSERT INTO links VALUES (?, ?, ?)

-- links_by_id: to read them in the order of ids
CREATE INDEX links_by_id ON links (id, pid)

-- links_by_pid: to find what names a row
CREATE INDEX links_by_pid ON links (pid, id)

-- links_in_order: all of them
SELECT id, pid FROM links ORDER BY id, pid

-- times: how often an id occurs
SELECT count(*) FROM links WHERE id = ?

-- naming: the rows, at most so many, that name one before them
SELECT DISTINCT id FROM links WHERE pid = ? AND id > pid ORDER BY id LIMIT 1000

-- far_end: of the pids between two neighbouring rows, the one after which the chain goes on: it
-- names the end of a gap, the others are orphans. The chain ends with the last parameter
SELECT r.pid, max(r.id = ?3 OR EXISTS (SELECT 1 FROM links n WHERE n.pid = r.id AND n.id > n.pid))
           AS leads_on
  FROM links r WHERE r.pid > ?1 AND r.pid < ?2 AND r.pid < r.id
 GROUP BY r.pid ORDER BY leads_on DESC, r.pid LIMIT 1

-- highest: the last row
SELECT max(id) FROM links

-- late: the first rows that come after a higher id. A row that occurs twice is a duplicate: only its
-- first occurrence counts
SELECT min(id), max(id), highest, count(*)
  FROM (SELECT id, highest, min(rowid) FROM links GROUP BY id)
 WHERE id < highest
 GROUP BY highest ORDER BY min(id), highest LIMIT 1

-- contents: rows as they are compared
CREATE TABLE contents (id INTEGER NOT NULL, content BLOB NOT NULL)

-- keep_content: one of them
INSERT INTO contents VALUES (?, ?)

-- contents_in_order: all of them
SELECT id, content FROM contents ORDER BY id, content

-- lowest: the first of them
SELECT min(id) FROM contents

-- different_contents: the same, equal ones once
SELECT DISTINCT id, content FROM contents ORDER BY id, content

-- seen: the contents under which ids occurred
CREATE TABLE seen (id INTEGER, digest BLOB, PRIMARY KEY (id, digest)) WITHOUT ROWID

-- see: one of them, unless it is there
INSERT OR IGNORE INTO seen VALUES (?, ?)

-- keys: every row with its key
CREATE TABLE keys (id INTEGER NOT NULL, key BLOB)

-- keep_key: a row
INSERT INTO keys VALUES (?, ?)

-- repeats: the rows whose key an earlier row has, and the nearest such row; an id that occurs twice
-- is a duplicate, not a second order
CREATE TABLE repeats AS
SELECT before_id, id, key
  FROM (SELECT id, key, lag(id) OVER (PARTITION BY key ORDER BY id) AS before_id FROM keys
         WHERE key IS NOT NULL)
 WHERE before_id <> id

-- is_far: whether any two of them are further apart by their ids
SELECT EXISTS (SELECT 1 FROM repeats WHERE id - before_id > ?)

-- places: which row of the chain an id is
CREATE TABLE places (id INTEGER PRIMARY KEY, place INTEGER NOT NULL)

-- fill_places: the places of all ids
INSERT INTO places SELECT id, row_number() OVER (ORDER BY id) FROM (SELECT DISTINCT id FROM keys)

-- repeated: the rows whose key an earlier row has, and how many rows further on, if known
SELECT r.before_id, r.id, r.key, l.place - e.place
  FROM repeats r LEFT JOIN places e ON e.id = r.before_id LEFT JOIN places l ON l.id = r.id
 ORDER BY r.id, r.before_id
