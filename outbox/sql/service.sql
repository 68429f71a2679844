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
SELECT * FROM (
    (SELECT pending.message_id, pending.consumer, pending.destination, pending.status,
            pending.send_count, pending.check_count, pending.last_error,
            NULL::timestamptz AS finished_at
       FROM outbox_pending AS pending JOIN outbox_message AS message USING (message_id)
      WHERE message.sender = $1 AND (pending.message_id, pending.consumer) > ($2, $3)
        AND ($4::text IS NULL OR pending.destination = $4)
        AND ($5::smallint IS NULL OR pending.status = $5)
      ORDER BY pending.message_id, pending.consumer LIMIT $6)
     UNION ALL
    (SELECT done.message_id, done.consumer, done.destination, done.status,
            done.send_count, 0, NULL, done.finished_at
       FROM outbox_done AS done JOIN outbox_message AS message USING (message_id)
      WHERE message.sender = $1 AND (done.message_id, done.consumer) > ($2, $3)
        AND ($4::text IS NULL OR done.destination = $4)
        AND ($5::smallint IS NULL OR done.status = $5)
      ORDER BY done.message_id, done.consumer LIMIT $6)
) AS deliveries
 ORDER BY message_id, consumer LIMIT $6

-- ready: whether the outbox answers
SELECT version FROM outbox_version
