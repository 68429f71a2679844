-- The statements of a sender of mode 5, over the outbox's own tables (role outbox_relay). Why they
-- use `= ANY (ARRAY[...])` and not `=`: see store.sql.

-- A first send is not written in this mode: a claim that is left from it counts as a try.

-- claim: take those of these messages that may be resent to consumer $2, by token $3; at most $5
-- claims in a row may be without an outcome
UPDATE outbox_pending AS pending
   SET claim_token = $3, "offset" = NULL,
       send_count = greatest(pending.send_count, (pending.claim_token IS NOT NULL)::integer),
       claim_count = CASE pending.send_count WHEN 0 THEN 1 ELSE pending.claim_count + 1 END,
       next_send_at = now() + least(
           known.resend_seconds * power(2::float8, least(greatest(pending.send_count, 1), 60)),
           known.resend_seconds_max
       ) * interval '1 second'
  FROM outbox_destination AS known
 WHERE pending.message_id = ANY($1::uuid[]) AND pending.consumer = $2
   AND known.destination = ANY (ARRAY[pending.destination])
   AND pending.status = ANY($4::smallint[]) AND pending.claim_count < $5
   AND greatest(pending.send_count, (pending.claim_token IS NOT NULL)::integer) < known.tries_max
RETURNING pending.message_id

-- sent: the broker has taken them: a try, by token
UPDATE outbox_pending AS pending
   SET send_count = pending.send_count + 1, claim_count = 0, claim_token = NULL,
       last_error = NULL
 WHERE pending.message_id = ANY($1::uuid[]) AND pending.claim_token = $2
   AND pending.status = ANY($3::smallint[])

-- give_up: those whose tries or claims are used up become abnormal, from the statuses $3
UPDATE outbox_pending AS pending
   SET status = 3, next_send_at = 'infinity', claim_token = NULL, claim_count = 0,
       send_count = greatest(pending.send_count, (pending.claim_token IS NOT NULL)::integer),
       last_error = coalesce(pending.last_error, 'not confirmed after its last try')
  FROM outbox_destination AS known
 WHERE pending.message_id = ANY($1::uuid[]) AND pending.consumer = $2
   AND known.destination = ANY (ARRAY[pending.destination])
   AND pending.status = ANY($3::smallint[])
   AND (greatest(pending.send_count, (pending.claim_token IS NOT NULL)::integer) >= known.tries_max
        OR pending.claim_count >= $4)
RETURNING pending.message_id, pending.consumer, pending.destination, pending.send_count,
       pending.last_error
