-- The statements of the message service. Every one names the sender: a client sees only its own
-- messages.

-- stored: which of these messages are stored, for comparison with what is given again
SELECT message_id, destination, key, headers, payload, sender
  FROM outbox_message
 WHERE message_id = ANY($1::uuid[]) AND message_id BETWEEN $2 AND $3

-- message: one message of the sender $2
SELECT message_id, destination, payload, key, headers, created_at
  FROM outbox_message
 WHERE message_id = $1 AND sender = $2

-- deliveries: the state of the deliveries of one message
SELECT message_id, consumer, destination, status, send_count, check_count, last_error,
       NULL::timestamptz AS finished_at
  FROM outbox_pending WHERE message_id = $1
 UNION ALL
SELECT message_id, consumer, destination, status, send_count, 0, NULL, finished_at
  FROM outbox_done WHERE message_id = $1
 ORDER BY consumer

-- page: deliveries of the sender $1 after ($2, $3), to destination $4, in status $5; $6 rows
-- Its messages are read in order, as far as the page goes, and none of other senders. The ties are
-- further deliveries of the last message, since they are sorted only here.
SELECT * FROM (
    SELECT delivery.*
      FROM outbox_message AS message
     CROSS JOIN LATERAL (
            SELECT message_id, consumer, destination, status, send_count, check_count, last_error,
                   NULL::timestamptz AS finished_at
              FROM outbox_pending WHERE message_id = ANY (ARRAY[message.message_id])
             UNION ALL
            SELECT message_id, consumer, destination, status, send_count, 0, NULL, finished_at
              FROM outbox_done WHERE message_id = ANY (ARRAY[message.message_id])) AS delivery
     WHERE message.sender = $1 AND message.message_id >= $2
       AND (delivery.message_id, delivery.consumer) > ($2, $3)
       AND ($4::text IS NULL OR delivery.destination = $4)
       AND ($5::smallint IS NULL OR delivery.status = $5)
     ORDER BY message.message_id FETCH FIRST ($6) ROWS WITH TIES
) AS deliveries
 ORDER BY message_id, consumer LIMIT $6

-- ready: whether the outbox answers
SELECT version FROM outbox_version
