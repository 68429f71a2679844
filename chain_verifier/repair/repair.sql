-- What a repair reads of a chain besides its batches, and what it writes. $1 is the chain.

-- start: the end of what is archived, or the genesis; the last entry of a batch; how many ids a
-- partition spans
SELECT b.last_id, b.seal, b.epoch, b.committed_at, h.partition_ids,
       (SELECT max(last_id) FROM public.chain_batch WHERE chain_id = $1) AS last_entry_id
  FROM public.chain_batch b JOIN public.chain_head h USING (chain_id)
 WHERE b.chain_id = $1 AND b.prev_last_id IS NULL
 ORDER BY b.last_id DESC LIMIT 1

-- marks: the seals that were verified, the last one of each batch
SELECT DISTINCT ON (until_id) until_id, seal FROM public.chain_verified
 WHERE chain_id = $1 ORDER BY until_id, verified_at DESC

-- leader: who leads, and the counter by which that process shows that it is alive
SELECT h.epoch, h.nonce, h.owner, l.counter, l.released, coalesce(l.lease_seconds, 5) AS lease_seconds
  FROM public.chain_head h JOIN public.chain_lease l USING (chain_id)
 WHERE chain_id = $1

-- partitions: of some ids, those whose partition is not there; where a table has its name, it was
-- detached
SELECT wanted.id, found.name, to_regclass(format('public.%I', found.name)) IS NOT NULL AS is_detached
  FROM public.chain_head h
 CROSS JOIN unnest($2::bigint[]) AS wanted (id)
 CROSS JOIN LATERAL (
       SELECT format('chain_page_%s_%s', h.chain_id, wanted.id / h.partition_ids) AS name) found
 WHERE h.chain_id = $1
   AND NOT EXISTS (
       SELECT FROM pg_inherits i
        WHERE i.inhrelid = to_regclass(format('public.%I', found.name))
          AND i.inhparent = to_regclass(format('public.chain_page_%s', h.chain_id))
          AND NOT i.inhdetachpending)

-- extend: make the partition of an id
SELECT public.chain_page_extend($1, $2)

-- as_owner: work with the rights of the owner of the tables, and no more; wait only shortly
SET LOCAL ROLE orderchain_owner;
SET LOCAL lock_timeout = '2s'

-- hold: lock an entry as it was read; no row if it was changed. The leader adds a batch after it
-- without a wait for this lock
SELECT 1 FROM public.chain_batch WHERE chain_id = $1 AND last_id = $2 AND seal = $3 FOR NO KEY UPDATE

-- change_entry: put an entry right
UPDATE public.chain_batch
   SET first_id = $2, prev_last_id = $4, row_count = $5, epoch = $6, seal = $7, committed_at = $8
 WHERE chain_id = $1 AND last_id = $3

-- add_entry: write an entry back that is missing
INSERT INTO public.chain_batch
    (chain_id, first_id, last_id, prev_last_id, row_count, epoch, seal, committed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)

-- remove_pages: remove what the pages of a batch hold
DELETE FROM public.chain_page WHERE chain_id = $1 AND last_id > $2 AND last_id <= $3

-- move_head: take the chain over and set its head to the last batch that was written back, by
-- compare-and-set on all that a commit compares, and on the seal; no row if another was faster.
-- There is no leader in this term, which fences every leader that does not know of these rows
UPDATE public.chain_head
   SET epoch = greatest(epoch, $6) + 1, nonce = $7, owner = $8, backend_pid = NULL,
       backend_start = NULL, last_id = $9, last_seal = $10
 WHERE chain_id = $1 AND epoch = $2 AND nonce = $3 AND last_id = $4 AND last_seal = $5
RETURNING epoch

-- free_lease: the next process leads at once; no row if the counter has moved, by a living leader
UPDATE public.chain_lease
   SET epoch = $3, counter = counter + 1, released = true, step_down = false
 WHERE chain_id = $1 AND counter = $2
RETURNING epoch

-- begin_term: store the term of the repair, as that of every take-over
INSERT INTO public.chain_term
    (chain_id, epoch, nonce, frame_key, owner, after_id, system_identifier, timeline)
SELECT $1, $2, $3, $4, $5, $6, system_identifier,
       ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint
  FROM pg_control_system()

-- record_act: store what was repaired, by whom, and why
INSERT INTO public.chain_act (chain_id, act, actor, reason, detail)
VALUES ($1, 'repair', $2, $3, $4) RETURNING act_id
