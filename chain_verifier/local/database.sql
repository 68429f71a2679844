-- head: of a chain the head, the first and last row, the rows that commits counted; one snapshot
SELECT h.last_id, h.last_seal AS seal, h.epoch, h.published_id, h.topic, h.topic_partition,
       (SELECT v.database_id::text FROM public.schema_version v) AS database_id,
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

-- skips: the ranges that were never published, since Kafka was away for long
SELECT after_id, until_id FROM public.chain_skip WHERE chain_id = $1

-- terms: the keys that sign the frames of each term
SELECT nonce, frame_key FROM public.chain_term WHERE chain_id = $1

-- seal_at: the seal after the batch that ends with an id
SELECT seal FROM public.chain_batch WHERE chain_id = $1 AND last_id = $2

-- batches_at: for each of some ids the batch that ends with it or before, and the one behind that
SELECT a.at_id, b.last_id AS anchor_id, b.seal AS anchor, n.last_id AS batch_last_id,
       n.seal AS batch_seal, n.epoch AS batch_epoch
  FROM unnest($2::bigint[]) AS a (at_id)
 CROSS JOIN LATERAL (SELECT last_id, seal FROM public.chain_batch
                      WHERE chain_id = $1 AND last_id <= a.at_id
                      ORDER BY last_id DESC LIMIT 1) b
  LEFT JOIN public.chain_batch n ON n.chain_id = $1 AND n.prev_last_id = b.last_id

-- batches: one page of batches behind an id, each with the seal and the epoch before it
SELECT b.first_id, b.last_id AS id, b.prev_last_id, b.row_count, b.epoch, b.seal,
       p.seal AS seal_before, p.epoch AS epoch_before,
       (extract(epoch FROM b.committed_at) * 1000000)::bigint AS committed_at_us
  FROM public.chain_batch b JOIN public.chain_batch p
    ON p.chain_id = b.chain_id AND p.last_id = b.prev_last_id
 WHERE b.chain_id = $1 AND b.last_id > $2 AND b.last_id <= $3
 ORDER BY b.last_id
 LIMIT $4
