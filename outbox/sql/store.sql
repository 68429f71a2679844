-- The statements of the relay. A claim is a token: the result of a send is written back only if the
-- row still has the token and one of the expected statuses, so a stale owner finishes nothing.
-- Arrays come sorted by message_id, so that two statements lock common rows in the same order.
--
-- Rows are looked up by `message_id = ANY (ARRAY[...])`, although `=` would mean the same. An `=`
-- of two columns could be merged, and for that the planner considers an ordered read of a whole
-- index. By the statistics of an empty table, which such a table often has, that costs as much as
-- one look-up. A plan made then read the index once for each of 2,000 rows, 2.8 seconds per
-- statement instead of 27 ms. Where rows are wanted in the order of an index, it is `=`: after an
-- array they would be sorted, all that are due, and under a limit nothing is merged.

-- version: which schema is there
SELECT version, upgrade_to FROM outbox_version

-- destinations: everything that messages may go to
SELECT destination AS name, topic, confirm, consumers, confirm_topic, tries_max, resend_seconds,
       resend_seconds_max, queue_seconds_max, resend_filter, payload_bytes_max
  FROM outbox_destination

-- save_destination: set a destination up, or change it
INSERT INTO public.outbox_destination
       (destination, topic, confirm, consumers, confirm_topic, tries_max, resend_seconds,
        resend_seconds_max, queue_seconds_max, resend_filter, payload_bytes_max)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (destination) DO UPDATE SET
       topic = EXCLUDED.topic, confirm = EXCLUDED.confirm, consumers = EXCLUDED.consumers,
       confirm_topic = EXCLUDED.confirm_topic, tries_max = EXCLUDED.tries_max,
       resend_seconds = EXCLUDED.resend_seconds, resend_seconds_max = EXCLUDED.resend_seconds_max,
       queue_seconds_max = EXCLUDED.queue_seconds_max, resend_filter = EXCLUDED.resend_filter,
       payload_bytes_max = EXCLUDED.payload_bytes_max, changed_at = now()

-- destination_to_change: one destination, locked until the transaction ends
SELECT destination AS name, topic, confirm, consumers, confirm_topic, tries_max, resend_seconds,
       resend_seconds_max, queue_seconds_max, resend_filter, payload_bytes_max
  FROM public.outbox_destination WHERE destination = $1 FOR UPDATE

-- lock_destinations: keep others from setting one up until the transaction ends; all may read on
LOCK TABLE public.outbox_destination IN SHARE ROW EXCLUSIVE MODE

-- close_destinations: wait for every transaction that has looked at one, and let none begin
LOCK TABLE public.outbox_destination IN ACCESS EXCLUSIVE MODE

-- unfinished: how many deliveries to one destination wait
SELECT count(*) FROM public.outbox_pending WHERE destination = $1

-- remove_destination: forget one
DELETE FROM public.outbox_destination WHERE destination = $1 RETURNING destination

-- due: the deliveries from $1 on whose time has come, locked, of statuses $3; for each destination
-- at most $2, for those of $4 as many as $5 says, and $6 in all. So no destination blocks another.
SELECT pending.message_id, pending.consumer, pending.destination, pending.status,
       pending.send_count, pending.claim_count, pending.topic, pending."partition",
       pending."offset", extract(epoch FROM now() - pending.sent_at)::float8 AS sent_seconds,
       length(message.payload) AS size
  FROM (SELECT destination AS name,
               coalesce(($5::integer[])[array_position($4::text[], destination)], $2) AS rows_max
          FROM outbox_destination
         WHERE destination >= '') AS wanted
 CROSS JOIN LATERAL (
        SELECT * FROM outbox_pending
         WHERE destination = wanted.name
           AND next_send_at >= $1 AND next_send_at <= now() AND status = ANY($3::smallint[])
         ORDER BY next_send_at LIMIT wanted.rows_max
           FOR UPDATE SKIP LOCKED) AS pending
  LEFT JOIN outbox_message AS message ON message.message_id = ANY (ARRAY[pending.message_id])
 LIMIT $6

-- now: the time of this transaction
SELECT now()

-- claim: take each delivery to send it, and look again after its seconds. It is a try only once its
-- outcome is written: a process that dies in between has most likely sent nothing.
UPDATE outbox_pending AS pending
   SET claim_count = pending.claim_count + 1, claim_token = $4, "offset" = NULL,
       next_send_at = now() + claimed.seconds * interval '1 second'
  FROM unnest($1::uuid[], $2::text[], $3::float8[]) AS claimed (message_id, consumer, seconds)
 WHERE pending.message_id = ANY (ARRAY[claimed.message_id]) AND pending.consumer = claimed.consumer

-- wait: look again at deliveries after their seconds; no try
UPDATE outbox_pending AS pending
   SET next_send_at = now() + queued.seconds * interval '1 second'
  FROM unnest($1::uuid[], $2::text[], $3::float8[]) AS queued (message_id, consumer, seconds)
 WHERE pending.message_id = ANY (ARRAY[queued.message_id]) AND pending.consumer = queued.consumer

-- give_up: make deliveries abnormal, if they are still in one of the statuses $4
UPDATE outbox_pending AS pending
   SET status = 3, next_send_at = 'infinity', claim_token = NULL, claim_count = 0,
       last_error = coalesce(pending.last_error, given_up.reason)
  FROM unnest($1::uuid[], $2::text[], $3::text[]) AS given_up (message_id, consumer, reason)
 WHERE pending.message_id = ANY (ARRAY[given_up.message_id]) AND pending.consumer = given_up.consumer
   AND pending.status = ANY($4::smallint[])
RETURNING pending.message_id, pending.consumer, pending.destination, pending.send_count,
       pending.last_error

-- messages: what is to be sent; the bounds $2 and $3 save a look into other partitions
SELECT message_id, destination, payload, key, headers
  FROM outbox_message
 WHERE message_id = ANY($1::uuid[]) AND message_id BETWEEN $2 AND $3

-- acknowledged: the broker has them: status 1, a try, by token, from one of the statuses $6, if a
-- confirm is asked for, which the row says: its destination may have changed since
UPDATE outbox_pending AS pending
   SET status = 1, send_count = pending.send_count + 1, claim_count = 0, claim_token = NULL,
       topic = acked.topic, "partition" = acked."partition", "offset" = acked."offset",
       sent_at = now(), last_error = NULL
  FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::integer[], $5::bigint[])
    AS acked (message_id, token, topic, "partition", "offset")
 WHERE pending.message_id = ANY (ARRAY[acked.message_id]) AND pending.claim_token = acked.token
   AND pending.status = ANY($6::smallint[]) AND pending.consumer <> ''
RETURNING pending.message_id

-- done_by_broker: the same if that is the end, since no confirm is asked for: by length, since by an
-- `=` the planner would find all of those in the index, and not these
WITH gone AS (
    DELETE FROM outbox_pending AS pending
     USING unnest($1::uuid[], $2::uuid[]) AS acked (message_id, token)
     WHERE pending.message_id = ANY (ARRAY[acked.message_id]) AND pending.claim_token = acked.token
       AND pending.status = ANY($3::smallint[]) AND length(pending.consumer) = 0
    RETURNING pending.message_id, pending.consumer, pending.destination, pending.send_count
)
INSERT INTO outbox_done (message_id, consumer, destination, status, send_count)
SELECT message_id, consumer, destination, 1, send_count + 1 FROM gone
RETURNING message_id

-- failed: a send failed that the broker may have seen: a try; the time to look again stays
UPDATE outbox_pending AS pending
   SET send_count = pending.send_count + 1, claim_count = 0, claim_token = NULL,
       last_error = failed.reason
  FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS failed (message_id, token, reason)
 WHERE pending.message_id = ANY (ARRAY[failed.message_id]) AND pending.claim_token = failed.token
   AND pending.status = ANY($4::smallint[])

-- released: nothing was sent, so it was no try: they are due at once
UPDATE outbox_pending AS pending
   SET claim_token = NULL, claim_count = 0, next_send_at = now(),
       last_error = coalesce(released.reason, pending.last_error)
  FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS released (message_id, token, reason)
 WHERE pending.message_id = ANY (ARRAY[released.message_id]) AND pending.claim_token = released.token
   AND pending.status = ANY($4::smallint[])

-- applied: consumers have applied them: they are done, from one of the statuses $3; returns
-- how many per consumer and destination
WITH gone AS (
    DELETE FROM outbox_pending AS pending
     USING unnest($1::uuid[], $2::text[]) AS applied (message_id, consumer)
     WHERE pending.message_id = ANY (ARRAY[applied.message_id]) AND pending.consumer = applied.consumer
       AND pending.status = ANY($3::smallint[]) AND pending.is_decided
    RETURNING pending.message_id, pending.consumer, pending.destination, pending.status,
              -- A claim without a written outcome was a send, as is plain now.
              pending.send_count + (pending.claim_token IS NOT NULL)::integer AS send_count
), done AS (
    INSERT INTO outbox_done (message_id, consumer, destination, status, send_count)
    SELECT message_id, consumer, destination, 2, send_count FROM gone
)
SELECT destination, consumer, count(*) AS consumed, count(*) FILTER (WHERE status = 0) AS early,
       count(*) FILTER (WHERE status = 3) AS late
  FROM gone GROUP BY destination, consumer

-- known: how many of these deliveries are done already
SELECT count(done.status) AS repeated -- not count(*): a whole index alone must not do
  FROM unnest($1::uuid[], $2::text[]) AS applied (message_id, consumer)
  JOIN outbox_done AS done
    ON done.message_id = ANY (ARRAY[applied.message_id]) AND done.consumer = applied.consumer

-- retrying: their consumers have parked them until then: not sent meanwhile
UPDATE outbox_pending AS pending
   SET next_send_at = greatest(
           pending.next_send_at,
           least(retrying.until, now() + interval '7 days') + $4 * interval '1 second'
       )
  FROM unnest($1::uuid[], $2::text[], $3::timestamptz[])
    AS retrying (message_id, consumer, until)
 WHERE pending.message_id = ANY (ARRAY[retrying.message_id]) AND pending.consumer = retrying.consumer
   AND pending.status = ANY($5::smallint[])

-- save_progress: how far consumers have come; their last report counts, even if it is lower. One
-- that says the same again is written once a minute, to show that the consumer lives.
INSERT INTO outbox_progress AS progress (consumer, topic, "partition", "offset")
SELECT * FROM unnest($1::text[], $2::text[], $3::integer[], $4::bigint[])
ON CONFLICT (consumer, topic, "partition")
DO UPDATE SET "offset" = EXCLUDED."offset", told_at = now()
 WHERE progress."offset" <> EXCLUDED."offset" OR progress.told_at < now() - interval '1 minute'

-- heard: consumers $1 have confirmed messages to destinations $2, whatever progress they report
INSERT INTO outbox_progress AS progress (consumer, topic, "partition", "offset")
SELECT DISTINCT consumer, topic, -1, 0
  FROM unnest($1::text[], $2::text[]) AS heard (consumer, destination)
  JOIN outbox_destination USING (destination)
 ORDER BY consumer, topic
ON CONFLICT (consumer, topic, "partition")
DO UPDATE SET told_at = now() WHERE progress.told_at < now() - interval '1 minute'

-- progress: how far each consumer has come
SELECT consumer, topic, "partition", "offset" FROM outbox_progress

-- save_troubles: topics are in trouble
INSERT INTO outbox_trouble (topic, reason)
SELECT topic, reason FROM unnest($1::text[], $2::text[]) AS found (topic, reason)
ON CONFLICT (topic) DO UPDATE SET reason = EXCLUDED.reason, seen_at = now()

-- end_troubles: topics are no longer in trouble; so are those not seen for an hour
DELETE FROM outbox_trouble WHERE topic = ANY($1::text[]) OR seen_at < now() - interval '1 hour'

-- confirm_key: the key of the tokens and MACs that go with each message
SELECT confirm_key FROM outbox_secret

-- oldest_unfinished: the smallest id that may still be sent: below everything that is not finished,
-- and below what a transaction that is open for at most $1 seconds may still commit
SELECT least((SELECT message_id FROM outbox_pending ORDER BY message_id LIMIT 1),
             outbox_id_at(now() - $1 * interval '1 second'))

-- extend: make the partitions that are needed now and next; returns how many could not be made
SELECT outbox_extend($1, $2, 2)

-- partitions: oldest first, with the time at which each ends, and what it takes on disk
SELECT lower_id,
       to_timestamp(('x' || substr(replace(upper_id::text, '-', ''), 1, 12))::bit(48)::bigint
                    / 1000.0) AS ends_at,
       pg_total_relation_size(('public.outbox_message_' || suffix)::regclass)
     + pg_total_relation_size(('public.outbox_done_' || suffix)::regclass) AS bytes
  FROM outbox_partition
 ORDER BY lower_id

-- drop: drop a partition; NULL if it had to stay
SELECT outbox_drop($1, $2)

-- measure: what the outbox takes on disk; above $1 bytes nothing more is added
SELECT bytes, bytes_max FROM outbox_measure($1)

-- trim: remove strays that are finished and old
SELECT outbox_trim($1, 10000)
