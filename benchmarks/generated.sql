-- Chains for measurements, made by the server itself: true links and batches, made-up seals.

-- rows: linked rows, ids without holes, each payload 100 bytes
INSERT INTO chain_event (chain_id, id, pid, key, event_time_ns, payload)
SELECT $1::integer, n, n - 1, format('client-%s#%s', n % 64, n), 1700000000000000000 + n,
       sha512(int8send(n)) || decode(repeat('00', 36), 'hex')
FROM generate_series($2::bigint, $3::bigint) n;

-- batches: the batches of those rows, each of $4 rows; a seal here is the hash of the last id
INSERT INTO chain_batch
    (chain_id, first_id, last_id, prev_last_id, row_count, epoch, seal, committed_at)
SELECT $1::integer, n + 1, n + $4, n, $4, 1, sha256(int8send(n + $4)), now()
FROM generate_series($2::bigint - 1, $3::bigint - 1, $4::bigint) n;

-- extend: partitions for ids up to one
SELECT chain_event_extend($1, $2);

-- head: where the chain stands then
UPDATE chain_head
SET epoch = 1, nonce = sha256('benchmark')::bytea, last_id = $2, published_id = $2,
    last_seal = sha256(int8send($2))
WHERE chain_id = $1;

-- page: what a program would write that only wants the next rows
SELECT id, pid, key, event_time_ns, payload
FROM chain_event
WHERE chain_id = $1 AND id > $2 AND id <= $3
ORDER BY id
LIMIT $4;

-- lag: what a DBA would write to see whether a chain is one: rows that do not name the one before
SELECT count(*)
FROM (
    SELECT pid, lag(id, 1, 0::bigint) OVER (ORDER BY id) AS before
    FROM chain_event WHERE chain_id = $1
) linked
WHERE pid <> before;

-- aggregate: count and sums of all rows
SELECT count(pid) + 0 * (sum(id) - sum(pid))::bigint FROM chain_event WHERE chain_id = $1;
