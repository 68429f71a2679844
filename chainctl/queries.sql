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

-- lock_schema: let one schema apply after the other, until the transaction ends: nobody makes a table
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

-- tables: the tables of the schema public
SELECT relname FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')

-- views: the views of the schema public
SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'v'

-- functions: the functions of the schema public
SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace

-- roles: all roles of the server
SELECT rolname FROM pg_roles

-- chain: what a chain was created as
SELECT topic, topic_partition, partition_ids FROM chain_head WHERE chain_id = $1

-- topic_owner: the chain that a topic belongs to
SELECT chain_id FROM chain_head WHERE topic = $1

-- create_chain: make a chain; false when it exists
SELECT chain_create($1, $2, $3, $4, $5)

-- chains: every chain and its heads
SELECT chain_id, epoch, last_id, published_id, topic, partition_ids, created_at
  FROM chain_head
 ORDER BY chain_id

-- row_counts: rows of every chain, by its batches
SELECT chain_id, sum(row_count)::bigint AS rows FROM chain_batch GROUP BY chain_id

-- intake: how far an intake was read
SELECT position, digest FROM chain_intake WHERE chain_id = $1 AND source = $2

-- chain_status: where a chain stands
SELECT chain_id, epoch, owner, last_id, published_id, topic, partition_ids, created_at,
       (SELECT committed_at FROM chain_batch AS batch
         WHERE batch.chain_id = head.chain_id AND batch.last_id = head.last_id) AS committed_at
  FROM chain_head AS head
 WHERE chain_id = $1

-- receivers: where receivers stand by a checkpoint that is stored or reported here, and who halted
SELECT receiver,
       coalesce(place.head_delivered, 0) AS head_delivered,
       coalesce(place.updated_at, halt.halted_at) AS updated_at,
       CASE WHEN place.is_report THEN 'reported' WHEN place.is_report IS NULL THEN 'none'
            ELSE 'stored' END AS checkpoint,
       coalesce(halt.reason || ' at ' || halt.at_id, '') AS halted
  FROM (SELECT * FROM receiver_checkpoint WHERE chain_id = $1) AS place
  FULL JOIN (SELECT * FROM receiver_halt WHERE chain_id = $1) AS halt USING (receiver)
 ORDER BY receiver

-- intakes: how far each intake of a chain was read, and how many of its records became no order
SELECT source, position,
       (SELECT count(*) FROM chain_intake_reject AS reject
         WHERE reject.chain_id = intake.chain_id AND reject.source = intake.source) AS rejects
  FROM chain_intake AS intake WHERE chain_id = $1 ORDER BY source

-- gaps: the gap ledger of a chain, or of one of its receivers
SELECT receiver, after_id, until_id, cause, outcome, source, row_count, found_at, duration
  FROM receiver_gap
 WHERE chain_id = $1 AND ($2::text IS NULL OR receiver = $2)
 ORDER BY receiver, after_id

-- lag: each receiver's checkpoint, stored or reported, and the head of the same snapshot; halts too
SELECT receiver,
       coalesce(place.head_delivered, 0) AS head_delivered,
       head.last_id - coalesce(place.head_delivered, 0) AS behind_ids,
       behind.row_count AS behind_rows,
       coalesce(extract(epoch FROM now() - behind.committed_at)::float8, 0) AS behind_seconds,
       coalesce(place.updated_at, halt.halted_at) AS updated_at,
       coalesce(halt.reason || ' at ' || halt.at_id, '') AS halted
  FROM (SELECT * FROM receiver_checkpoint WHERE chain_id = $1) AS place
  FULL JOIN (SELECT * FROM receiver_halt WHERE chain_id = $1) AS halt USING (receiver)
  JOIN chain_head AS head ON head.chain_id = $1
 CROSS JOIN LATERAL (
       SELECT coalesce(sum(row_count), 0)::bigint AS row_count, min(committed_at) AS committed_at
         FROM chain_batch AS batch
        WHERE batch.chain_id = $1 AND batch.last_id > coalesce(place.head_delivered, 0)
       ) AS behind
 ORDER BY receiver

-- unhalt: lift a receiver's halt and tell of it, both or neither; no row when there was none
WITH lifted AS (
    DELETE FROM receiver_halt WHERE chain_id = $1 AND receiver = $2
    RETURNING chain_id, receiver, at_id, reason, detail, halted_at
)
INSERT INTO chain_act (chain_id, receiver, act, actor, reason, detail)
SELECT chain_id, receiver, 'unhalt', $3, $4,
       reason || ' at ' || at_id || ' on ' || to_char(halted_at AT TIME ZONE 'UTC',
                                                     'YYYY-MM-DD HH24:MI:SS') || ' UTC: ' || detail
  FROM lifted
RETURNING act_id, detail

-- head_seal: the last batch of a chain with its seal; the genesis row of an empty one
SELECT last_id, seal, committed_at FROM chain_batch WHERE chain_id = $1 ORDER BY last_id DESC LIMIT 1
