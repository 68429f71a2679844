-- The statements of the rivals, and of what is looked up after their runs.

-- common_table: the table of the common way, as its original has it: one row an order, JSON in it
CREATE TABLE rival_event (
    sequence_id bigint PRIMARY KEY,
    previous_id bigint NOT NULL UNIQUE,
    data        text   NOT NULL,
    created_at  bigint NOT NULL
);

-- common_drop: remove the table of the common way
DROP TABLE IF EXISTS rival_event;

-- common_insert: one order of the common way
INSERT INTO rival_event (sequence_id, previous_id, data, created_at) VALUES ($1, $2, $3, $4);

-- common_rows: what the common way has stored, and how many orders do not follow the one before
SELECT count(*) AS rows, max(sequence_id) AS last_id,
       count(*) FILTER (WHERE previous_id <> before) AS broken
  FROM (SELECT sequence_id, previous_id,
               lag(sequence_id, 1, 0::bigint) OVER (ORDER BY sequence_id) AS before
          FROM rival_event) AS linked;

-- chain_rows: the same of a chain
SELECT count(*) AS rows, max(id) AS last_id, count(*) FILTER (WHERE pid <> before) AS broken
  FROM (SELECT id, pid, lag(id, 1, 0::bigint) OVER (ORDER BY id) AS before
          FROM chain_event WHERE chain_id = $1) AS linked;

-- recorded_drop: remove the table of the event-sourcing library
DROP TABLE IF EXISTS rival_stored_events;

-- recorded_rows: what the event-sourcing library has stored; its versions are the order
SELECT count(*) AS rows, max(originator_version) AS last_id,
       count(*) FILTER (WHERE originator_version <> before + 1) AS broken
  FROM (SELECT originator_version,
               lag(originator_version, 1, 0::bigint) OVER (ORDER BY notification_id) AS before
          FROM rival_stored_events) AS linked;
