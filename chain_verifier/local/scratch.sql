-- without_journal: nothing here outlives the process, so nothing is made safe against a crash
PRAGMA journal_mode = OFF

-- without_sync: and nothing waits for the disk
PRAGMA synchronous = OFF

-- one_transaction: measured: row by row it takes forty times as long
BEGIN

-- firsts: for each id, the first row, with the highest id before it
CREATE TABLE firsts (id INTEGER PRIMARY KEY, highest INTEGER NOT NULL)

-- first: a row; a repeated one adds nothing new
INSERT OR IGNORE INTO firsts VALUES (?, ?)

-- late: the rows that come after a higher id, grouped by that id
SELECT min(id), max(id), highest, count(*) FROM firsts WHERE id < highest
 GROUP BY highest ORDER BY min(id), highest

-- pairs: rows of two sources
CREATE TABLE pairs (id INTEGER, is_base INTEGER, pid INTEGER, key BLOB, event_time_ns INTEGER,
                    payload BLOB)

-- pair: a row of one of the two
INSERT INTO pairs VALUES (?, ?, ?, ?, ?, ?)

-- sorted: all of them, equal ids together; NULL comes first
SELECT id, is_base, pid, key, event_time_ns, payload FROM pairs
 ORDER BY id, is_base, pid, key, event_time_ns, payload

-- wanted: the ids of rows that are looked for in another source
CREATE TABLE wanted (id INTEGER PRIMARY KEY)

-- want: one of them
INSERT OR IGNORE INTO wanted VALUES (?)

-- wanted_range: the lowest and the highest of them
SELECT min(id), max(id) FROM wanted

-- pair_if_wanted: a row of the other source, if it is looked for
INSERT INTO pairs SELECT ?, ?, ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM wanted WHERE id = ?)

-- without_repeats: a forged row that occurs several times counts once
DELETE FROM pairs WHERE is_base = 0 AND rowid NOT IN (
       SELECT min(rowid) FROM pairs WHERE is_base = 0
        GROUP BY id, pid, key, event_time_ns, payload)

-- changed: rows that are repeated on a topic with other content; numbered for paging
CREATE TABLE changed AS
SELECT id, pid, key, event_time_ns, payload FROM pairs WHERE is_base = 0
EXCEPT
SELECT id, pid, key, event_time_ns, payload FROM pairs WHERE is_base = 1

-- changed_page: one page of them
SELECT rowid, id, pid, key, event_time_ns, payload FROM changed WHERE rowid > ?
 ORDER BY rowid LIMIT ?

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

-- found: findings that come in any order
CREATE TABLE found (id INTEGER, pid INTEGER, columns TEXT, chain_id INTEGER, finding BLOB)

-- keep_found: one of them
INSERT INTO found VALUES (?, ?, ?, ?, ?)

-- found_in_order: all of them; NULL comes first
SELECT finding FROM found ORDER BY id, pid, columns, chain_id
