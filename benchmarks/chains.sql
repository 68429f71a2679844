-- What is set on the servers of the benchmarks, and chains that are made by the server itself: true links, batches and
-- seals.

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

-- skipped: the published ranges of a chain that were skipped
SELECT count(*) FROM chain_skip WHERE chain_id = $1;

-- pages: linked rows, ids without holes, each payload 100 bytes, in pages of $4 rows
INSERT INTO chain_page (chain_id, first_id, last_id, ids, pids, keys, event_times_ns, payloads)
SELECT $1::integer, ids[1], ids[cardinality(ids)], ids, pids, keys, event_times_ns, payloads
FROM generate_series($2::bigint, $3::bigint, $4::bigint) AS first_id
CROSS JOIN LATERAL (
    SELECT array_agg(n) AS ids, array_agg(n - 1) AS pids,
           array_agg(format('client-%s#%s', n % 64, n)) AS keys,
           array_agg(1700000000000000000 + n) AS event_times_ns,
           array_agg(sha512(int8send(n)) || decode(repeat('00', 36), 'hex')) AS payloads
    FROM generate_series(first_id, least(first_id + $4 - 1, $3)) n
) AS columns;

-- rows: the same rows as a row per order
INSERT INTO bare_event (chain_id, id, pid, key, event_time_ns, payload)
SELECT $1::integer, n, n - 1, format('client-%s#%s', n % 64, n), 1700000000000000000 + n,
       sha512(int8send(n)) || decode(repeat('00', 36), 'hex')
FROM generate_series($2::bigint, $3::bigint) n;

-- contents: the batches of those rows, each of $4 rows, and the digest of what its seal covers
SELECT min(first_id) AS first_id, max(last_id) AS last_id,
       sha256(string_agg(substr(array_send(ids), 21), '' ORDER BY last_id)
              || string_agg(substr(array_send(pids), 21), '' ORDER BY last_id)
              || string_agg(substr(array_send(keys), 21), '' ORDER BY last_id)
              || string_agg(substr(array_send(event_times_ns), 21), '' ORDER BY last_id)
              || string_agg(substr(array_send(payloads), 21), '' ORDER BY last_id)) AS content
FROM chain_page
WHERE chain_id = $1 AND last_id >= $2 AND last_id <= $3
GROUP BY (first_id - $2) / $4
ORDER BY first_id;

-- batches: the same batches with their seals, committed $5 microseconds after 1970 began
INSERT INTO chain_batch
    (chain_id, first_id, last_id, prev_last_id, row_count, epoch, seal, committed_at)
SELECT $1::integer, first_id, last_id, first_id - 1, last_id - first_id + 1, 1, seal,
       timestamptz '1970-01-01 00:00:00Z' + $5::bigint * interval '1 microsecond'
FROM unnest($2::bigint[], $3::bigint[], $4::bytea[]) AS batch (first_id, last_id, seal);

-- last_seal: the seal that the chain stands at
SELECT last_seal FROM chain_head WHERE chain_id = $1;

-- extend: partitions for ids up to one
SELECT chain_page_extend($1, $2);

-- head: where the chain stands then
UPDATE chain_head
SET epoch = 1, nonce = sha256('benchmark')::bytea, last_id = $2, published_id = $2,
    last_seal = $3
WHERE chain_id = $1;

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

-- aggregate: count and sums of all rows
SELECT count(pid) + 0 * (sum(id) - sum(pid))::bigint FROM chain_event WHERE chain_id = $1;
