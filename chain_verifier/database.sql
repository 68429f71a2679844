-- What both modes read of a chain, whose number is $1. Whole numbers take the place of values: the
-- server then plans only for this chain's partitions.
--
-- PostgreSQL prefers a function or operator that is made for exactly one type to one of the same name
-- that takes any array. The latter are named with their schema, so that no user-defined one answers.

-- head: the heads of the chains $1, with where archived rows end, the first and the last id that its pages name,
-- what commits counted, and whether its pages are surely what a page must be: every partition has the rules of `chain_page`,
-- unchanged and validated. Rows after each start, of $2, are counted where a batch ends there. One snapshot. For a chain
-- that does not exist, only the version
SELECT c.chain_id, v.version, v.upgrade_to, v.database_id::text AS database_id,
       h.last_id, h.last_seal AS seal, h.epoch, h.published_id, h.topic, h.topic_partition,
       coalesce((SELECT max(a.last_id) FROM public.chain_batch a
                  WHERE a.chain_id = c.chain_id AND a.prev_last_id IS NULL), 0) AS boundary_id,
       -- The planner opens the partitions of the constants alone.
       (SELECT p.first_id FROM public.chain_page p
         WHERE p.chain_id = c.chain_id AND p.chain_id = ANY ($1::integer[])
         ORDER BY p.last_id LIMIT 1) AS first_row_id,
       (SELECT p.last_id FROM public.chain_page p
         WHERE p.chain_id = c.chain_id AND p.chain_id = ANY ($1::integer[])
         ORDER BY p.last_id DESC LIMIT 1) AS last_row_id,
       b.rows_counted, b.batches_counted,
       CASE WHEN c.start_id = 0 OR EXISTS (
                 SELECT FROM public.chain_batch e
                  WHERE e.chain_id = c.chain_id AND e.last_id = c.start_id)
            THEN b.rows_after_start END AS rows_after_start,
       (SELECT coalesce(bool_and(
                   (SELECT bool_and(a.attnotnull AND coalesce(c.convalidated, true))
                      FROM pg_catalog.pg_attribute a
                      LEFT JOIN pg_catalog.pg_constraint c
                        ON c.conrelid = a.attrelid AND c.contype = 'n' AND a.attnum = ANY (c.conkey)
                     WHERE a.attrelid = t.relid AND a.attnum > 0 AND NOT a.attisdropped)
                   AND 3 = (SELECT count(DISTINCT c.conname) FROM pg_catalog.pg_constraint c
                             WHERE c.conrelid = t.relid AND c.contype = 'c' AND c.convalidated
                               AND (c.conname, pg_catalog.pg_get_constraintdef(c.oid)) IN (
                     ('chain_page_ends', 'CHECK ((((ids[1] = first_id) AND (ids[cardinality(ids)] = last_id) AND (pids[1] < first_id)) IS TRUE))'),
                     ('chain_page_lengths', 'CHECK ((((array_dims(pids) = array_dims(ids)) AND (array_dims(keys) = array_dims(ids)) AND (array_dims(event_times_ns) = array_dims(ids)) AND (array_dims(payloads) = array_dims(ids))) IS TRUE))'),
                     ('chain_page_no_null', 'CHECK ((COALESCE(array_position(ids, NULL::bigint), array_position(pids, NULL::bigint), array_position(keys, NULL::text), array_position(event_times_ns, NULL::bigint), array_position(payloads, NULL::bytea)) IS NULL))')
                   ))), false)
          FROM pg_catalog.pg_partition_tree(
               pg_catalog.to_regclass(pg_catalog.format('public.chain_page_%s', c.chain_id))) t
       ) AS has_rules
  FROM public.schema_version v
 CROSS JOIN ROWS FROM (pg_catalog.unnest($1::integer[]), pg_catalog.unnest($2::bigint[]))
            AS c (chain_id, start_id)
 CROSS JOIN LATERAL (SELECT coalesce(sum(row_count), 0)::bigint AS rows_counted,
                            count(*) AS batches_counted,
                            coalesce(sum(row_count) FILTER (WHERE last_id > c.start_id), 0)::bigint
                                AS rows_after_start
                       FROM public.chain_batch
                      WHERE chain_id = c.chain_id AND prev_last_id IS NOT NULL) b
  LEFT JOIN public.chain_head h ON h.chain_id = c.chain_id

-- boundary: where the rows begin that are not archived
SELECT coalesce(max(last_id), 0) AS boundary_id FROM public.chain_batch
 WHERE chain_id = $1 AND prev_last_id IS NULL

-- parts: the ends of $2 ranges of batches after $3 with about the same number of rows each, and where
-- the last batch of each begins. By rows, not by ids: ids skip far ahead at a take-over
SELECT e.until_id, coalesce(p.last_id, e.until_id) AS next_after_id
  FROM (SELECT max(last_id) AS until_id
          FROM (SELECT last_id, (sum(row_count) OVER (ORDER BY last_id) - row_count) * $2::integer
                                / greatest(sum(row_count) OVER (), 1) AS part
                  FROM public.chain_batch WHERE chain_id = $1 AND last_id > $3) b
         GROUP BY part) e
  LEFT JOIN LATERAL (SELECT last_id FROM public.chain_batch
                      WHERE chain_id = $1 AND last_id < e.until_id
                      ORDER BY last_id DESC LIMIT 1) p ON true

-- edges: for each page, the edge that its rows form, from pid to last_id, and whether they form one:
-- each row names the one before it, ids rise, none is NULL (two are equal for `=` of arrays), and the
-- page is what a page must be. The last is checked unless the rules guarantee it ($2): the check needs
-- keys and payloads
SELECT p.last_id, p.first_id, p.pids[1] AS pid, pg_catalog.cardinality(p.ids) AS rows,
       coalesce(
           p.ids[:pg_catalog.cardinality(p.ids) - 1] OPERATOR(pg_catalog.=) p.pids[2:]
           AND (SELECT bool_and((e.pid < e.id) IS TRUE)
                  FROM (SELECT pg_catalog.unnest(p.ids) AS id, pg_catalog.unnest(p.pids) AS pid) e)
           AND ($2::boolean OR (
               p.first_id = p.ids[1] AND p.last_id = p.ids[pg_catalog.cardinality(p.ids)]
               AND pg_catalog.array_dims(p.ids) = '[1:' || pg_catalog.cardinality(p.ids) || ']'
               AND pg_catalog.array_dims(p.pids) = pg_catalog.array_dims(p.ids)
               AND pg_catalog.array_dims(p.keys) = pg_catalog.array_dims(p.ids)
               AND pg_catalog.array_dims(p.event_times_ns) = pg_catalog.array_dims(p.ids)
               AND pg_catalog.array_dims(p.payloads) = pg_catalog.array_dims(p.ids)
               AND coalesce(pg_catalog.array_position(p.keys, NULL),
                            pg_catalog.array_position(p.event_times_ns, NULL),
                            pg_catalog.array_position(p.payloads, NULL)) IS NULL)),
           false) AS is_path
  FROM public.chain_page p
 WHERE p.chain_id = $1

-- page_faults: what is wrong with pages, whatever their rows are: ends that are not those of the ids,
-- columns that do not fit them, and rows that come after a higher id. $2 as above
SELECT p.last_id, f.*
  FROM public.chain_page p
  LEFT JOIN LATERAL (SELECT q.last_id FROM public.chain_page q
                      WHERE q.chain_id = $1 AND q.last_id < p.last_id
                      ORDER BY q.last_id DESC LIMIT 1) b ON true
 CROSS JOIN LATERAL (
       SELECT 'wrong_page' AS kind, p.first_id AS id, p.last_id AS until_id,
              pg_catalog.array_remove(
                  ARRAY[p.ids[1], p.ids[pg_catalog.cardinality(p.ids)]], NULL) AS ids,
              w.columns, NULL::bigint AS after_id, NULL::bigint AS count
         FROM (SELECT pg_catalog.array_agg(c.name ORDER BY c.nth) AS columns
                 FROM (VALUES (1, 'ids', pg_catalog.array_dims(p.ids)),
                              (2, 'pids', pg_catalog.array_dims(p.pids)),
                              (3, 'keys', pg_catalog.array_dims(p.keys)),
                              (4, 'event_times_ns', pg_catalog.array_dims(p.event_times_ns)),
                              (5, 'payloads', pg_catalog.array_dims(p.payloads))) c (nth, name, dims)
                WHERE c.dims IS DISTINCT FROM '[1:' || pg_catalog.cardinality(p.ids) || ']') w
        WHERE NOT $2::boolean
          AND (w.columns IS NOT NULL
               OR (p.first_id = p.ids[1]
                   AND p.last_id = p.ids[pg_catalog.cardinality(p.ids)]) IS NOT TRUE)
       UNION ALL
       SELECT 'out_of_order', min(r.id), max(r.id), NULL, NULL, r.highest, count(*)
         FROM (SELECT e.id, greatest(b.last_id, max(e.id) OVER (
                          ORDER BY e.nth ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) AS highest
                 FROM pg_catalog.unnest(p.ids) WITH ORDINALITY AS e (id, nth)) r
        WHERE r.id < r.highest
          -- Only few pages need this closer check.
          AND (p.first_id <= b.last_id OR p.ids[1] <= b.last_id OR EXISTS (
               SELECT FROM (SELECT pg_catalog.unnest(p.ids) AS id, pg_catalog.unnest(p.ids[2:]) AS next) e
                WHERE e.next <= e.id))
        GROUP BY r.highest) f
 WHERE p.chain_id = $1

-- pages: the next pages after $2 up to $3, at most $5, as many as are needed for $4 bytes: the last may
-- bring more. For pages that are not returned, only the size of out-of-line values is read. If the
-- primary key was removed, several pages may end with one id: they are returned together
SELECT last_id, ids, pids, keys, event_times_ns, payloads
  FROM (SELECT *, sum(pg_column_size(ids) + pg_column_size(pids) + pg_column_size(keys)
                      + pg_column_size(event_times_ns) + pg_column_size(payloads)) OVER (
                      ORDER BY last_id RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
          FROM (SELECT * FROM public.chain_page
                 WHERE chain_id = $1 AND last_id > $2 AND last_id <= $3
                 ORDER BY last_id FETCH FIRST $5 ROWS WITH TIES) n) s
 WHERE coalesce(before, 0) < $4
 ORDER BY last_id

-- sealed_sizes: the next $4 batches after $2 up to $3, each with the bytes up to and including it
SELECT last_id, coalesce(sum(bytes) OVER (ORDER BY last_id), 0)::bigint AS bytes
  FROM (SELECT b.last_id,
               (SELECT sum(pg_column_size(ids) + pg_column_size(pids) + pg_column_size(keys)
                           + pg_column_size(event_times_ns) + pg_column_size(payloads))
                  FROM public.chain_page
                 WHERE chain_id = $1 AND last_id > b.after_id AND last_id <= b.last_id) AS bytes
          FROM (SELECT last_id, lag(last_id, 1, $2) OVER (ORDER BY last_id) AS after_id
                  FROM (SELECT last_id FROM public.chain_batch
                         WHERE chain_id = $1 AND last_id > $2 AND last_id <= $3
                         ORDER BY last_id LIMIT $4) n) b) s
 ORDER BY last_id

-- sealed: every batch in the order of ids, with what is stored of it: the columns of its pages as the
-- seal covers them, and the headers of these arrays, which it does not cover. A time that no commit can
-- have, as infinity, is NULL. Only the first batch has
-- none before it. If the previous batch claims this too, the pages are those after the one before that
SELECT b.last_id AS id, b.first_id, b.prev_last_id, b.row_count, b.epoch, b.seal,
       p.seal AS seal_before, p.epoch AS epoch_before,
       CASE WHEN b.committed_at >= '0001-01-01Z' AND b.committed_at < '9999-12-31Z'
            THEN (extract(epoch FROM b.committed_at) * 1000000)::bigint END AS committed_at_us,
       s.headers, s.ids, s.pids, s.keys, s.event_times_ns, s.payloads
  FROM public.chain_batch b
  LEFT JOIN LATERAL (SELECT last_id, prev_last_id, seal, epoch FROM public.chain_batch
                      WHERE chain_id = $1 AND last_id < b.last_id
                      ORDER BY last_id DESC LIMIT 1) p ON true
 CROSS JOIN LATERAL (
       SELECT CASE WHEN p.prev_last_id IS NOT NULL THEN p.last_id
              ELSE coalesce((SELECT max(last_id) FROM public.chain_batch
                              WHERE chain_id = $1 AND last_id < b.last_id
                                AND prev_last_id IS NOT NULL),
                            (SELECT min(last_id) FROM public.chain_batch
                              WHERE chain_id = $1 AND last_id < b.last_id),
                            -9223372036854775807)
              END AS after_id) a
 CROSS JOIN LATERAL (
       SELECT string_agg(substr(substr(i.ids, 1, 20) || z.pad, 1, 20)
                         || substr(substr(i.pids, 1, 20) || z.pad, 1, 20)
                         || substr(substr(i.keys, 1, 20) || z.pad, 1, 20)
                         || substr(substr(i.event_times_ns, 1, 20) || z.pad, 1, 20)
                         || substr(substr(i.payloads, 1, 20) || z.pad, 1, 20), '') AS headers,
              string_agg(substr(i.ids, 21), '') AS ids,
              string_agg(substr(i.pids, 21), '') AS pids,
              string_agg(substr(i.keys, 21), '') AS keys,
              string_agg(substr(i.event_times_ns, 21), '') AS event_times_ns,
              string_agg(substr(i.payloads, 21), '') AS payloads
         FROM (SELECT coalesce(pg_catalog.array_send(ids), '') AS ids,
                      coalesce(pg_catalog.array_send(pids), '') AS pids,
                      coalesce(pg_catalog.array_send(keys), '') AS keys,
                      coalesce(pg_catalog.array_send(event_times_ns), '') AS event_times_ns,
                      coalesce(pg_catalog.array_send(payloads), '') AS payloads
                 FROM public.chain_page
                WHERE chain_id = $1 AND last_id > a.after_id AND last_id <= b.last_id
                ORDER BY last_id) i
        -- An array with one dimension has a header of 20 bytes; with none, of 12.
        CROSS JOIN (SELECT pg_catalog.decode(repeat('00', 20), 'hex') AS pad) z) s
 WHERE b.chain_id = $1 AND b.prev_last_id IS NOT NULL
 ORDER BY b.last_id

-- seal_at: the seal after the batch that ends with an id
SELECT seal FROM public.chain_batch WHERE chain_id = $1 AND last_id = $2

-- batches_at: for each of some ids, the batch that ends with it or before, and the next batch
SELECT a.at_id, b.last_id AS anchor_id, b.seal AS anchor, n.last_id AS batch_last_id,
       n.seal AS batch_seal, n.epoch AS batch_epoch
  FROM unnest($2::bigint[]) AS a (at_id)
 CROSS JOIN LATERAL (SELECT last_id, seal FROM public.chain_batch
                      WHERE chain_id = $1 AND last_id <= a.at_id
                      ORDER BY last_id DESC LIMIT 1) b
  LEFT JOIN public.chain_batch n ON n.chain_id = $1 AND n.prev_last_id = b.last_id

-- skips: the ranges that were never published, since Kafka was unavailable for long
SELECT after_id, until_id FROM public.chain_skip WHERE chain_id = $1

-- terms: the keys that sign the frames of each term
SELECT nonce, frame_key FROM public.chain_term WHERE chain_id = $1

-- between: what {statement}, filled for the chain $1, finds after $2 up to $3 by the column {ids}, with
-- the chain's number and where its rows begin to count, $4: so the finds of several chains are one table
SELECT $1::integer AS chain_id, $4::bigint AS start_id, s.*
  FROM ({statement}) AS s WHERE s.{ids} > $2 AND s.{ids} <= $3
