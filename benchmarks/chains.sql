-- What is set on the servers of the benchmarks, and what is read from their chains.

-- settings: the server's settings of these names
SELECT name, setting, unit FROM pg_settings WHERE name = ANY($1);

-- write_log: write so many MiB of PostgreSQL's log
SELECT pg_logical_emit_message(false, 'benchmark', repeat('.', 1024 * 1024))
FROM generate_series(1, $1);

-- topic: the topic of a chain
SELECT topic FROM chain_head WHERE chain_id = $1;

-- forget_keys: remove the keys of a chain
DELETE FROM chain_key_page WHERE chain_id = $1;

-- forget_clients: remove the clients of a chain
DELETE FROM chain_client WHERE chain_id = $1;

-- rows: the rows of a chain once more, as a row per order
INSERT INTO bare_event (chain_id, id, pid, key, event_time_ns, payload)
SELECT $1::integer, id, pid, key, event_time_ns, payload FROM chain_event WHERE chain_id = $1;

-- create_like: another chain, with room for as many ids as a chain has; nobody publishes it
SELECT chain_create($1, h.last_seal, format('copy.%s', $1::integer), 0, h.partition_ids),
       chain_page_extend($1, h.last_id)
FROM chain_head AS h WHERE h.chain_id = $2;

-- copy_pages: the pages of a chain, as those of another
INSERT INTO chain_page (chain_id, first_id, last_id, ids, pids, keys, event_times_ns, payloads)
SELECT $1, first_id, last_id, ids, pids, keys, event_times_ns, payloads
FROM chain_page WHERE chain_id = $2;

-- copy_batches: the batches of a chain, as those of another; their seals are those of the first
INSERT INTO chain_batch
    (chain_id, first_id, last_id, prev_last_id, row_count, epoch, seal, committed_at)
SELECT $1, first_id, last_id, prev_last_id, row_count, epoch, seal, committed_at
FROM chain_batch WHERE chain_id = $2 AND prev_last_id IS NOT NULL;

-- copy_head: the head of a chain, as that of another
UPDATE chain_head AS h SET last_id = o.last_id, last_seal = o.last_seal, epoch = o.epoch
FROM chain_head AS o WHERE h.chain_id = $1 AND o.chain_id = $2;

-- extend: partitions for ids up to one
SELECT chain_page_extend($1, $2);

-- page: what a program would write that only wants the next rows of a row per order
SELECT id, pid, key, event_time_ns, payload
FROM bare_event
WHERE chain_id = $1 AND id > $2 AND id <= $3
ORDER BY id
LIMIT $4;

-- lag: what a DBA would write to see whether a chain is one: rows that do not name the one before.
-- The view has no order: PostgreSQL sorts the rows.
SELECT count(*)
FROM (
    SELECT pid, lag(id, 1, 0::bigint) OVER (ORDER BY id) AS before
    FROM chain_event WHERE chain_id = $1
) linked
WHERE pid <> before;
