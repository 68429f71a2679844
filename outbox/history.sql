-- The statements of retention: partitions of both histories are made, measured and dropped.

-- extend: make the partitions that are needed now and next
SELECT outbox_extend($1, $2, 2)

-- partitions: the oldest first, with the time at which each ends, and what it takes on disk
SELECT lower_id,
       to_timestamp(('x' || substr(replace(upper_id::text, '-', ''), 1, 12))::bit(48)::bigint
                    / 1000.0) AS ends_at,
       pg_total_relation_size(('public.outbox_message_' || suffix)::regclass)
     + pg_total_relation_size(('public.outbox_done_' || suffix)::regclass) AS bytes
  FROM outbox_partition
 ORDER BY lower_id

-- drop: drop a partition; NULL when it had to stay
SELECT outbox_drop($1, $2)

-- measure: what the outbox takes on disk; above $1 bytes nothing more is added
SELECT bytes, bytes_max FROM outbox_measure($1)

-- trim: remove strays that are finished and old
SELECT outbox_trim($1, 10000)
