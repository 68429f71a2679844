-- What people look at and do by hand. The filter is the same everywhere, each part of it may be NULL:
-- $1 message ids, $2 destination, $3 consumer, $4 statuses, $5 ids below this one, $6 rows at most.

-- pending: unfinished deliveries, the oldest first
SELECT message_id, consumer, destination, status, send_count, next_send_at, topic, "partition",
       "offset", last_error, NULL::timestamptz AS finished_at
  FROM outbox_pending
 WHERE ($1::uuid[] IS NULL OR message_id = ANY($1)) AND ($2::text IS NULL OR destination = $2)
   AND ($3::text IS NULL OR consumer = $3) AND ($4::smallint[] IS NULL OR status = ANY($4))
   AND ($5::uuid IS NULL OR message_id < $5)
 ORDER BY message_id, consumer LIMIT $6

-- done: finished deliveries, the oldest first
SELECT message_id, consumer, destination, status, send_count, NULL::timestamptz AS next_send_at,
       NULL::text AS topic, NULL::integer AS "partition", NULL::bigint AS "offset",
       NULL::text AS last_error, finished_at
  FROM outbox_done
 WHERE ($1::uuid[] IS NULL OR message_id = ANY($1)) AND ($2::text IS NULL OR destination = $2)
   AND ($3::text IS NULL OR consumer = $3) AND ($4::smallint[] IS NULL OR status = ANY($4))
   AND ($5::uuid IS NULL OR message_id < $5)
 ORDER BY message_id, consumer LIMIT $6

-- unfinished: unfinished deliveries by destination and status, with the oldest message of them
SELECT destination, status, count(*) AS deliveries, min(message_id::text)::uuid AS oldest
  FROM outbox_pending GROUP BY destination, status ORDER BY 1, 2

-- finished: finished deliveries by destination and status
SELECT destination, status, count(*) AS deliveries, NULL::uuid AS oldest
  FROM outbox_done GROUP BY destination, status ORDER BY 1, 2

-- message: one message
SELECT message_id, destination, key, headers, payload, sender, created_at
  FROM outbox_message WHERE message_id = $1

-- acts: what was done by hand to a message
SELECT act, actor, login, reason, consumer, from_status, to_status, acted_at
  FROM delivery_act WHERE message_id = $1 ORDER BY act_id

-- retry: a new round of tries, or of checks, for what is abnormal
WITH chosen AS (
    SELECT message_id, consumer FROM outbox_pending
     WHERE ($1::uuid[] IS NULL OR message_id = ANY($1)) AND ($2::text IS NULL OR destination = $2)
       AND ($3::text IS NULL OR consumer = $3) AND ($4::smallint[] IS NULL OR status = ANY($4))
       AND ($5::uuid IS NULL OR message_id < $5) AND status = 3
     ORDER BY message_id, consumer LIMIT $6 FOR UPDATE
), changed AS (
    UPDATE outbox_pending AS pending
       SET status = CASE WHEN pending.is_decided THEN 0 ELSE 4 END, send_count = 0,
           check_count = 0, next_send_at = now(), claim_token = NULL, "offset" = NULL,
           last_error = NULL
      FROM chosen
     WHERE pending.message_id = chosen.message_id AND pending.consumer = chosen.consumer
    RETURNING pending.message_id, pending.consumer, pending.status
), told AS (
    INSERT INTO delivery_act (message_id, consumer, act, actor, reason, from_status, to_status)
    SELECT message_id, consumer, 'retry', $7, $8, 3, status FROM changed
)
SELECT message_id, consumer, status FROM changed ORDER BY message_id, consumer

-- abandon: end what is abnormal
WITH chosen AS (
    SELECT message_id, consumer FROM outbox_pending
     WHERE ($1::uuid[] IS NULL OR message_id = ANY($1)) AND ($2::text IS NULL OR destination = $2)
       AND ($3::text IS NULL OR consumer = $3) AND ($4::smallint[] IS NULL OR status = ANY($4))
       AND ($5::uuid IS NULL OR message_id < $5) AND status = 3
     ORDER BY message_id, consumer LIMIT $6 FOR UPDATE
), gone AS (
    DELETE FROM outbox_pending AS pending USING chosen
     WHERE pending.message_id = chosen.message_id AND pending.consumer = chosen.consumer
    RETURNING pending.message_id, pending.consumer, pending.destination, pending.send_count
), done AS (
    INSERT INTO outbox_done (message_id, consumer, destination, status, send_count)
    SELECT message_id, consumer, destination, 6, send_count FROM gone
), told AS (
    INSERT INTO delivery_act (message_id, consumer, act, actor, reason, from_status, to_status)
    SELECT message_id, consumer, 'abandon', $7, $8, 3, 6 FROM gone
)
SELECT message_id, consumer, 6::smallint AS status FROM gone ORDER BY message_id, consumer

-- resend: send now what is on its way, with a new round of tries; its status stays
WITH chosen AS (
    SELECT message_id, consumer FROM outbox_pending
     WHERE ($1::uuid[] IS NULL OR message_id = ANY($1)) AND ($2::text IS NULL OR destination = $2)
       AND ($3::text IS NULL OR consumer = $3) AND ($4::smallint[] IS NULL OR status = ANY($4))
       AND ($5::uuid IS NULL OR message_id < $5) AND status IN (0, 1)
     ORDER BY message_id, consumer LIMIT $6 FOR UPDATE
), changed AS (
    UPDATE outbox_pending AS pending
       -- Without an offset it is due by time alone, wherever its consumer stands.
       SET send_count = 0, next_send_at = now(), claim_token = NULL, "offset" = NULL
      FROM chosen
     WHERE pending.message_id = chosen.message_id AND pending.consumer = chosen.consumer
    RETURNING pending.message_id, pending.consumer, pending.status
), told AS (
    INSERT INTO delivery_act (message_id, consumer, act, actor, reason, from_status, to_status)
    SELECT message_id, consumer, 'resend', $7, $8, status, status FROM changed
)
SELECT message_id, consumer, status FROM changed ORDER BY message_id, consumer

-- wake: let the relays look at once, when this commits
SELECT pg_notify('outbox_ready', '')
