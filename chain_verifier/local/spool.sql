-- without_journal: nothing here outlives the process, so nothing is made safe against a crash
PRAGMA journal_mode = OFF

-- without_sync: nor is anything waited for
PRAGMA synchronous = OFF

-- one_transaction: measured: row by row it takes forty times as long
BEGIN

-- firsts: of each id the first row, with the highest id before it
CREATE TABLE firsts (id INTEGER PRIMARY KEY, highest INTEGER NOT NULL)

-- first: a row; one that stands again says nothing new
INSERT OR IGNORE INTO firsts VALUES (?, ?)

-- late: the rows that stand behind a higher id, gathered by that id
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
