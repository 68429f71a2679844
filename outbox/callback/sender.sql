-- The statements of a sender of mode 5, over the outbox's own tables (role outbox_relay). Why `= ANY
-- (ARRAY[...])` stands for `=`: see outbox/store.sql.

-- claim: count a try of those of these messages that may be sent again to consumer $2, by token $3
UPDATE outbox_pending AS pending
   SET send_count = pending.send_count + 1, claim_token = $3, "offset" = NULL,
       next_send_at = now() + least(
           known.resend_seconds * power(2::float8, least(pending.send_count, 60)),
           known.resend_seconds_max
       ) * interval '1 second'
  FROM outbox_destination AS known
 WHERE pending.message_id = ANY($1::uuid[]) AND pending.consumer = $2
   AND known.destination = ANY (ARRAY[pending.destination])
   AND pending.status = ANY($4::smallint[]) AND pending.send_count < known.tries_max
RETURNING pending.message_id

-- give_up: those whose tries are used up become abnormal, from the statuses $3
UPDATE outbox_pending AS pending
   SET status = 3, next_send_at = 'infinity', claim_token = NULL,
       last_error = coalesce(pending.last_error, 'not confirmed after its last try')
  FROM outbox_destination AS known
 WHERE pending.message_id = ANY($1::uuid[]) AND pending.consumer = $2
   AND known.destination = ANY (ARRAY[pending.destination])
   AND pending.status = ANY($3::smallint[]) AND pending.send_count >= known.tries_max
RETURNING pending.message_id, pending.consumer, pending.destination, pending.send_count,
       pending.last_error
