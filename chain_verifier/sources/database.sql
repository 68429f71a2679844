-- rows: the rows of every chain; Spark adds which chain and which ids, so that none is sent in vain
SELECT chain_id, id, pid, key, event_time_ns, payload,
       (chain_id IS NULL OR id IS NULL OR pid IS NULL OR key IS NULL OR event_time_ns IS NULL
        OR payload IS NULL) AS has_null
  FROM public.chain_event

-- heads: of each chain the head, the first and last row, the rows that commits counted; one snapshot
SELECT h.chain_id, h.last_id, v.version,
       (SELECT e.id FROM public.chain_event e
         WHERE e.chain_id = h.chain_id ORDER BY e.id LIMIT 1) AS first_row_id,
       (SELECT e.id FROM public.chain_event e
         WHERE e.chain_id = h.chain_id ORDER BY e.id DESC LIMIT 1) AS last_row_id,
       (SELECT coalesce(sum(b.row_count), 0)::bigint FROM public.chain_batch b
         WHERE b.chain_id = h.chain_id AND b.prev_last_id IS NOT NULL) AS rows_counted
  FROM public.chain_head h CROSS JOIN public.schema_version v

-- versions: the version of the schema, asked when a chain has no head
SELECT version FROM public.schema_version
