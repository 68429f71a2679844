-- What the data source reads of chains, beside the statements of `chain_verifier/database.sql`.

-- version: the version of the schema
SELECT version, upgrade_to FROM public.schema_version;

-- chains: the heads of the chains $1, or of all where it is NULL, and where rows begin that are not
-- archived
SELECT h.chain_id, h.last_id AS head_id,
       coalesce((SELECT max(a.last_id) FROM public.chain_batch a
                  WHERE a.chain_id = h.chain_id AND a.prev_last_id IS NULL), 0) AS boundary_id
  FROM public.chain_head h
 WHERE $1::integer[] IS NULL OR h.chain_id = ANY ($1::integer[])
 ORDER BY h.chain_id;

-- parts: the batches of the chains $1 that hold rows after $2 up to $3, in parts of about $4 rows: where
-- each ends, and its rows
SELECT chain_id, max(last_id) AS until_id, sum(row_count)::bigint AS rows
  FROM (SELECT b.chain_id, b.last_id, b.row_count,
               (sum(b.row_count) OVER (PARTITION BY b.chain_id ORDER BY b.last_id) - b.row_count)
               / $4::bigint AS part
          FROM ROWS FROM (pg_catalog.unnest($1::integer[]), pg_catalog.unnest($2::bigint[]),
                          pg_catalog.unnest($3::bigint[])) AS r (chain_id, after_id, until_id)
          JOIN public.chain_batch b ON b.chain_id = r.chain_id AND b.last_id > r.after_id
                                   AND b.first_id <= r.until_id) s
 GROUP BY chain_id, part
 ORDER BY chain_id, part;

-- bounded: up to where $4 rows go of what the chains $1 have after $2 up to $3, batch by batch in the
-- order of their commits; NULL for a chain none of whose rows is among them
SELECT chain_id,
       max(CASE WHEN row_count <= $4 - before THEN last_id
                ELSE least(last_id, first_id + ($4 - before) - 1) END)
           FILTER (WHERE before < $4) AS until_id
  FROM (SELECT r.chain_id, greatest(b.first_id, r.after_id + 1) AS first_id,
               least(b.last_id, r.until_id) AS last_id, b.row_count,
               (sum(b.row_count) OVER (ORDER BY b.committed_at, r.chain_id, b.last_id)
                - b.row_count)::bigint AS before
          FROM ROWS FROM (pg_catalog.unnest($1::integer[]), pg_catalog.unnest($2::bigint[]),
                          pg_catalog.unnest($3::bigint[])) AS r (chain_id, after_id, until_id),
       LATERAL (SELECT * FROM public.chain_batch c
                 WHERE c.chain_id = r.chain_id AND c.last_id > r.after_id
                   AND c.first_id <= r.until_id
                 ORDER BY c.last_id LIMIT $4::bigint) b) s
 GROUP BY chain_id;

-- batch_ends: the batches of a chain that hold rows after $2 up to $3; with its head, which also
-- comes without a batch
SELECT h.chain_id, h.last_id AS head_id, b.last_id, b.epoch
  FROM public.chain_head h
  LEFT JOIN public.chain_batch b
         ON b.chain_id = h.chain_id AND b.last_id > $2 AND b.first_id <= $3 AND b.row_count > 0
 WHERE h.chain_id = $1
 ORDER BY b.last_id;

-- server: which server answers, of several
SELECT concat_ws(':', host(pg_catalog.inet_server_addr()), current_setting('port')) AS server;
