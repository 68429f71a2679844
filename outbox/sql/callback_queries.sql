-- The statements of the callback service. Times are passed in: the service's clock decides, so that
-- one clock measures a delay. Arrays come sorted by message_id: common rows are locked in one
-- order.
--
-- Rows are looked up by `= ANY (ARRAY[...])`, as in the relay's statements and for the same reason:
-- an `=` could be merged with a whole index, once per row, by the statistics of a table that was
-- empty when they were made.

-- version: which schema is there
SELECT version, upgrade_to FROM callback_version

-- add_checks: messages to be checked at $4, or later if they are parked; one that was confirmed
-- before is returned at $5
INSERT INTO callback_delivery AS known (message_id, consumer, sender, state, due_at)
SELECT message_id, consumer, $3, 0, $4
  FROM unnest($1::uuid[]) AS message_id CROSS JOIN unnest($2::text[]) AS consumer
ON CONFLICT (message_id, consumer) DO UPDATE
   SET sender = EXCLUDED.sender,
       due_at = CASE known.state WHEN 0 THEN greatest(known.due_at, EXCLUDED.due_at) ELSE $5 END
 WHERE known.sender IS NULL

-- add_confirms: consumers say, by proofs $5, that they have applied messages; returned from $4
-- With two proofs the later one counts: a forged one must not keep the right one out.
INSERT INTO callback_delivery AS known
       (message_id, consumer, sender, state, due_at, confirmed_at, proof)
SELECT message_id, consumer, NULL, 1, 'infinity', $3, proof
  FROM unnest($1::uuid[], $2::text[], $5::bytea[]) AS applied (message_id, consumer, proof)
ON CONFLICT (message_id, consumer) DO UPDATE
   SET state = 1, confirmed_at = EXCLUDED.confirmed_at, proof = EXCLUDED.proof, claim_token = NULL,
       due_at = CASE WHEN known.sender IS NULL THEN 'infinity' ELSE $4::timestamptz END
 WHERE known.state IN (0, 3) OR known.state = 1 AND known.proof <> EXCLUDED.proof

-- postpone: consumers have parked messages until then: not asked about meanwhile; the outcome of a
-- question that is under way counts no more
INSERT INTO callback_delivery AS known (message_id, consumer, state, due_at)
SELECT message_id, consumer, 0, until
  FROM unnest($1::uuid[], $2::text[], $3::timestamptz[]) AS retrying (message_id, consumer, until)
ON CONFLICT (message_id, consumer) DO UPDATE
   SET due_at = greatest(known.due_at, EXCLUDED.due_at), claim_token = NULL
 WHERE known.state = 0

-- read_until: everything in partitions at their times has been taken in; they never go back
INSERT INTO callback_intake AS known (topic, "partition", read_until)
SELECT * FROM unnest($1::text[], $2::integer[], $3::timestamptz[])
ON CONFLICT (topic, "partition") DO UPDATE SET read_until = EXCLUDED.read_until
 WHERE known.read_until < EXCLUDED.read_until

-- senders: to whom something is due at $1 in state $2, found one after the other, not row by row
WITH RECURSIVE known (sender) AS (
    SELECT min(sender) FROM callback_delivery WHERE state = $2 AND due_at < 'infinity'
     UNION ALL
    SELECT (SELECT min(sender) FROM callback_delivery
             WHERE state = $2 AND sender > known.sender AND due_at < 'infinity')
      FROM known WHERE known.sender IS NOT NULL
)
SELECT known.sender
  FROM known
 CROSS JOIN LATERAL (
        SELECT FROM callback_delivery
         WHERE state = $2 AND sender = ANY (ARRAY[known.sender])
           AND due_at <= $1 AND due_at < 'infinity'
         LIMIT 1) AS due

-- claim: take what is due to the sender $7 at $1 in state $2 by token $3, to be due again at $4; at
-- most $5 rows
WITH due AS (
    SELECT message_id, consumer FROM callback_delivery
     WHERE state = $2 AND sender = $7 AND due_at <= $1 AND due_at < 'infinity'
       -- Do not ask for a confirm that may be unread in the topics: after a stop, for example.
       AND (state <> 0 OR due_at <= (SELECT coalesce(min(read_until), '-infinity')
                                       FROM callback_intake WHERE topic = ANY($6::text[])))
     ORDER BY due_at LIMIT $5
       FOR UPDATE SKIP LOCKED
)
UPDATE callback_delivery AS known
   SET claim_token = $3, due_at = $4
  FROM due
 WHERE known.message_id = ANY (ARRAY[due.message_id]) AND known.consumer = due.consumer
RETURNING known.message_id, known.consumer, known.ask_count, known.proof

-- asked: the outcome of questions; only where the claim still holds and no confirm has come
UPDATE callback_delivery AS known
   SET state = CASE WHEN asked.is_ended THEN 3 ELSE 0 END, ask_count = asked.ask_count,
       due_at = CASE WHEN asked.is_ended THEN 'infinity' ELSE asked.due_at END, last_error = asked.reason, claim_token = NULL
  FROM unnest($1::uuid[], $2::text[], $3::boolean[], $4::integer[], $5::timestamptz[], $6::text[])
    AS asked (message_id, consumer, is_ended, ask_count, due_at, reason)
 WHERE known.message_id = ANY (ARRAY[asked.message_id]) AND known.consumer = asked.consumer
   AND known.claim_token = $7 AND known.state = 0

-- returned: their senders know of these confirms
UPDATE callback_delivery AS known
   SET state = 2, due_at = 'infinity', claim_token = NULL, last_error = NULL
  FROM unnest($1::uuid[], $2::text[]) AS confirmed (message_id, consumer)
 WHERE known.message_id = ANY (ARRAY[confirmed.message_id]) AND known.consumer = confirmed.consumer
   AND known.claim_token = $3 AND known.state = 1

-- refused: their sender does not believe these confirms: they wait for others; it is asked from $4
UPDATE callback_delivery AS known
   SET state = 0, due_at = $4, claim_token = NULL, proof = NULL, confirmed_at = NULL,
       last_error = 'a confirm of it was forged'
  FROM unnest($1::uuid[], $2::text[]) AS confirmed (message_id, consumer)
 WHERE known.message_id = ANY (ARRAY[confirmed.message_id]) AND known.consumer = confirmed.consumer
   AND known.claim_token = $3 AND known.state = 1

-- not_returned: the report to the sender failed; retry at $4
UPDATE callback_delivery AS known
   SET due_at = $4, claim_token = NULL, last_error = $5
  FROM unnest($1::uuid[], $2::text[]) AS confirmed (message_id, consumer)
 WHERE known.message_id = ANY (ARRAY[confirmed.message_id]) AND known.consumer = confirmed.consumer
   AND known.claim_token = $3 AND known.state = 1

-- trim: forget what has ended, what no sender asked to check, and what the unknown senders $3 did,
-- of messages below $1; at most $2. Returns how many, and how many of them only for $3
WITH ended AS (
    SELECT message_id, consumer FROM callback_delivery
     WHERE message_id < $1
       AND (due_at = 'infinity' OR sender IS NULL OR sender = ANY($3::text[]))
     ORDER BY message_id LIMIT $2
), gone AS (
    DELETE FROM callback_delivery AS known USING ended
     WHERE known.message_id = ANY (ARRAY[ended.message_id]) AND known.consumer = ended.consumer
    RETURNING known.sender, known.due_at
)
SELECT count(*), count(*) FILTER (WHERE sender IS NOT NULL AND due_at < 'infinity') FROM gone
