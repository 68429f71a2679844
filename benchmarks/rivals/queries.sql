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
SELECT count(*) AS rows,
       count(*) FILTER (WHERE previous_id <> before) AS broken
  FROM (SELECT sequence_id, previous_id,
               lag(sequence_id, 1, 0::bigint) OVER (ORDER BY sequence_id) AS before
          FROM rival_event) AS linked;

-- rows_table: the table of a row per order, once
CREATE TABLE IF NOT EXISTS bare_event (
    chain_id      integer NOT NULL,
    id            bigint  NOT NULL,
    pid           bigint  NOT NULL,
    key           text    NOT NULL,
    event_time_ns bigint  NOT NULL,
    payload       bytea   NOT NULL,
    PRIMARY KEY (chain_id, id),
    CHECK (id > pid)
) PARTITION BY LIST (chain_id);
GRANT SELECT, INSERT ON bare_event TO sequencer_writer;
GRANT SELECT ON bare_event TO gap_reader, auditor;

-- rows_partition: the statements that make the partitions of a chain, as deep as those of `chain_page`
SELECT format(
    'CREATE TABLE %1$I PARTITION OF bare_event FOR VALUES IN (%2$s) PARTITION BY RANGE (id);'
    'CREATE TABLE %3$I PARTITION OF %1$I FOR VALUES FROM (MINVALUE) TO (MAXVALUE)',
    'bare_event_' || $1::integer, $1::integer, 'bare_event_' || $1::integer || '_0'
);

-- rows_drop: the statement that removes them
SELECT format('DROP TABLE IF EXISTS %I', 'bare_event_' || $1::integer);

-- rows_stored: how many rows a chain has there, and how many do not follow the one before
SELECT count(*) AS rows, count(*) FILTER (WHERE pid <> before) AS broken
  FROM (SELECT id, pid, lag(id, 1, 0::bigint) OVER (ORDER BY id) AS before
          FROM bare_event WHERE chain_id = $1) AS linked;

-- chain_rows: the same of a chain in pages
SELECT count(*) AS rows, count(*) FILTER (WHERE pid <> before) AS broken
  FROM (SELECT id, pid, lag(id, 1, 0::bigint) OVER (ORDER BY id) AS before
          FROM chain_event WHERE chain_id = $1) AS linked;

-- recorded_drop: remove the table of the event-sourcing library
DROP TABLE IF EXISTS rival_stored_events;

-- recorded_rows: what the event-sourcing library has stored; its versions are the order
SELECT count(*) AS rows,
       count(*) FILTER (WHERE originator_version <> before + 1) AS broken
  FROM (SELECT originator_version,
               lag(originator_version, 1, 0::bigint) OVER (ORDER BY notification_id) AS before
          FROM rival_stored_events) AS linked;
