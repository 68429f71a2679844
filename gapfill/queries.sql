-- The statements of a fill. The role `gap_reader` may run all of them, and nothing else.

-- standing: the head of a chain, what stands at one id, and the newest terms ($4), in one snapshot;
-- with it the seal of the batch that ends at another one ($3), if one does
SELECT v.version, v.database_id, pg_is_in_recovery() AS is_standby,
       h.chain_id, h.epoch, h.nonce, h.last_id, h.last_seal, h.published_id,
       h.topic, h.topic_partition,
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

-- opening: what a fill begins with, in one trip: what stands at its start, the batches behind, its
-- rows where they are few ($4), all of one snapshot. No row where no batch is known at the start.
SELECT pg_is_in_recovery() AS is_standby,
       b.last_id AS batch_last_id, b.seal AS batch_seal, b.epoch AS batch_epoch,
       (b.last_id = $2 OR EXISTS (
           SELECT FROM (SELECT ids FROM chain_page
                         WHERE chain_id = $1 AND last_id >= $2 ORDER BY last_id LIMIT 1) holder
            WHERE $2 = ANY (holder.ids)
       )) AS is_there,
       batches.last_ids, batches.seals, batches.epochs,
       events.ids, events.pids, events.keys, events.times, events.payloads
FROM (
    SELECT last_id, seal, epoch FROM chain_batch
    WHERE chain_id = $1 AND last_id <= $2 ORDER BY last_id DESC LIMIT 1
) b
CROSS JOIN (
    SELECT array_agg(last_id ORDER BY last_id) AS last_ids,
           array_agg(seal ORDER BY last_id) AS seals,
           array_agg(epoch ORDER BY last_id) AS epochs
    FROM (
        SELECT last_id, seal, epoch FROM chain_batch
        WHERE chain_id = $1 AND last_id > $2 ORDER BY last_id LIMIT $5
    ) next_batches
) batches
CROSS JOIN (
    SELECT array_agg(event.id) AS ids, array_agg(event.pid) AS pids, array_agg(event.key) AS keys,
           array_agg(event.event_time_ns) AS times, array_agg(event.payload) AS payloads
    FROM (
        -- Cut before they are unnested: of a large page a few rows may be asked for.
        SELECT ids[low:high] AS ids, pids[low:high] AS pids, keys[low:high] AS keys,
               event_times_ns[low:high] AS times, payloads[low:high] AS payloads
        FROM (
            SELECT ids, pids, keys, event_times_ns, payloads,
                   width_bucket($2, ids) + 1 AS low, width_bucket($3, ids) AS high
            FROM chain_page
            WHERE chain_id = $1 AND last_id > $2 AND first_id <= $3 AND $4
              AND last_id <= coalesce((
                  SELECT last_id FROM chain_page
                  WHERE chain_id = $1 AND last_id >= $3 ORDER BY last_id LIMIT 1
              ), $3)
            ORDER BY last_id
        ) next_pages
    ) slices
    CROSS JOIN LATERAL unnest(ids, pids, keys, times, payloads)
        AS event (id, pid, key, event_time_ns, payload)
) events;

-- page: the next rows of a range, as slices of what is stored: as many stored pages as are needed for
-- $4 rows or $5 bytes, so the last one may bring more of both
SELECT CASE WHEN is_whole THEN ids ELSE ids[low:high] END,
       CASE WHEN is_whole THEN pids ELSE pids[low:high] END,
       CASE WHEN is_whole THEN keys ELSE keys[low:high] END,
       CASE WHEN is_whole THEN event_times_ns ELSE event_times_ns[low:high] END,
       CASE WHEN is_whole THEN payloads ELSE payloads[low:high] END
FROM (
    SELECT *, first_id > $2 AND last_id <= $3 AS is_whole,
           -- Only where a page is cut: they read its ids.
           CASE WHEN first_id > $2 THEN 1 ELSE width_bucket($2, ids) + 1 END AS low,
           CASE WHEN last_id <= $3 THEN cardinality(ids) ELSE width_bucket($3, ids) END AS high
    FROM (
        SELECT *,
               sum(last_id - first_id + 1) OVER before AS rows_before,
               -- Of what is stored apart, it reads the size alone.
               sum(pg_column_size(keys) + pg_column_size(payloads)) OVER before AS bytes_before
        FROM (
            SELECT first_id, last_id, ids, pids, keys, event_times_ns, payloads
            FROM chain_page
            WHERE chain_id = $1 AND last_id > $2
              AND last_id <= coalesce((
                  SELECT last_id FROM chain_page
                  WHERE chain_id = $1 AND last_id >= $3 ORDER BY last_id LIMIT 1
              ), $3)
            ORDER BY last_id
            LIMIT $4
        ) next_pages
        WINDOW before AS (ORDER BY last_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ) sized
    WHERE coalesce(rows_before, 0) < $4 AND coalesce(bytes_before, 0) < $5 AND first_id <= $3
) page
ORDER BY last_id;

-- batches_after: the next whole batches
SELECT last_id, seal, epoch
FROM chain_batch
WHERE chain_id = $1 AND last_id > $2
ORDER BY last_id
LIMIT $3;

-- place: whether this is a standby, and up to where rows were archived
SELECT pg_is_in_recovery() AS is_standby,
       (SELECT max(last_id) FROM chain_batch
        WHERE chain_id = $1 AND prev_last_id IS NULL) AS boundary_id;

-- row_at_or_before: the last row whose id is not above one; 0 where there is none
-- Behind the archive's boundary only ends of batches are known.
SELECT greatest(
    0,
    (SELECT last_id FROM chain_page
     WHERE chain_id = $1 AND last_id <= $2 ORDER BY last_id DESC LIMIT 1),
    (SELECT ids[width_bucket($2, ids)] FROM (
        SELECT ids FROM chain_page
        WHERE chain_id = $1 AND last_id > $2 ORDER BY last_id LIMIT 1
    ) holder),
    (SELECT last_id FROM chain_batch
     WHERE chain_id = $1 AND last_id <= $2 ORDER BY last_id DESC LIMIT 1)
) AS id;

-- batch_from: the first batch that ends at or behind an id
SELECT last_id, committed_at
FROM chain_batch
WHERE chain_id = $1 AND last_id >= $2
ORDER BY last_id
LIMIT 1;
