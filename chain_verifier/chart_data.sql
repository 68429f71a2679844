-- tiles: the batches of a chain after $2 in the order of ids, neighbours of one epoch as one row
SELECT min(first_id) AS first_id, max(last_id) AS last_id,
       min(committed_at) AS began_at, max(committed_at) AS ended_at,
       count(*) AS batches, sum(row_count)::bigint AS rows, max(row_count) AS rows_max, epoch
  FROM (SELECT first_id, last_id, committed_at, row_count, epoch,
               ntile($3) OVER (ORDER BY last_id) AS tile
          FROM public.chain_batch
         WHERE chain_id = $1 AND last_id > $2 AND prev_last_id IS NOT NULL) batches
 GROUP BY tile, epoch
 ORDER BY first_id

-- gaps: the latest gaps of all receivers of a chain after $2
SELECT receiver, after_id, until_id, cause, outcome, found_at
  FROM public.receiver_gap
 WHERE chain_id = $1 AND until_id > $2
 ORDER BY found_at DESC
 LIMIT $3
