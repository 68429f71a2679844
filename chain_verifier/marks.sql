-- standing: the ends of a chain, how wide its partitions are, and its last verified mark
SELECT v.version, v.upgrade_to, v.database_id, h.last_id AS head,
       -- Without a broker nothing is still to be published.
       CASE WHEN h.is_published THEN h.published_id ELSE h.last_id END AS published_id,
       h.partition_ids,
       coalesce(b.last_id, 0) AS boundary_id, b.seal AS boundary_seal,
       m.until_id, m.verified_by, m.verified_at
  FROM public.schema_version v
  LEFT JOIN public.chain_head h ON h.chain_id = $1
  LEFT JOIN LATERAL (
       SELECT last_id, seal FROM public.chain_batch
        WHERE chain_id = h.chain_id AND prev_last_id IS NULL ORDER BY last_id DESC LIMIT 1
       ) b ON true
  LEFT JOIN LATERAL (
       SELECT until_id, verified_by, verified_at FROM public.chain_verified
        WHERE chain_id = h.chain_id ORDER BY until_id DESC, verified_at DESC LIMIT 1
       ) m ON true

-- contradicted: the first mark of a chain whose batch is gone or has another seal now, up to where
-- the marks before it hold, and how many do not; marks of archived rows are not judged
WITH edge AS (
       SELECT coalesce(max(last_id), 0) AS at_id FROM public.chain_batch
        WHERE chain_id = $1 AND prev_last_id IS NULL),
     judged AS (
       SELECT m.mark_id, m.until_id, m.seal, m.verified_by, m.verified_at, b.seal AS found,
              b.seal IS NOT DISTINCT FROM m.seal AS holds
         FROM edge JOIN public.chain_verified m ON m.chain_id = $1 AND m.until_id >= edge.at_id
         LEFT JOIN public.chain_batch b ON b.chain_id = m.chain_id AND b.last_id = m.until_id)
SELECT f.mark_id, f.until_id, f.seal, f.found, f.verified_by, f.verified_at,
       (SELECT coalesce(max(j.until_id), edge.at_id) FROM edge LEFT JOIN judged j
            ON j.holds AND j.until_id < f.until_id GROUP BY edge.at_id) AS after_id,
       (SELECT count(*) FROM judged WHERE NOT holds) AS count
  FROM judged f
 WHERE NOT f.holds
 ORDER BY f.until_id, f.mark_id
 LIMIT 1

-- is_standby: whether this server cannot store anything
SELECT pg_is_in_recovery()

-- set_mark: move the mark, if the verified rows begin at the mark or before it, and end with the seal $5; else no row
INSERT INTO public.chain_verified (chain_id, after_id, until_id, seal, verified_by)
SELECT b.chain_id, $2, b.last_id, b.seal, $4
  FROM public.chain_batch b
 WHERE b.chain_id = $1 AND b.last_id = $3 AND $3 > $2 AND b.seal = $5
   AND $2 <= greatest(
       (SELECT max(until_id) FROM public.chain_verified WHERE chain_id = $1),
       (SELECT max(last_id) FROM public.chain_batch WHERE chain_id = $1 AND prev_last_id IS NULL))
RETURNING until_id
