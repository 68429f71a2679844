-- The statements of the command line itself. Everything else asks the packages.

-- server_version: which PostgreSQL this is, as a number
SELECT current_setting('server_version_num')::integer

-- schema_version: which schema is there
SELECT version, database_id FROM public.schema_version

-- has_schema: whether a schema of ours is there, whatever its version
SELECT to_regclass('public.schema_version') IS NOT NULL

-- lock_schema: let one schema apply after the other, until the transaction ends
SELECT pg_advisory_xact_lock(hashtextextended('orderchain schema apply', 0))

-- relations: the tables of the schema public
SELECT relname FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')

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

-- receivers: where the receivers stand that keep their checkpoints here
SELECT receiver, head_delivered, updated_at FROM receiver_checkpoint
 WHERE chain_id = $1
 ORDER BY receiver

-- intakes: how far each intake of a chain was read
SELECT source, position FROM chain_intake WHERE chain_id = $1 ORDER BY source
