-- The statements of a fill. The role `gap_reader` may run all of them, and nothing else.

-- standing: the head of a chain, what stands at one id, and the newest terms ($4), in one snapshot;
-- with it the seal of the batch that ends at another one ($3), if one does
SELECT v.version, v.database_id, pg_is_in_recovery() AS is_standby,
       h.chain_id, h.epoch, h.nonce, h.last_id, h.last_seal, h.published_id,
       h.topic, h.topic_partition,
       b.last_id AS batch_last_id, b.seal AS batch_seal, b.epoch AS batch_epoch,
       -- A genesis or boundary row stands for the last row before it.
       (b.last_id = $2 OR EXISTS (
           SELECT FROM chain_event e WHERE e.chain_id = $1 AND e.id = $2
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
           SELECT FROM chain_event e WHERE e.chain_id = $1 AND e.id = $2
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
    SELECT array_agg(id ORDER BY id) AS ids, array_agg(pid ORDER BY id) AS pids,
           array_agg(key ORDER BY id) AS keys, array_agg(event_time_ns ORDER BY id) AS times,
           array_agg(payload ORDER BY id) AS payloads
    FROM (
        SELECT id, pid, key, event_time_ns, payload FROM chain_event
        WHERE chain_id = $1 AND id > $2 AND id <= $3 ORDER BY id LIMIT $4
    ) next_events
) events;

-- page: the next rows of a range; none when their payloads are more than a page may hold
SELECT id, pid, key, event_time_ns, payload
FROM chain_event
WHERE chain_id = $1 AND id > $2 AND id <= $3
  -- octet_length reads no stored payload, only its length. Measured: a fifth of the page's time,
  -- and spent in the server while the reader works on the page before.
  AND (
      SELECT sum(octet_length(payload)) FROM (
          SELECT payload FROM chain_event
          WHERE chain_id = $1 AND id > $2 AND id <= $3 ORDER BY id LIMIT $4
      ) page
  ) <= $5
ORDER BY id
LIMIT $4;

-- page_by_bytes: the same, ended by their payloads; for pages that are more than a page may hold
SELECT id, pid, key, event_time_ns, payload
FROM (
    SELECT id, pid, key, event_time_ns, payload,
           sum(octet_length(payload)) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING)
               - octet_length(payload) AS bytes_before
    FROM chain_event
    WHERE chain_id = $1 AND id > $2 AND id <= $3
    ORDER BY id
    LIMIT $4
) page
WHERE bytes_before < $5
ORDER BY id;

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
    (SELECT id FROM chain_event WHERE chain_id = $1 AND id <= $2 ORDER BY id DESC LIMIT 1),
    (SELECT last_id FROM chain_batch
     WHERE chain_id = $1 AND last_id <= $2 ORDER BY last_id DESC LIMIT 1)
) AS id;

-- batch_from: the first batch that ends at or behind an id
SELECT last_id, committed_at
FROM chain_batch
WHERE chain_id = $1 AND last_id >= $2
ORDER BY last_id
LIMIT 1;
