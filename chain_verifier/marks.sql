-- standing: head and boundary of a chain, its last verified mark, and the seal that stands there now
SELECT v.version, h.last_id,
       coalesce((SELECT max(b.last_id) FROM public.chain_batch b
                  WHERE b.chain_id = h.chain_id AND b.prev_last_id IS NULL), 0) AS boundary_id,
       m.until_id, m.seal, m.verified_by, m.verified_at,
       (SELECT b.seal FROM public.chain_batch b
         WHERE b.chain_id = h.chain_id AND b.last_id = m.until_id) AS batch_seal
  FROM public.schema_version v
  LEFT JOIN public.chain_head h ON h.chain_id = $1
  LEFT JOIN LATERAL (
       SELECT until_id, seal, verified_by, verified_at FROM public.chain_verified
        WHERE chain_id = h.chain_id ORDER BY until_id DESC, mark_id DESC LIMIT 1
       ) m ON true

-- is_standby: whether this server can store nothing
SELECT pg_is_in_recovery()

-- set_mark: move the mark, if what was verified begins where it stands, or before; else no row
INSERT INTO public.chain_verified (chain_id, after_id, until_id, seal, verified_by)
SELECT b.chain_id, $2, b.last_id, b.seal, $4
  FROM public.chain_batch b
 WHERE b.chain_id = $1 AND b.last_id = $3 AND $3 > $2
   AND $2 <= greatest(
       (SELECT max(until_id) FROM public.chain_verified WHERE chain_id = $1),
       (SELECT max(last_id) FROM public.chain_batch WHERE chain_id = $1 AND prev_last_id IS NULL))
RETURNING until_id
