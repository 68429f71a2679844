-- The statements of a fill. The role `gap_reader` may run all of them, and nothing else.

-- standing: the head of a chain, what is at one id, and the newest terms ($4), in one snapshot;
-- with it the seal of the batch that ends at another one ($3), if one does, and the rows of the next
-- $5 batches
SELECT v.version, v.upgrade_to, v.database_id, pg_is_in_recovery() AS is_standby,
       h.chain_id, h.epoch, h.nonce, h.last_id, h.last_seal, h.published_id,
       h.topic, h.topic_partition, h.is_published,
       b.last_id AS batch_last_id, b.seal AS batch_seal, b.epoch AS batch_epoch,
       -- A genesis or boundary row stands for the last row before it.
       (b.last_id = $2 OR EXISTS (
           SELECT FROM (SELECT ids FROM chain_page
                         WHERE chain_id = $1 AND last_id >= $2 ORDER BY last_id LIMIT 1) holder
            WHERE $2 = ANY (holder.ids)
       )) AS is_there,
       (SELECT max(a.last_id) FROM chain_batch a
        WHERE a.chain_id = $1 AND a.prev_last_id IS NULL) AS boundary_id,
       (SELECT a.seal FROM chain_batch a
         WHERE a.chain_id = $1 AND a.last_id = $3) AS asked_seal,
       (SELECT coalesce(sum(row_count), 0)::bigint
          FROM (SELECT row_count FROM chain_batch
                 WHERE chain_id = $1 AND last_id > $2 ORDER BY last_id LIMIT $5) next_batches
       ) AS rows_ahead,
       terms.epochs AS term_epochs, terms.nonces AS term_nonces, terms.frame_keys AS term_frame_keys
FROM schema_version v
CROSS JOIN (
    SELECT array_agg(epoch) AS epochs, array_agg(nonce) AS nonces,
           array_agg(frame_key) AS frame_keys
    FROM (
        SELECT epoch, nonce, frame_key FROM chain_term
        WHERE chain_id = $1 ORDER BY epoch DESC LIMIT $4
    ) newest_terms
) terms
LEFT JOIN chain_head h ON h.chain_id = $1
LEFT JOIN LATERAL (
    SELECT last_id, seal, epoch FROM chain_batch
    WHERE chain_id = $1 AND last_id <= $2 ORDER BY last_id DESC LIMIT 1
) b ON true;

-- page: the next rows of a range, as slices of stored pages: as many of the next $6 stored pages as
-- are needed for $4 rows or $5 bytes, so the last one may bring more of both. With $7 above 0 the
-- first slice also brings what a fill begins with, in the same round trip and snapshot: what is at
-- the start, and those of the next $7 batches that begin within the range. There is always a first row, without arrays if no page is
-- next. Slices are in no order. `lacks` names the arrays of a page that lacks a value of some kind
-- for some row. The arrays of a whole page travel as a seal covers them (docs/seal.md): as they are
-- sent, without their headers, which have 20 bytes for one dimension.
SELECT CASE WHEN NOT is_whole THEN ids[low:high] END AS ids,
       CASE WHEN NOT is_whole THEN pids[low:high] END AS pids,
       CASE WHEN NOT is_whole THEN keys[low:high] END AS keys,
       CASE WHEN NOT is_whole THEN event_times_ns[low:high] END AS times,
       CASE WHEN NOT is_whole THEN payloads[low:high] END AS payloads,
       CASE WHEN is_whole THEN substr(array_send(ids), 21) END AS id_images,
       CASE WHEN is_whole THEN substr(array_send(pids), 21) END AS pid_images,
       CASE WHEN is_whole THEN substr(array_send(keys), 21) END AS key_images,
       CASE WHEN is_whole THEN substr(array_send(event_times_ns), 21) END AS time_images,
       CASE WHEN is_whole THEN substr(array_send(payloads), 21) END AS payload_images,
       page.first_id, page.last_id, lacks,
       pg_is_in_recovery() AS is_standby,
       b.last_id AS batch_last_id, b.seal AS batch_seal, b.epoch AS batch_epoch,
       CASE WHEN rows_before IS NULL AND $7 > 0 THEN (
           b.last_id = $2 OR ids[low - 1] = $2
           OR EXISTS (SELECT FROM chain_page WHERE chain_id = $1 AND last_id = $2)
       ) END AS is_there,
       CASE WHEN rows_before IS NULL THEN batches.last_ids END AS last_ids,
       CASE WHEN rows_before IS NULL THEN batches.seals END AS seals,
       CASE WHEN rows_before IS NULL THEN batches.epochs END AS epochs,
       CASE WHEN rows_before IS NULL THEN batches.first_ids END AS first_ids,
       CASE WHEN rows_before IS NULL THEN batches.row_counts END AS row_counts,
       CASE WHEN rows_before IS NULL THEN batches.committed_at_us END AS committed_at_us
FROM (
    SELECT array_agg(last_id ORDER BY last_id) AS last_ids,
           array_agg(seal ORDER BY last_id) AS seals,
           array_agg(epoch ORDER BY last_id) AS epochs,
           array_agg(first_id ORDER BY last_id) AS first_ids,
           array_agg(row_count ORDER BY last_id) AS row_counts,
           array_agg(CASE WHEN isfinite(committed_at)
                          THEN (extract(epoch FROM committed_at) * 1000000)::bigint ELSE -1
                     END ORDER BY last_id) AS committed_at_us
    FROM (
        SELECT last_id, seal, epoch, first_id, row_count, committed_at FROM chain_batch
        WHERE chain_id = $1 AND last_id > $2 ORDER BY last_id LIMIT $7
    ) next_batches
    WHERE first_id <= $3
) batches
LEFT JOIN (
    SELECT last_id, seal, epoch FROM chain_batch
    WHERE chain_id = $1 AND last_id <= $2 AND $7 > 0 ORDER BY last_id DESC LIMIT 1
) b ON true
LEFT JOIN (
    SELECT *,
           first_id > $2 AND last_id <= $3 AS is_whole,
           -- Only where a page is cut: they read its ids, which must hold no NULL.
           CASE WHEN lacks IS NULL
                THEN CASE WHEN first_id > $2 THEN 1 ELSE width_bucket($2, ids) + 1 END
           END AS low,
           CASE WHEN lacks IS NULL
                THEN CASE WHEN last_id <= $3 THEN cardinality(ids) ELSE width_bucket($3, ids) END
           END AS high
    FROM (
        SELECT *,
               -- The arrays are in memory: each of these reads only the head of one.
               CASE WHEN array_dims(ids) = dims AND num_nulls(VARIADIC ids) = 0
                     AND array_dims(pids) = dims AND num_nulls(VARIADIC pids) = 0
                     AND array_dims(keys) = dims AND num_nulls(VARIADIC keys) = 0
                     AND array_dims(event_times_ns) = dims
                     AND num_nulls(VARIADIC event_times_ns) = 0
                     AND array_dims(payloads) = dims AND num_nulls(VARIADIC payloads) = 0
                    THEN NULL
                    ELSE (SELECT concat(string_agg(format(
                              '%s %s%s', name, coalesce(found, 'is NULL'),
                              ' with ' || nullif(nulls, 0) || ' NULL'
                          ), ', '), '; expected ' || dims)
                          FROM (VALUES
                              ('ids', array_dims(ids), num_nulls(VARIADIC ids)),
                              ('pids', array_dims(pids), num_nulls(VARIADIC pids)),
                              ('keys', array_dims(keys), num_nulls(VARIADIC keys)),
                              ('event_times_ns', array_dims(event_times_ns),
                               num_nulls(VARIADIC event_times_ns)),
                              ('payloads', array_dims(payloads), num_nulls(VARIADIC payloads))
                          ) AS held (name, found, nulls)
                          WHERE (found = dims AND nulls = 0) IS NOT TRUE)
               END AS lacks
        FROM (
            -- The empty array brings what is stored apart into memory, once for all uses of it.
            -- OFFSET 0 keeps the planner from doing that once per column.
            SELECT first_id, last_id, rows_before, '[1:' || cardinality(ids) || ']' AS dims,
                   ids || '{}'::bigint[] AS ids, pids || '{}'::bigint[] AS pids,
                   keys || '{}'::text[] AS keys,
                   event_times_ns || '{}'::bigint[] AS event_times_ns,
                   payloads || '{}'::bytea[] AS payloads
            FROM (
                SELECT *,
                       sum(last_id - greatest(first_id - 1, $2)) OVER before AS rows_before,
                       -- For what is stored apart, it reads only the size.
                       sum(pg_column_size(keys) + pg_column_size(payloads)) OVER before
                           AS bytes_before
                FROM (
                    SELECT first_id, last_id, ids, pids, keys, event_times_ns, payloads
                    FROM chain_page
                    WHERE chain_id = $1 AND last_id > $2
                    ORDER BY last_id
                    LIMIT $6
                ) next_pages
                WINDOW before AS (
                    ORDER BY last_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                )
            ) sized
            WHERE coalesce(rows_before, 0) < $4 AND coalesce(bytes_before, 0) < $5
              AND first_id <= $3
            OFFSET 0
        ) unpacked
        OFFSET 0
    ) looked_at
    OFFSET 0
) page ON true;

-- batches_after: the next whole batches; no batch was committed at a time below 0
SELECT last_id, seal, epoch, first_id, row_count,
       CASE WHEN isfinite(committed_at)
            THEN (extract(epoch FROM committed_at) * 1000000)::bigint ELSE -1
       END AS committed_at_us
FROM chain_batch
WHERE chain_id = $1 AND last_id > $2
ORDER BY last_id
LIMIT $3;

-- place: whether this is a standby, and up to where rows were archived
SELECT pg_is_in_recovery() AS is_standby,
       (SELECT max(last_id) FROM chain_batch
        WHERE chain_id = $1 AND prev_last_id IS NULL) AS boundary_id;

-- row_at_or_before: the last row whose id is not above a given one; 0 where there is none
-- Before the archive's boundary only ends of batches are known.
SELECT greatest(
    0,
    (SELECT last_id FROM chain_page
     WHERE chain_id = $1 AND last_id <= $2 ORDER BY last_id DESC LIMIT 1),
    (SELECT ids[width_bucket($2, ids)] FROM (
        SELECT ids FROM chain_page
        WHERE chain_id = $1 AND last_id > $2 ORDER BY last_id LIMIT 1
    ) holder WHERE num_nulls(VARIADIC ids) = 0),
    (SELECT last_id FROM chain_batch
     WHERE chain_id = $1 AND last_id <= $2 ORDER BY last_id DESC LIMIT 1)
) AS id;

-- batch_from: the first batch that ends at or after an id
SELECT last_id, committed_at
FROM chain_batch
WHERE chain_id = $1 AND last_id >= $2
ORDER BY last_id
LIMIT 1;
