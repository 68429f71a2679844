-- head: of a chain the head, the first and last row, the rows that commits counted; one snapshot
SELECT h.last_id,
       (SELECT e.id FROM public.chain_event e
         WHERE e.chain_id = h.chain_id ORDER BY e.id LIMIT 1) AS first_row_id,
       (SELECT e.id FROM public.chain_event e
         WHERE e.chain_id = h.chain_id ORDER BY e.id DESC LIMIT 1) AS last_row_id,
       (SELECT coalesce(sum(b.row_count), 0)::bigint FROM public.chain_batch b
         WHERE b.chain_id = h.chain_id AND b.prev_last_id IS NOT NULL) AS rows_counted
  FROM public.chain_head h
 WHERE h.chain_id = $1

-- version: the version of the schema
SELECT version FROM public.schema_version

-- rows: one page of rows behind an id
SELECT chain_id, id, pid, key, event_time_ns, payload
  FROM public.chain_event
 WHERE chain_id = $1 AND id > $2 AND id <= $3
 ORDER BY id
 LIMIT $4

-- ids: the same, of the content only whether it is NULL
SELECT chain_id, id, pid,
       CASE WHEN key IS NOT NULL THEN '' END AS key,
       CASE WHEN event_time_ns IS NOT NULL THEN 0::bigint END AS event_time_ns,
       CASE WHEN payload IS NOT NULL THEN ''::bytea END AS payload
  FROM public.chain_event
 WHERE chain_id = $1 AND id > $2 AND id <= $3
 ORDER BY id
 LIMIT $4
