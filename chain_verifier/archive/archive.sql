-- seal_at: the seal after a batch; no row when no batch ends there
SELECT seal FROM public.chain_batch WHERE chain_id = $1 AND last_id = $2

-- batches: the batches of a range. A time that no commit can have, as infinity, becomes another wrong one
SELECT first_id, last_id, prev_last_id, row_count, epoch, seal,
       CASE WHEN committed_at >= '0001-01-01Z' AND committed_at < '9999-12-31Z'
            THEN committed_at ELSE 'epoch' END AS committed_at
  FROM public.chain_batch
 WHERE chain_id = $1 AND last_id > $2 AND last_id <= $3
 ORDER BY last_id

-- pages: the pages of some whole batches
SELECT last_id, ids, pids, keys, event_times_ns, payloads
  FROM public.chain_page
 WHERE chain_id = $1 AND last_id > $2 AND last_id <= $3
 ORDER BY last_id

-- lowest_receiver: the receiver that is furthest behind, by checkpoint, report or halt
-- When it restarts, it compares the seal of the batch that its place names, so this batch must stay.
-- That batch may be older than the last one before its row.
SELECT receiver, at_id, head_delivered FROM (
       SELECT receiver, head_delivered, CASE WHEN EXISTS (
                  SELECT FROM public.chain_batch b
                   WHERE b.chain_id = $1 AND b.last_id > c.batch_last_id
                     AND b.last_id <= c.head_delivered)
              THEN batch_last_id ELSE head_delivered END AS at_id
         FROM public.receiver_checkpoint c WHERE chain_id = $1
       UNION ALL
       SELECT receiver, at_id, at_id FROM public.receiver_halt WHERE chain_id = $1) places
 ORDER BY at_id, receiver
 LIMIT 1

-- remembered: rows after this id are still needed, to find a repeated key
SELECT min(after_id) FROM public.chain_key_page WHERE chain_id = $1

-- behind_window: the last batch that has at least $2 rows after it; 0 if there is none
SELECT coalesce(max(last_id), 0)
  FROM (SELECT last_id,
               sum(row_count) OVER (ORDER BY last_id DESC) - row_count AS rows_behind
          FROM public.chain_batch WHERE chain_id = $1) batches
 WHERE rows_behind >= $2::bigint

-- partitions: the partitions of a chain with their bounds and sizes
SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) AS bounds, i.inhdetachpending AS is_pending,
       coalesce(pg_total_relation_size(c.oid), 0) AS bytes
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = to_regclass(format('public.chain_page_%s', $1::integer))

-- last_below: the last batch that ends below an id, and where the next batch begins
SELECT (SELECT max(last_id) FROM public.chain_batch WHERE chain_id = $1 AND last_id < $2) AS below,
       (SELECT first_id FROM public.chain_batch
         WHERE chain_id = $1 AND last_id >= $2 ORDER BY last_id LIMIT 1) AS behind_first_id

-- wait_briefly: an act must not block the sequencer
SET LOCAL lock_timeout = '2s'

-- set_boundary: make a batch represent everything up to it; no row unless it is as it was, with seal $3
UPDATE public.chain_batch SET prev_last_id = NULL, first_id = last_id, row_count = 0
 WHERE chain_id = $1 AND last_id = $2 AND seal = $3 AND prev_last_id IS NOT NULL
RETURNING last_id

-- forget_older: remove the batches before the boundary
DELETE FROM public.chain_batch WHERE chain_id = $1 AND last_id < $2

-- record_act: record what was done, by whom, and why
INSERT INTO public.chain_act (chain_id, act, actor, reason, detail)
VALUES ($1, $2, $3, $4, $5) RETURNING act_id

-- detach: the statement that detaches a partition without blocking other sessions
SELECT format('ALTER TABLE public.chain_page_%s DETACH PARTITION public.%I %s',
              $1::integer, $2::text, CASE WHEN $3::boolean THEN 'FINALIZE' ELSE 'CONCURRENTLY' END)

-- detached: the tables that were partitions of a chain, and hold nothing of it any more
SELECT c.relname AS name, pg_total_relation_size(c.oid) AS bytes
  FROM pg_class c
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND NOT c.relispartition
   AND c.relname ~ format('^chain_page_%s_[0-9]+$', $1::integer)
 ORDER BY substring(c.relname FROM '_([0-9]+)$')::bigint

-- read_extent: the statement that reads what a detached table holds
SELECT format('SELECT min(first_id) AS first_id, max(last_id) AS last_id,
                      coalesce(sum(cardinality(ids)), 0)::bigint AS rows FROM public.%I', $1::text)

-- lock_table: the statement that keeps everybody from a table until the transaction ends
SELECT format('LOCK TABLE public.%I IN ACCESS EXCLUSIVE MODE', $1::text)

-- drop_table: the statement that drops a table
SELECT format('DROP TABLE public.%I', $1::text)
