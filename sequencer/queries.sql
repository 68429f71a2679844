-- The statements of the sequencer's store. $1 is the chain wherever there is one.

-- schema_version: which schema the database has
SELECT version, upgrade_to, database_id FROM schema_version

-- durability: the settings that decide whether an acknowledged row survives a crash; the one that a
-- session may set for itself is pinned as it is found, so that no reload weakens it under a leader
SELECT current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       set_config('synchronous_commit', current_setting('synchronous_commit'), false)
           AS synchronous_commit

-- pin_newer: pin the settings that only newer servers know (17: the time of a whole transaction)
SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'

-- server: what a leader requires of the server, the server's clock, and how many connections it allows
SELECT current_setting('server_encoding') AS server_encoding,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us,
       concat_ws(', ',
           current_setting('max_connections')::integer
               - current_setting('superuser_reserved_connections')::integer
               - coalesce(current_setting('reserved_connections', true), '0')::integer
               || ' to all of the server',
           (SELECT datconnlimit || ' to the database' FROM pg_database
             WHERE datname = current_database() AND datconnlimit >= 0),
           (SELECT rolconnlimit || ' to login ' || rolname FROM pg_roles
             WHERE rolname = session_user AND rolconnlimit >= 0)) AS allowed

-- ping: an answer of its own, after whatever is still on its way
SELECT 1

-- look: who leads each of the chains, the counter of its lease, and where it publishes
SELECT head.chain_id, head.epoch, head.nonce, lease.counter, lease.released, head.owner,
       head.topic, head.topic_partition AS partition, head.is_published
  FROM chain_head AS head JOIN chain_lease AS lease USING (chain_id)
 WHERE chain_id = ANY ($1::integer[])

-- end_backend: end the old leader's backend, which blocks us forever if that leader pauses in
-- mid-COPY; only while epoch, nonce and lease are as they were seen: a newer leader is left alone,
-- and so is a backend that waits for a synchronous standby, which has committed already
SELECT pg_terminate_backend(activity.pid, $5)
  FROM chain_head AS head
  JOIN chain_lease AS lease USING (chain_id)
  JOIN pg_stat_activity AS activity
    ON activity.pid = head.backend_pid AND activity.backend_start = head.backend_start
 WHERE head.chain_id = $1 AND head.epoch = $2 AND head.nonce = $3
   AND ($4::bigint IS NULL OR lease.counter = $4)
   AND activity.pid <> pg_backend_pid()
   AND activity.wait_event IS DISTINCT FROM 'SyncRep'

-- take_over: raise the epoch, by compare-and-set on what was seen
UPDATE chain_head AS head
   SET epoch = head.epoch + 1, nonce = $4, owner = $5, is_published = $6,
       backend_pid = pg_backend_pid(),
       backend_start = (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())
  FROM (SELECT is_published FROM chain_head WHERE chain_id = $1 FOR NO KEY UPDATE) AS before
 WHERE head.chain_id = $1 AND head.epoch = $2 AND head.nonce = $3
RETURNING head.epoch, head.last_id, head.last_seal, head.published_id, head.topic,
          head.topic_partition, head.partition_ids, head.key_salt,
          before.is_published AS was_published

-- take_lease: begin the new term's lease; $2 is the counter that was seen, null for our own lease,
-- where a request to step down still holds
UPDATE chain_lease
   SET epoch = $3, counter = counter + 1, released = false, beat_at = clock_timestamp(),
       lease_seconds = $4, step_down = step_down AND $2::bigint IS NULL
 WHERE chain_id = $1 AND ($2::bigint IS NULL OR counter = $2)
RETURNING counter

-- last_term: the server of the newest stored term
SELECT system_identifier, timeline FROM chain_term WHERE chain_id = $1 ORDER BY epoch DESC LIMIT 1

-- begin_term: store the term that begins in this transaction, after the fence
INSERT INTO chain_term
    (chain_id, epoch, nonce, frame_key, owner, after_id, system_identifier, timeline)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)

-- renew_leases: show that the leaders of chains $1, with epochs $2 and nonces $3, are alive, and how
-- far each has published ($4). Returns of each whether its term is known here, whether it is asked to
-- step down (null: its lease did not move), who leads now, the head (below $4: rows were lost), and
-- the settings that it cannot pin. Rows that somebody has locked are passed over: a commit stores the
-- same, and no chain waits for the lock of another.
WITH beat AS (
    SELECT * FROM unnest($1::integer[], $2::bigint[], $3::bytea[], $4::bigint[])
        AS beat (chain_id, epoch, nonce, published_id)
), raised AS (
    SELECT beat.chain_id, beat.published_id
      FROM beat JOIN chain_head AS head
        ON head.chain_id = beat.chain_id AND head.epoch = beat.epoch AND head.nonce = beat.nonce
     WHERE head.published_id < beat.published_id AND head.last_id >= beat.published_id
       FOR NO KEY UPDATE OF head SKIP LOCKED
), published AS (
    UPDATE chain_head AS head SET published_id = raised.published_id
      FROM raised WHERE head.chain_id = raised.chain_id
), free AS (
    SELECT beat.chain_id
      FROM beat JOIN chain_lease AS lease
        ON lease.chain_id = beat.chain_id AND lease.epoch = beat.epoch
      JOIN chain_term AS term
        ON term.chain_id = beat.chain_id AND term.epoch = beat.epoch AND term.nonce = beat.nonce
       FOR NO KEY UPDATE OF lease SKIP LOCKED
), renewed AS (
    UPDATE chain_lease AS lease SET counter = counter + 1, beat_at = clock_timestamp()
      FROM free WHERE lease.chain_id = free.chain_id
    RETURNING lease.chain_id, lease.step_down
)
SELECT beat.chain_id, renewed.step_down, head.last_id, head.epoch, head.owner,
       lease.epoch AS lease_epoch,
       EXISTS (SELECT FROM chain_term AS term WHERE term.chain_id = beat.chain_id
                  AND term.epoch = beat.epoch AND term.nonce = beat.nonce) AS is_proven,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us
  FROM beat JOIN chain_head AS head USING (chain_id) JOIN chain_lease AS lease USING (chain_id)
  LEFT JOIN renewed USING (chain_id)

-- release_lease: show that the leader of epoch $2 is about to leave, with nothing under way: the next
-- one ends no backend, which may commit for other chains; the rest as renew_leases
WITH raised AS (
    SELECT chain_id FROM chain_head
     WHERE chain_id = $1 AND epoch = $2 AND nonce = $3 AND last_id >= $4
       FOR NO KEY UPDATE SKIP LOCKED
), published AS (
    UPDATE chain_head AS head
       SET published_id = greatest(published_id, $4), backend_pid = NULL, backend_start = NULL
      FROM raised WHERE head.chain_id = raised.chain_id
)
UPDATE chain_lease SET counter = counter + 1, released = true, step_down = false
 WHERE chain_id = $1 AND epoch = $2
   -- Without the lock of above: where a commit holds the head's row, the lease is released, too.
   AND EXISTS (SELECT FROM chain_head WHERE chain_id = $1 AND epoch = $2 AND nonce = $3)
RETURNING (SELECT last_id FROM chain_head WHERE chain_id = $1) AS last_id

-- notify: send $2 to those who listen on channels $1; it waits for no disk (the session's
-- synchronous_commit is off), since the server lets one notifying transaction commit at a time, and
-- no longer than $3 for another one
SELECT set_config('lock_timeout', $3, true), count(pg_notify(channel, notice))
  FROM unnest($1::text[], $2::text[]) AS due (channel, notice)

-- make_room_to_notify: forget what all have read of the queue of notifications; one that was full
-- stays full otherwise, since only what notifies forgets, and nothing can
SELECT pg_notification_queue_usage()

-- last_committed_at: when the batch that ends at $2 was committed
SELECT committed_at FROM chain_batch WHERE chain_id = $1 AND last_id = $2

-- extend: make partitions until one holds id $2, and two more
SELECT chain_page_extend($1, $2)

-- commit_batch: the fence, and after it the batch row; if the fence does not hold, the division by
-- zero ends the transaction, with whatever statements come after this one
WITH fence AS (
    UPDATE chain_head
       SET last_id = $6, last_seal = $8, published_id = greatest(published_id, $10)
     WHERE chain_id = $1 AND epoch = $2 AND nonce = $3 AND last_id = $4
    RETURNING chain_id
), batch AS (
    INSERT INTO chain_batch
        (chain_id, first_id, last_id, prev_last_id, row_count, epoch, seal, committed_at)
    SELECT chain_id, $5, $6, $4, $7, $2, $8, $9 FROM fence
)
SELECT 1 / count(*) FROM fence

-- save_mark: move the place of an intake from $5 (null: it was never read), in the transaction of its
-- batch; if the place is elsewhere, the logarithm of zero ends the transaction
WITH moved AS (
    INSERT INTO chain_intake AS stored (chain_id, source, position, digest)
    SELECT $1, $2, $3, $4
     WHERE $5::bigint IS NULL
        OR EXISTS (SELECT FROM chain_intake WHERE chain_id = $1 AND source = $2)
    ON CONFLICT (chain_id, source)
    DO UPDATE SET position = excluded.position, digest = excluded.digest
            WHERE stored.position = $5
    RETURNING 1
)
SELECT ln(count(*)) FROM moved

-- move_mark: the same for a transaction without rows, which may be sent twice: its answer may have
-- been lost
WITH moved AS (
    INSERT INTO chain_intake AS stored (chain_id, source, position, digest)
    SELECT $1, $2, $3, $4
     WHERE $5::bigint IS NULL
        OR EXISTS (SELECT FROM chain_intake WHERE chain_id = $1 AND source = $2)
    ON CONFLICT (chain_id, source)
    DO UPDATE SET position = excluded.position, digest = excluded.digest
            WHERE stored.position = $5 OR (stored.position = $3 AND stored.digest = $4)
    RETURNING 1
)
SELECT ln(count(*)) FROM moved

-- commit_page: the fence, the batch row and the rows in one statement, for few rows; ends as
-- commit_batch where the fence does not hold
WITH fence AS (
    UPDATE chain_head
       SET last_id = $6, last_seal = $8, published_id = greatest(published_id, $10)
     WHERE chain_id = $1 AND epoch = $2 AND nonce = $3 AND last_id = $4
    RETURNING chain_id
), batch AS (
    INSERT INTO chain_batch
        (chain_id, first_id, last_id, prev_last_id, row_count, epoch, seal, committed_at)
    SELECT chain_id, $5, $6, $4, $7, $2, $8, $9 FROM fence
), page AS (
    INSERT INTO chain_page
        (chain_id, first_id, last_id, ids, pids, keys, event_times_ns, payloads)
    SELECT chain_id, $5, $6, $11::bigint[], $12::bigint[], $13::text[], $14::bigint[], $15::bytea[]
      FROM fence
)
SELECT 1 / count(*) FROM fence

-- commit_row: the same for a row alone, whose arrays the server makes at less cost than it reads them
WITH fence AS (
    UPDATE chain_head
       SET last_id = $6, last_seal = $8, published_id = greatest(published_id, $10)
     WHERE chain_id = $1 AND epoch = $2 AND nonce = $3 AND last_id = $4
    RETURNING chain_id
), batch AS (
    INSERT INTO chain_batch
        (chain_id, first_id, last_id, prev_last_id, row_count, epoch, seal, committed_at)
    SELECT chain_id, $5, $6, $4, $7, $2, $8, $9 FROM fence
), page AS (
    INSERT INTO chain_page
        (chain_id, first_id, last_id, ids, pids, keys, event_times_ns, payloads)
    SELECT chain_id, $5, $6, ARRAY[$11::bigint], ARRAY[$12::bigint], ARRAY[$13::text],
           ARRAY[$14::bigint], ARRAY[$15::bytea]
      FROM fence
)
SELECT 1 / count(*) FROM fence

-- save_reject: store what did not become an order, with the mark that moves past it; after a
-- take-over of our own it may be sent twice
INSERT INTO chain_intake_reject (chain_id, source, position, key, reason)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (chain_id, source, position) DO NOTHING

-- lock_head: the fence alone, for a transaction that adds no row; with the lock of a commit, which
-- need not wait for an uncommitted row of a receiver that names the chain
SELECT 1 FROM chain_head WHERE chain_id = $1 AND epoch = $2 AND nonce = $3 FOR NO KEY UPDATE

-- intake: how far an intake was read
SELECT position, digest FROM chain_intake WHERE chain_id = $1 AND source = $2

-- await_standbys: an empty commit, which waits for the synchronous standbys, and so for all that
-- comes before it in the log
SELECT pg_logical_emit_message(true, 'orderchain', '')
 WHERE current_setting('synchronous_standby_names') <> ''

-- batch_after: the one batch whose parent is $2
SELECT epoch, seal FROM chain_batch WHERE chain_id = $1 AND prev_last_id = $2

-- skip_published: move head_published past a range that was never published, and record what is not
-- recorded of it: the answer of an earlier try may have been lost
WITH fence AS (
    SELECT chain_id, epoch, published_id FROM chain_head
     WHERE chain_id = $1 AND epoch = $2 AND nonce = $3
       FOR NO KEY UPDATE
), published AS (
    UPDATE chain_head AS head SET published_id = $5 FROM fence
     WHERE head.chain_id = fence.chain_id AND fence.published_id < $5
), skip AS (
    INSERT INTO chain_skip (chain_id, after_id, until_id, epoch)
    SELECT chain_id, greatest($4, published_id), $5, epoch FROM fence WHERE published_id < $5
)
SELECT epoch FROM fence

-- rows_after: count the rows after id $2 by their batches, until there are more than $3
WITH RECURSIVE tail AS (
    (SELECT last_id, row_count::bigint AS total FROM chain_batch
      WHERE chain_id = $1 AND prev_last_id = $2)
    UNION ALL
    SELECT batch.last_id, tail.total + batch.row_count
      FROM tail JOIN chain_batch AS batch
        ON batch.chain_id = $1 AND batch.prev_last_id = tail.last_id
     WHERE tail.total <= $3
)
SELECT coalesce(max(total), 0) FROM tail

-- next_batch: the batch whose parent is $2, with the seal before it
SELECT batch.first_id, batch.last_id, batch.prev_last_id, batch.epoch, batch.seal,
       batch.committed_at, parent.seal AS seal_before
  FROM chain_batch AS batch
  JOIN chain_batch AS parent
    ON parent.chain_id = batch.chain_id AND parent.last_id = batch.prev_last_id
 WHERE batch.chain_id = $1 AND batch.prev_last_id = $2

-- batch_pages: the rows of the batch from id $2 to id $3, as they are stored
SELECT ids, pids, keys, event_times_ns, payloads
  FROM chain_page WHERE chain_id = $1 AND last_id BETWEEN $2 AND $3 ORDER BY last_id

-- rows_by_id: the rows that may hold a key; each is searched in the one page that may hold it
SELECT page.ids[found.at], page.pids[found.at], page.keys[found.at], page.event_times_ns[found.at],
       page.payloads[found.at]
  FROM unnest($2::bigint[]) AS wanted (id)
 CROSS JOIN LATERAL (
       SELECT ids, pids, keys, event_times_ns, payloads
         FROM chain_page WHERE chain_id = $1 AND last_id >= wanted.id ORDER BY last_id LIMIT 1
       ) AS page
 CROSS JOIN LATERAL (SELECT width_bucket(wanted.id, page.ids) AS at) AS found
 WHERE page.ids[found.at] = wanted.id

-- key_outline: the pages that exist
SELECT after_id, until_id, (length(hashes) / 8)::bigint
  FROM chain_key_page WHERE chain_id = $1 ORDER BY after_id

-- key_page: one page
SELECT after_id, until_id, spans, hashes
  FROM chain_key_page WHERE chain_id = $1 AND after_id = $2

-- clients: what is known of every client
SELECT client, number, id, known_from, known_from_id FROM chain_client WHERE chain_id = $1

-- keys_after: the keys of the next rows after id $2, up to id $3
SELECT event.id, event.key
  FROM (SELECT ids, keys, last_id FROM chain_page
         WHERE chain_id = $1 AND last_id > $2
           AND last_id <= (SELECT max(last_id) FROM (
                   SELECT last_id FROM chain_page
                    WHERE chain_id = $1 AND last_id > $2 ORDER BY last_id LIMIT $4
               ) AS next_pages)
         ORDER BY last_id) AS page
 CROSS JOIN LATERAL unnest(page.ids, page.keys) AS event (id, key)
 WHERE event.id > $2 AND event.id <= $3
 ORDER BY page.last_id, event.id
 LIMIT $4

-- archived_until: the last row that was archived, 0 for none
SELECT coalesce(max(last_id), 0) FROM chain_batch WHERE chain_id = $1 AND prev_last_id IS NULL

-- prove_term: whether this server has the take-over of epoch $2: a row that no other life of it has
SELECT 1 FROM chain_term WHERE chain_id = $1 AND epoch = $2 AND nonce = $3

-- save_key_page: store a page, unless another leader has raised the epoch; one that was made again is
-- as good as the one before
INSERT INTO chain_key_page (chain_id, after_id, until_id, spans, hashes)
SELECT chain_id, $4, $5, $6, $7 FROM chain_head
 WHERE chain_id = $1 AND epoch = $2 AND nonce = $3
ON CONFLICT (chain_id, after_id)
DO UPDATE SET until_id = excluded.until_id, spans = excluded.spans, hashes = excluded.hashes

-- save_clients: store how far clients have come, unless another leader has raised the epoch; a number
-- never falls
INSERT INTO chain_client AS stored (chain_id, client, number, id, known_from, known_from_id)
SELECT head.chain_id, known.*
  FROM chain_head AS head,
       unnest($4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[]) AS known
 WHERE head.chain_id = $1 AND head.epoch = $2 AND head.nonce = $3
ON CONFLICT (chain_id, client)
DO UPDATE SET number = excluded.number, id = excluded.id, known_from = excluded.known_from,
              known_from_id = excluded.known_from_id
        WHERE excluded.number > stored.number

-- forget_key_pages: drop the pages up to id $2, unless another leader has raised the epoch
DELETE FROM chain_key_page
 WHERE chain_id = $1 AND until_id <= $2
   AND EXISTS (SELECT FROM chain_head WHERE chain_id = $1 AND epoch = $3 AND nonce = $4)
