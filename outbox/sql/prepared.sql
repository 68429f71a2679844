-- The statements for messages that are prepared and not yet decided (mode 6). A check is claimed by
-- a token; the result of its answer is written only if the row still has the token and was never
-- decided, so an answer that comes after the decision changes nothing. Rows are looked up by `= ANY
-- (ARRAY[...])`: see store.sql.

-- claim_checks: claim checks that are due from $6 to $1 by token $2, and look again at $3; at most
-- $4 rows, none of senders $5, those due for longest first
-- Senders are found one after the other, not row by row: what is due to one costs others nothing.
WITH RECURSIVE known (sender) AS (
    SELECT min(asked) FROM outbox_pending WHERE asked >= ''
     UNION ALL
    SELECT (SELECT min(asked) FROM outbox_pending WHERE asked > known.sender)
      FROM known WHERE known.sender IS NOT NULL
), longest AS (
    SELECT pending.message_id, pending.consumer
      FROM known
     CROSS JOIN LATERAL (
            SELECT message_id, consumer, next_send_at FROM outbox_pending
             WHERE asked = known.sender AND next_send_at BETWEEN $6 AND $1 AND status = 4
             ORDER BY next_send_at LIMIT $4) AS pending
     WHERE known.sender <> ALL ($5::text[])
     ORDER BY pending.next_send_at LIMIT $4
), due AS (
    -- Locked only now: rows that are left to others are not touched.
    SELECT pending.message_id, pending.consumer
      FROM longest
     CROSS JOIN LATERAL (
            SELECT message_id, consumer FROM outbox_pending
             WHERE message_id = ANY (ARRAY[longest.message_id]) AND consumer = longest.consumer
               AND next_send_at BETWEEN $6 AND $1 AND status = 4
               FOR UPDATE SKIP LOCKED) AS pending
), claimed AS (
    UPDATE outbox_pending AS pending
       SET claim_token = $2, next_send_at = $3
      FROM due
     WHERE pending.message_id = ANY (ARRAY[due.message_id]) AND pending.consumer = due.consumer
    RETURNING pending.message_id, pending.check_count, pending.asked
)
SELECT message_id, max(check_count)::integer AS check_count, min(asked) AS sender
  FROM claimed
 GROUP BY message_id
 ORDER BY message_id

-- ask_again: checks without a decision: count what was answered, and look again at their time
UPDATE outbox_pending AS pending
   SET claim_token = NULL, check_count = asked.check_count, next_send_at = asked.at,
       last_error = asked.reason
  FROM unnest($1::uuid[], $2::integer[], $3::timestamptz[], $4::text[])
    AS asked (message_id, check_count, at, reason)
 WHERE pending.message_id = ANY (ARRAY[asked.message_id])
   AND pending.claim_token = $5 AND pending.status = 4

-- checks_used_up: answered as often as allowed, and never with a decision: from the statuses $4
UPDATE outbox_pending AS pending
   SET status = 3, next_send_at = 'infinity', claim_token = NULL,
       check_count = asked.check_count,
       last_error = 'its sender was asked ' || asked.check_count || ' times, and did not know'
  FROM unnest($1::uuid[], $2::integer[]) AS asked (message_id, check_count)
 WHERE pending.message_id = ANY (ARRAY[asked.message_id])
   AND pending.claim_token = $3 AND pending.status = ANY($4::smallint[]) AND NOT pending.is_decided
RETURNING pending.message_id, pending.consumer, pending.destination, pending.send_count,
       pending.last_error

-- committed: the sender decided for messages: due at once, from the statuses $2; $3: by that claim
UPDATE outbox_pending
   SET status = 0, is_decided = true, asked = NULL, send_count = 0, claim_count = 0,
       next_send_at = now(), claim_token = NULL, last_error = NULL
 WHERE message_id = ANY($1::uuid[]) AND status = ANY($2::smallint[]) AND NOT is_decided
   AND ($3::uuid IS NULL OR claim_token = $3)
RETURNING message_id

-- rolled_back: the sender decided against messages: cancelled, from the statuses $2; $3 as above
WITH gone AS (
    DELETE FROM outbox_pending
     WHERE message_id = ANY($1::uuid[]) AND status = ANY($2::smallint[]) AND NOT is_decided
       AND ($3::uuid IS NULL OR claim_token = $3)
    RETURNING message_id, consumer, destination, send_count
), done AS (
    INSERT INTO outbox_done (message_id, consumer, destination, status, send_count)
    SELECT message_id, consumer, destination, 5, send_count FROM gone
)
SELECT DISTINCT message_id FROM gone

-- standing: who gave messages, and which statuses their deliveries have, decided or not
SELECT message.message_id, message.sender,
       coalesce((SELECT array_agg(status) FROM outbox_pending AS pending
                  WHERE pending.message_id = message.message_id), '{}') AS pending,
       coalesce((SELECT bool_and(is_decided) FROM outbox_pending AS pending
                  WHERE pending.message_id = message.message_id), true) AS is_decided,
       coalesce((SELECT array_agg(status) FROM outbox_done AS done
                  WHERE done.message_id = message.message_id), '{}') AS done
  FROM outbox_message AS message
 WHERE message.message_id = ANY($1::uuid[]) AND message.message_id BETWEEN $2 AND $3

-- decide: on the business's own connection, in its transaction: it is done for the message $1; and on
-- which server
SELECT public.outbox_decide($1::text::uuid)::text,
       (SELECT system_identifier FROM pg_control_system())::text,
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint
       END::text

-- check_decision: the same for the answer to a check of the message $1, which waits $2 ms at most
SELECT public.outbox_check_decision($1::text::uuid, $2),
       (SELECT system_identifier FROM pg_control_system())::text,
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint
       END::text
