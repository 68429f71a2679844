-- rows: the rows of every chain; Spark adds which chain and which ids, so that none is sent in vain
SELECT chain_id, id, pid, key, event_time_ns, payload,
       (chain_id IS NULL OR id IS NULL OR pid IS NULL OR key IS NULL OR event_time_ns IS NULL
        OR payload IS NULL) AS has_null
  FROM public.chain_event

-- heads: of each chain the head, the first and last row, the rows that commits counted, and whether
-- every partition forbids NULL in every column (by a constraint that was validated); one snapshot
SELECT h.chain_id, h.last_id, h.last_seal, h.epoch, h.published_id, h.topic, h.topic_partition,
       v.version, v.database_id::text AS database_id,
       (SELECT e.id FROM public.chain_event e
         WHERE e.chain_id = h.chain_id ORDER BY e.id LIMIT 1) AS first_row_id,
       (SELECT e.id FROM public.chain_event e
         WHERE e.chain_id = h.chain_id ORDER BY e.id DESC LIMIT 1) AS last_row_id,
       (SELECT coalesce(sum(b.row_count), 0)::bigint FROM public.chain_batch b
         WHERE b.chain_id = h.chain_id AND b.prev_last_id IS NOT NULL) AS rows_counted,
       (SELECT coalesce(bool_and(a.attnotnull AND coalesce(c.convalidated, true)), false)
          FROM pg_catalog.pg_partition_tree('public.chain_event') t
          JOIN pg_catalog.pg_attribute a
            ON a.attrelid = t.relid AND a.attnum > 0 AND NOT a.attisdropped
          LEFT JOIN pg_catalog.pg_constraint c
            ON c.conrelid = a.attrelid AND c.contype = 'n' AND a.attnum = ANY (c.conkey)
       ) AS is_without_null
  FROM public.chain_head h CROSS JOIN public.schema_version v

-- versions: the version of the schema, asked when a chain has no head
SELECT version FROM public.schema_version

-- batches: of every batch the seal after it, and what the batch behind that seal is to be
SELECT b.chain_id, b.seal AS anchor, b.last_id AS anchor_id, n.last_id AS batch_last_id,
       n.seal AS batch_seal, n.epoch AS batch_epoch
  FROM public.chain_batch b LEFT JOIN public.chain_batch n
    ON n.chain_id = b.chain_id AND n.prev_last_id = b.last_id

-- skips: the ranges that were never published, since Kafka was away for long
SELECT chain_id, after_id, until_id FROM public.chain_skip

-- terms: the keys that sign the frames of each term
SELECT chain_id, nonce, frame_key FROM public.chain_term

-- sealed: rows, and batches under the id of their last row; sorted by (id, is_batch), each batch
-- stands behind its rows
SELECT e.chain_id, e.id, 0 AS is_batch, e.pid, e.key, e.event_time_ns, e.payload,
       NULL::bigint AS first_id, NULL::bigint AS prev_last_id, NULL::integer AS row_count,
       NULL::bigint AS epoch, NULL::bytea AS seal, NULL::bytea AS seal_before,
       NULL::bigint AS epoch_before, NULL::bigint AS committed_at_us
  FROM public.chain_event e
 UNION ALL
SELECT b.chain_id, b.last_id, 1, NULL, NULL, NULL, NULL,
       b.first_id, b.prev_last_id, b.row_count, b.epoch, b.seal, p.seal, p.epoch,
       (extract(epoch FROM b.committed_at) * 1000000)::bigint
  FROM public.chain_batch b JOIN public.chain_batch p
    ON p.chain_id = b.chain_id AND p.last_id = b.prev_last_id

-- parts: the ends of 64 ranges of batches, so that a range is read without cutting a batch, and
-- where the last batch of each begins: the range behind it is read from there, to be judged by it
SELECT e.chain_id, e.until_id, coalesce(p.last_id, e.until_id) AS next_after_id
  FROM (SELECT chain_id, max(last_id) AS until_id
          FROM (SELECT chain_id, last_id,
                       ntile(64) OVER (PARTITION BY chain_id ORDER BY last_id) AS part
                  FROM public.chain_batch) AS parts
         GROUP BY chain_id, part) AS e
  JOIN public.chain_batch b ON b.chain_id = e.chain_id AND b.last_id = e.until_id
  LEFT JOIN public.chain_batch p ON p.chain_id = b.chain_id AND p.last_id = b.prev_last_id
