-- The statements of the command line itself. Everything else asks the packages.

-- server: which PostgreSQL this is, as a number, and the encoding of the database
SELECT current_setting('server_version_num')::integer AS version,
       current_setting('server_encoding') AS encoding

-- schema_version: which schema is there, and the database's own id
SELECT version, upgrade_to, database_id FROM public.schema_version

-- has_table: whether a table is there
SELECT to_regclass('public.' || quote_ident($1)) IS NOT NULL

-- outbox_version: which version of the outbox's tables is there
SELECT version, upgrade_to FROM public.outbox_version

-- inbox_version: which version of the inbox's tables is there
SELECT version, upgrade_to FROM public.inbox_version

-- callback_version: which version of the callback service's tables is there
SELECT version, upgrade_to FROM public.callback_version

-- decision_version: which version of the decisions' tables is there
SELECT version, upgrade_to FROM public.decision_version

-- set_schema_version: store which version the schema is of, and which one it is upgraded to
UPDATE public.schema_version SET version = $1, upgrade_to = $2, applied_at = now()

-- set_outbox_version: the same for the outbox's tables
UPDATE public.outbox_version SET version = $1, upgrade_to = $2, applied_at = now()

-- set_inbox_version: the same for the inbox's tables
UPDATE public.inbox_version SET version = $1, upgrade_to = $2, applied_at = now()

-- set_callback_version: the same for the callback service's tables
UPDATE public.callback_version SET version = $1, upgrade_to = $2, applied_at = now()

-- set_decision_version: the same for the decisions' tables
UPDATE public.decision_version SET version = $1, upgrade_to = $2, applied_at = now()

-- for_migration: what a migration changes belongs to the owner, and no service waits for it for long
-- (while it waits for the lock of a table, everybody who comes later waits for it)
SET LOCAL ROLE orderchain_owner;
SET LOCAL search_path = public;
SET LOCAL lock_timeout = '2s'

-- lock_schema: let one schema apply after the other, until the transaction ends: no other makes a table
-- of this name while another transaction has made it, and none is left. Only those who may make
-- tables can take this lock; an advisory lock could be taken, and held, by everybody.
CREATE TABLE public.orderchain_apply ();
DROP TABLE public.orderchain_apply

-- steps: what PostgreSQL leaves open to every role and the database section of a schema closes where
-- the applying role may: the statement, and whether it is done
SELECT format('REVOKE CREATE, TEMPORARY ON DATABASE %I FROM PUBLIC', current_database()) AS step,
       NOT has_database_privilege('public', current_database(), 'CREATE')
       AND NOT has_database_privilege('public', current_database(), 'TEMPORARY') AS is_done
UNION ALL
SELECT 'REVOKE CREATE ON SCHEMA public FROM PUBLIC',
       NOT has_schema_privilege('public', 'public', 'CREATE')
UNION ALL
SELECT format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', oid::regprocedure),
       NOT has_function_privilege('public', oid, 'EXECUTE')
  FROM pg_proc
 WHERE pronamespace = 'pg_catalog'::regnamespace
   AND proname IN ('lo_creat', 'lo_create', 'lo_from_bytea')
 ORDER BY step

-- chain: what a chain was created as
SELECT topic, topic_partition, partition_ids FROM chain_head WHERE chain_id = $1

-- published_id: up to where a chain is published, or was left out; none without a broker
SELECT CASE WHEN is_published THEN published_id END FROM chain_head WHERE chain_id = $1

-- topic_owner: the chain that a topic belongs to
SELECT chain_id FROM chain_head WHERE topic = $1

-- create_chain: make a chain; false when it exists
SELECT chain_create($1, $2, $3, $4, $5)

-- chains: every chain, and its topic
SELECT chain_id, topic FROM chain_head ORDER BY chain_id

-- intake: how far an intake was read
SELECT position, digest FROM chain_intake WHERE chain_id = $1 AND source = $2

-- pass_over: move an intake from $3 to $4, past a record that cannot be read; no row if it is elsewhere
WITH moved AS (
    UPDATE chain_intake SET position = $4, digest = ''
     WHERE chain_id = $1 AND source = $2 AND position = $3
    RETURNING chain_id, source
)
INSERT INTO chain_intake_reject (chain_id, source, position, reason)
SELECT chain_id, source, $5, $6 FROM moved
ON CONFLICT (chain_id, source, position) DO UPDATE SET reason = excluded.reason
RETURNING position

-- chain_status: the state of one chain, or of all: its heads, and how alive its leader is, by the
-- database's clock, which may have gone back: no age is negative; other logins' start times are
-- hidden, and then the backend's number must do
SELECT head.chain_id AS chain, head.epoch, nullif(head.owner, '') AS leader,
       CASE WHEN head.epoch = 0 THEN 'never led'
            WHEN lease.released THEN 'handed over'
            WHEN beat.age <= lease.lease_seconds THEN
                 CASE WHEN lease.step_down THEN 'steps down' ELSE 'leads' END
            ELSE 'silent' END AS leader_state,
       (SELECT began_at FROM chain_term AS term
         WHERE term.chain_id = head.chain_id AND term.epoch = head.epoch) AS leader_since,
       beat.age AS last_beat_seconds, lease.lease_seconds,
       (SELECT activity.pid FROM pg_stat_activity AS activity
         WHERE activity.pid = head.backend_pid AND activity.datname = current_database()
           AND coalesce(activity.backend_start = head.backend_start, true)) AS backend,
       head.last_id AS head_persisted,
       -- Without a broker nothing waits for one: what is committed can be read.
       CASE WHEN head.is_published THEN head.published_id ELSE head.last_id END AS head_published,
       CASE WHEN head.is_published THEN head.last_id - head.published_id ELSE 0
            END AS unpublished_ids,
       unpublished.row_count AS unpublished_rows,
       greatest(extract(epoch FROM clock_timestamp() - unpublished.committed_at)::float8, 0)
           AS unpublished_seconds,
       (SELECT committed_at FROM chain_batch AS batch
         WHERE batch.chain_id = head.chain_id AND batch.last_id = head.last_id
           AND head.last_id > 0) AS last_commit,
       head.is_published, head.topic, head.partition_ids, head.created_at AS created
  FROM chain_head AS head JOIN chain_lease AS lease USING (chain_id)
 CROSS JOIN LATERAL (
       SELECT CASE WHEN lease.beat_at IS NOT NULL THEN
              greatest(extract(epoch FROM clock_timestamp() - lease.beat_at)::float8, 0)
               END AS age
       ) AS beat
 CROSS JOIN LATERAL (
       SELECT coalesce(sum(row_count), 0)::bigint AS row_count, min(committed_at) AS committed_at
         FROM chain_batch AS batch
        WHERE batch.chain_id = head.chain_id AND batch.last_id > head.published_id
          AND head.is_published
       ) AS unpublished
 WHERE $1::integer IS NULL OR head.chain_id = $1
 ORDER BY head.chain_id

-- terms: who led a chain when, the last ones first
SELECT epoch, owner, began_at AS began, after_id, timeline FROM chain_term
 WHERE chain_id = $1 ORDER BY epoch DESC LIMIT $2

-- ask_to_step_down: ask the leader to hand over; no row without a leader
UPDATE chain_lease SET step_down = true WHERE chain_id = $1 AND NOT released RETURNING epoch

-- free_lease: let the next process take over at once; no row without a leader
UPDATE chain_lease SET released = true, step_down = false, counter = counter + 1
 WHERE chain_id = $1 AND NOT released RETURNING epoch

-- record_act: store what a person did to a chain, or to a receiver of it, and why
INSERT INTO chain_act (chain_id, receiver, act, actor, reason, detail)
VALUES ($1, $2, $3, $4, $5, $6) RETURNING act_id

-- acts: what people did to a chain, or to all, the last first
SELECT chain_id AS chain, act_id, acted_at, act, receiver, actor, login, reason, detail
  FROM chain_act
 WHERE ($1::integer IS NULL OR chain_id = $1)
   AND ($2::float8 IS NULL OR acted_at > now() - make_interval(secs => $2))
 ORDER BY act_id DESC LIMIT $3

-- rejects: records of intakes that became no order, the last first
SELECT source, position, key, reason, rejected_at FROM chain_intake_reject
 WHERE chain_id = $1 AND ($2::text IS NULL OR source = $2)
   AND ($3::float8 IS NULL OR rejected_at > now() - make_interval(secs => $3))
 ORDER BY rejected_at DESC, source, position DESC LIMIT $4

-- receiver: the stored state of one receiver, locked against its own changes
SELECT head_delivered, batch_last_id, seal, epoch, updated_at, is_report FROM receiver_checkpoint
 WHERE chain_id = $1 AND receiver = $2 FOR UPDATE

-- halt_of: why a receiver has halted
SELECT at_id, reason, detail, halted_at FROM receiver_halt WHERE chain_id = $1 AND receiver = $2

-- has_more: whether a receiver has an entry in the gap ledger, stored states, or is a shadow
SELECT EXISTS (SELECT FROM receiver_gap WHERE chain_id = $1 AND receiver = $2)
    OR EXISTS (SELECT FROM receiver_state WHERE chain_id = $1 AND receiver = $2)
    OR EXISTS (SELECT FROM receiver_shadow WHERE chain_id = $1 AND receiver = $2)

-- forget_receiver: remove the checkpoint of a receiver
DELETE FROM receiver_checkpoint WHERE chain_id = $1 AND receiver = $2

-- forget_gaps: remove the gap ledger of a receiver
DELETE FROM receiver_gap WHERE chain_id = $1 AND receiver = $2

-- forget_states: remove the stored states of a receiver
DELETE FROM receiver_state WHERE chain_id = $1 AND receiver = $2

-- forget_states_after: remove the stored states of a receiver that is moved back
DELETE FROM receiver_state WHERE chain_id = $1 AND receiver = $2 AND id > $3

-- forget_shadow: remove the result of a shadow
DELETE FROM receiver_shadow WHERE chain_id = $1 AND receiver = $2

-- lift_halt: remove the halt of a receiver
DELETE FROM receiver_halt WHERE chain_id = $1 AND receiver = $2
RETURNING at_id, reason, detail, halted_at

-- batch_end: the batch that ends at an id
SELECT last_id, seal, epoch FROM chain_batch WHERE chain_id = $1 AND last_id = $2

-- batch_ends_near: the ends of the batches before and after an id
SELECT (SELECT last_id FROM chain_batch WHERE chain_id = $1 AND last_id < $2
         ORDER BY last_id DESC LIMIT 1) AS before,
       (SELECT last_id FROM chain_batch WHERE chain_id = $1 AND last_id > $2
         ORDER BY last_id LIMIT 1) AS after

-- first_batch_end: the end of the first batch that is stored: 0, or where archived rows end
SELECT min(last_id) FROM chain_batch WHERE chain_id = $1

-- rows_between: rows of the batches after one id, up to another
SELECT coalesce(sum(row_count), 0)::bigint FROM chain_batch
 WHERE chain_id = $1 AND last_id > $2 AND last_id <= $3

-- rows_after: rows of the batches of each of these chains after an id of it
SELECT seen.chain_id, sum(batch.row_count)::bigint AS rows
  FROM unnest($1::integer[], $2::bigint[]) AS seen (chain_id, after_id)
  JOIN chain_batch AS batch ON batch.chain_id = seen.chain_id AND batch.last_id > seen.after_id
 GROUP BY seen.chain_id

-- place_receiver: set the checkpoint of a receiver at the end of a batch
INSERT INTO receiver_checkpoint AS place
    (chain_id, receiver, head_delivered, batch_last_id, seal, epoch, database_id)
VALUES ($1, $2, $3, $3, $4, $5, (SELECT database_id FROM schema_version))
ON CONFLICT (chain_id, receiver) DO UPDATE
   SET head_delivered = EXCLUDED.head_delivered, batch_last_id = EXCLUDED.batch_last_id,
       seal = EXCLUDED.seal, epoch = EXCLUDED.epoch, updated_at = now(),
       database_id = EXCLUDED.database_id

-- last_rows: the last orders of a chain after an id, the last first
SELECT event.id, event.pid, event.key, to_timestamp(event.event_time_ns / 1e9) AS time, event.payload
  FROM (SELECT first_id, ids, pids, keys, event_times_ns, payloads FROM chain_page
         WHERE chain_id = $1 AND last_id > $2 ORDER BY last_id DESC LIMIT $3) AS page
 CROSS JOIN LATERAL unnest(page.ids, page.pids, page.keys, page.event_times_ns, page.payloads)
            AS event (id, pid, key, event_time_ns, payload)
 WHERE event.id > $2
 ORDER BY event.id DESC LIMIT $3

-- order_row: one order of a chain
SELECT id, pid, key, to_timestamp(event_time_ns / 1e9) AS time, payload
  FROM chain_events($1, $2::bigint - 1, $2)

-- batch_around: the batch that covers an id, and who led when it was committed
SELECT batch.first_id, batch.last_id, batch.row_count, batch.epoch,
       encode(batch.seal, 'hex') AS seal, batch.committed_at, term.owner, term.began_at,
       (SELECT count(*) FROM chain_page AS page
         WHERE page.chain_id = $1 AND page.last_id >= batch.first_id
           AND page.last_id <= batch.last_id) AS pages,
       (SELECT coalesce(sum(cardinality(page.ids)), 0)::bigint FROM chain_page AS page
         WHERE page.chain_id = $1 AND page.last_id >= batch.first_id
           AND page.last_id <= batch.last_id) AS stored_rows
  FROM chain_batch AS batch
  LEFT JOIN chain_term AS term ON term.chain_id = batch.chain_id AND term.epoch = batch.epoch
 WHERE batch.chain_id = $1 AND batch.last_id >= $2
 ORDER BY batch.last_id LIMIT 1

-- neighbours: the rows before and after an id; the page that holds it may end with it
SELECT max(event.id) FILTER (WHERE event.id < $2) AS before,
       min(event.id) FILTER (WHERE event.id > $2) AS after
  FROM ((SELECT ids FROM chain_page WHERE chain_id = $1 AND last_id < $2
          ORDER BY last_id DESC LIMIT 1)
        UNION ALL
        (SELECT ids FROM chain_page WHERE chain_id = $1 AND last_id >= $2
          ORDER BY last_id LIMIT 2)) AS page
 CROSS JOIN LATERAL unnest(page.ids) AS event (id)

-- archived_until: where rows end that are in the archive alone; 0 where there are none
SELECT coalesce(max(last_id), 0) FROM chain_batch WHERE chain_id = $1 AND prev_last_id IS NULL

-- verified_over: the verification whose mark covers an id
SELECT after_id, until_id, verified_by, verified_at FROM chain_verified
 WHERE chain_id = $1 AND until_id >= $2 ORDER BY until_id LIMIT 1

-- skips_over: whether an id was left to the database instead of being published
SELECT after_id, until_id, skipped_at FROM chain_skip
 WHERE chain_id = $1 AND after_id < $2 AND until_id >= $2

-- gaps_over: the gap ledger's entries over an id
SELECT receiver, after_id, until_id, cause, outcome, source, found_at FROM receiver_gap
 WHERE chain_id = $1 AND after_id < $2 AND until_id >= $2 ORDER BY receiver, after_id

-- sizes: bytes of each table with its indexes, partitions summed up, the largest first
SELECT coalesce(parent.relname, child.relname)::text AS table,
       count(*) FILTER (WHERE child.relkind = 'r') AS parts,
       sum(pg_total_relation_size(child.oid))::bigint AS bytes,
       sum(pg_indexes_size(child.oid))::bigint AS index_bytes,
       coalesce(sum(coalesce(nullif(child.reltuples, -1), pg_stat_get_live_tuples(child.oid)))
                FILTER (WHERE child.relkind = 'r'), 0)::bigint AS about_rows
  FROM pg_class AS child
  LEFT JOIN LATERAL (
       SELECT pg_partition_root(child.oid) AS root WHERE child.relispartition
       ) AS tree ON true
  LEFT JOIN pg_class AS parent ON parent.oid = tree.root
 WHERE child.relnamespace = 'public'::regnamespace AND child.relkind IN ('r', 'p')
 GROUP BY 1
 ORDER BY bytes DESC, 1

-- growth: how many rows each chain got within a time, by its batches
SELECT chain_id AS chain, sum(row_count)::bigint AS rows,
       sum(row_count)::float8 / $1::float8 AS rows_per_second
  FROM chain_batch WHERE committed_at > now() - make_interval(secs => $1) AND row_count > 0
 GROUP BY chain_id ORDER BY chain_id

-- row_bytes: what a row of a chain takes, by its last pages
SELECT sum(pg_column_size(ids) + pg_column_size(pids) + pg_column_size(keys)
           + pg_column_size(event_times_ns) + pg_column_size(payloads))::float8
       / sum(cardinality(ids))
  FROM (SELECT ids, pids, keys, event_times_ns, payloads FROM chain_page
         WHERE chain_id = $1 ORDER BY last_id DESC LIMIT 100) AS page

-- log_growth: whether this role may see the size of the log, and how fast the log grows
SELECT has_function_privilege('pg_ls_waldir()', 'EXECUTE') AS may_see,
       coalesce(wal_bytes / nullif(greatest(extract(epoch FROM clock_timestamp() - stats_reset), 0), 0),
                0)::float8 AS rate
  FROM pg_stat_wal

-- log_bytes: the log on the disk
SELECT sum(size)::bigint FROM pg_ls_waldir()

-- database_bytes: the whole database on the disk
SELECT pg_database_size(current_database())

-- durability: the settings that decide whether a commit survives a crash
SELECT name, setting FROM pg_settings
 WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'max_connections',
                'idle_in_transaction_session_timeout', 'wal_level', 'archive_mode')

-- log_settings: what decides how late a commit is, and whose files these are; the folder is NULL for
-- a login that may not see it
SELECT current_setting('wal_sync_method') AS sync_method,
       pg_size_bytes(current_setting('min_wal_size')) AS min_wal_bytes,
       (SELECT setting FROM pg_settings WHERE name = 'data_directory') AS directory,
       (SELECT system_identifier FROM pg_control_system()) AS identifier

-- login: who this is, which of the roles it has the rights of, which are missing, and whether the
-- server is a standby
SELECT session_user::text AS login, pg_is_in_recovery() AS is_standby,
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS is_superuser,
       ARRAY(SELECT rolname::text FROM pg_roles
              WHERE rolname = ANY($1::text[]) AND pg_has_role(current_user, oid, 'USAGE')
              ORDER BY rolname) AS roles,
       ARRAY(SELECT name FROM unnest($1::text[]) AS wanted (name)
              WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name)) AS missing

-- replication: for which standbys commits wait, and which are there; other logins see only how many
SELECT current_setting('synchronous_standby_names') AS wanted, count(*) AS standbys,
       count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) AS synchronous,
       count(*) FILTER (WHERE state IS NULL) AS hidden
  FROM pg_stat_replication

-- notifications: how full the cluster's queue of notifications is, from 0 to 1, and the sessions whose
-- clients take none of those that the server has for them: it is in no transaction that would show
SELECT pg_notification_queue_usage() AS used,
       ARRAY(SELECT concat_ws(' ', pid, nullif(application_name, ''), host(client_addr))
               FROM pg_stat_activity
              WHERE state = 'idle' AND wait_event = 'ClientWrite' ORDER BY state_change) AS stuck

-- room: take some of the server's disk, in a transaction that is rolled back: about 1 MB
CREATE TEMPORARY TABLE doctor_room ON COMMIT DROP AS SELECT generate_series(1, 30000) AS n

-- clock: the database's time
SELECT extract(epoch FROM clock_timestamp())::float8

-- intakes: how far each intake of a chain was read, and how many of its records became no order
SELECT source, position,
       (SELECT count(*) FROM chain_intake_reject AS reject
         WHERE reject.chain_id = intake.chain_id AND reject.source = intake.source) AS rejects
  FROM chain_intake AS intake WHERE chain_id = $1 ORDER BY source

-- gaps: the gap ledger of a chain, of one of its receivers, or of all chains; the last ones found, in
-- order; the open ones: neither filled nor passed by the receiver's checkpoint since
SELECT * FROM (
    SELECT chain_id AS chain, receiver, after_id, until_id, row_count AS rows, cause, source, outcome,
           found_at AS found, duration AS seconds
      FROM receiver_gap AS gap
     WHERE ($1::integer IS NULL OR chain_id = $1) AND ($2::text IS NULL OR receiver = $2)
       AND (NOT $3::boolean OR outcome <> 'filled' AND NOT EXISTS (
           SELECT FROM receiver_checkpoint AS place
            WHERE place.chain_id = gap.chain_id AND place.receiver = gap.receiver
              AND place.head_delivered >= gap.until_id))
       AND ($4::float8 IS NULL OR found_at > now() - make_interval(secs => $4))
     ORDER BY found_at DESC, receiver, after_id DESC LIMIT $5) AS found
 ORDER BY chain, receiver, after_id

-- lag: each receiver's checkpoint, stored or reported, whether the database has its batch, and the
-- head of the same snapshot; halts too; of one chain, or of all
SELECT head.chain_id AS chain, receiver,
       CASE WHEN place.is_report THEN 'reported' WHEN place.is_report IS NULL THEN 'none'
            ELSE 'stored' END AS checkpoint,
       coalesce(place.head_delivered, 0) AS head_delivered,
       head.last_id - coalesce(place.head_delivered, 0) AS behind_ids,
       behind.row_count AS behind_rows,
       greatest(extract(epoch FROM now() - behind.committed_at)::float8, 0) AS behind_seconds,
       coalesce(place.updated_at, halt.halted_at) AS updated,
       CASE WHEN place.batch_last_id IS NULL THEN '-'
            WHEN place.batch_last_id > head.last_id THEN 'ahead of the head'
            WHEN batch.seal = place.seal THEN 'yes'
            WHEN batch.seal IS NOT NULL THEN 'another seal'
            WHEN place.batch_last_id < (SELECT min(last_id) FROM chain_batch AS first
                                         WHERE first.chain_id = head.chain_id) THEN 'archived'
            ELSE 'no such batch' END AS agrees,
       coalesce(halt.reason || ' at ' || halt.at_id, '') AS halted,
       coalesce(halt.detail, '') AS halt_detail
  FROM (SELECT * FROM receiver_checkpoint WHERE $1::integer IS NULL OR chain_id = $1) AS place
  FULL JOIN (SELECT * FROM receiver_halt WHERE $1::integer IS NULL OR chain_id = $1) AS halt
       USING (chain_id, receiver)
  JOIN chain_head AS head USING (chain_id)
  LEFT JOIN chain_batch AS batch
    ON batch.chain_id = head.chain_id AND batch.last_id = place.batch_last_id
 CROSS JOIN LATERAL (
       SELECT coalesce(sum(row_count), 0)::bigint AS row_count, min(committed_at) AS committed_at
         FROM chain_batch AS batch
        WHERE batch.chain_id = head.chain_id
          AND batch.last_id > coalesce(place.head_delivered, 0)
       ) AS behind
 WHERE $2::text IS NULL OR receiver = $2
 ORDER BY chain, receiver

-- shadows: each shadow of a chain, or of all, and how its states compare with those of the other
SELECT chain_id AS chain, receiver, shadow_of, compared, compared_id, groups, differs_group,
       differs_id, equal_id, encode(stored_digest, 'hex') AS stored_digest,
       encode(found_digest, 'hex') AS found_digest, updated_at AS updated
  FROM receiver_shadow
 WHERE $1::integer IS NULL OR chain_id = $1
 ORDER BY chain, receiver

-- head_seal: the last batch of a chain with its seal; the genesis row of an empty one
SELECT last_id, seal, committed_at FROM chain_batch WHERE chain_id = $1 ORDER BY last_id DESC LIMIT 1

-- marks: the verified marks of a chain, the last first, and the seal that is stored there now
SELECT mark.mark_id, mark.after_id, mark.until_id, mark.verified_by, mark.login, mark.verified_at,
       CASE WHEN mark.until_id < (SELECT min(last_id) FROM chain_batch WHERE chain_id = $1)
                 THEN 'archived'
            WHEN batch.seal IS NULL THEN 'no such batch'
            WHEN batch.seal = mark.seal THEN 'yes' ELSE 'another seal' END AS holds
  FROM chain_verified AS mark
  LEFT JOIN chain_batch AS batch
    ON batch.chain_id = mark.chain_id AND batch.last_id = mark.until_id
 WHERE mark.chain_id = $1
 ORDER BY mark.until_id DESC, mark.mark_id DESC LIMIT $2

-- contradicted_marks: how many verified marks of each chain, or of one, are not of the batches that
-- the database has, and the first of them
SELECT mark.chain_id, min(mark.until_id) AS until_id, count(*) AS marks
  FROM chain_verified AS mark
  LEFT JOIN chain_batch AS batch
    ON batch.chain_id = mark.chain_id AND batch.last_id = mark.until_id
 WHERE ($1::integer IS NULL OR mark.chain_id = $1)
   AND batch.seal IS DISTINCT FROM mark.seal
   AND mark.until_id >= (SELECT min(first.last_id) FROM chain_batch AS first
                          WHERE first.chain_id = mark.chain_id)
 GROUP BY mark.chain_id ORDER BY mark.chain_id

-- lock_marks: let no verification set a mark until the transaction ends: it might begin after one
-- that is revoked
LOCK TABLE chain_verified IN SHARE ROW EXCLUSIVE MODE

-- revoke_marks: remove the mark of a row, and every later one, which begins after it; without a row
-- the last mark
DELETE FROM chain_verified
 WHERE chain_id = $1
   AND until_id >= coalesce($2, (SELECT max(until_id) FROM chain_verified WHERE chain_id = $1))
   AND ($2 IS NULL OR EXISTS (
       SELECT FROM chain_verified WHERE chain_id = $1 AND until_id = $2))
RETURNING mark_id, after_id, until_id, seal, verified_by, verified_at

-- verified_until: the last row that a verified mark covers, or where archived rows end
SELECT greatest((SELECT max(until_id) FROM chain_verified WHERE chain_id = $1),
                (SELECT min(last_id) FROM chain_batch WHERE chain_id = $1))
