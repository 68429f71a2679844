-- What people look at and do by hand. The filter is the same everywhere, each part of it may be
-- NULL: $1 message ids, $2 destination, $3 consumer, $4 statuses, $5 ids below this one, $6 rows at
-- most; only for a look $7, the message's key.

-- pending: unfinished deliveries, oldest first
SELECT message_id, consumer, destination, status, send_count AS tries,
       NULLIF(next_send_at, 'infinity') AS next_send, topic, "partition", "offset", last_error,
       NULL::timestamptz AS finished
  FROM outbox_pending
 WHERE ($1::uuid[] IS NULL OR message_id = ANY($1)) AND ($2::text IS NULL OR destination = $2)
   AND ($3::text IS NULL OR consumer = $3) AND ($4::smallint[] IS NULL OR status = ANY($4))
   AND ($5::uuid IS NULL OR message_id < $5)
   AND ($7::text IS NULL OR EXISTS (SELECT FROM outbox_message AS message
                                     WHERE message.message_id = outbox_pending.message_id
                                       AND message.key = $7))
 ORDER BY message_id, consumer LIMIT $6

-- done: finished deliveries, oldest first
SELECT message_id, consumer, destination, status, send_count AS tries,
       NULL::timestamptz AS next_send, NULL::text AS topic, NULL::integer AS "partition",
       NULL::bigint AS "offset", NULL::text AS last_error, finished_at AS finished
  FROM outbox_done
 WHERE ($1::uuid[] IS NULL OR message_id = ANY($1)) AND ($2::text IS NULL OR destination = $2)
   AND ($3::text IS NULL OR consumer = $3) AND ($4::smallint[] IS NULL OR status = ANY($4))
   AND ($5::uuid IS NULL OR message_id < $5)
   AND ($7::text IS NULL OR EXISTS (SELECT FROM outbox_message AS message
                                     WHERE message.message_id = outbox_done.message_id
                                       AND message.key = $7))
 ORDER BY message_id, consumer LIMIT $6

-- unfinished: unfinished deliveries by destination and status, with the oldest message of them
SELECT destination, status, count(*) AS deliveries, min(message_id::text)::uuid AS oldest
  FROM outbox_pending GROUP BY destination, status ORDER BY 1, 2

-- finished: finished deliveries by destination and status
SELECT destination, status, count(*) AS deliveries, NULL::uuid AS oldest
  FROM outbox_done GROUP BY destination, status ORDER BY 1, 2

-- troubles: by destination, the topics that relays can't use
SELECT known.destination, trouble.topic, trouble.reason
  FROM outbox_destination AS known
  JOIN outbox_trouble AS trouble ON trouble.topic IN (known.topic, known.confirm_topic)
 WHERE trouble.seen_at > now() - interval '5 minutes'
 ORDER BY 1, 2

-- overdue: by destination and status, deliveries whose next action fell due more than $1 seconds ago
SELECT destination, status, count(*) AS deliveries,
       extract(epoch FROM now() - min(next_send_at))::float8 AS seconds
  FROM outbox_pending WHERE next_send_at < now() - make_interval(secs => $1)
 GROUP BY destination, status

-- silent: by destination, consumers not heard of for $1 seconds, though the broker has had a message
-- for as long that they have not read; and when the last word came, NULL if none ever did
WITH waiting AS (
    SELECT DISTINCT pending.destination, pending.consumer
      FROM outbox_pending AS pending
      LEFT JOIN outbox_progress AS progress USING (consumer, topic, "partition")
     WHERE pending.status = 1
       -- What lies below its progress was read: parked for a retry, or lost and resent soon.
       AND (progress."offset" <= pending."offset") IS NOT FALSE
       -- Sent once, so long ago; or resent since, and made so long ago.
       AND (pending.sent_at < now() - make_interval(secs => $1) OR pending.send_count > 1
            AND pending.message_id < outbox_id_at(now() - make_interval(secs => $1)))
)
SELECT waiting.destination, waiting.consumer, heard.at AS heard_at
  FROM waiting LEFT JOIN outbox_destination AS known USING (destination)
 CROSS JOIN LATERAL (SELECT max(told_at) AS at FROM outbox_progress AS progress
                      WHERE progress.consumer = waiting.consumer AND progress.topic = known.topic
       ) AS heard
 WHERE (heard.at >= now() - make_interval(secs => $1)) IS NOT TRUE
 ORDER BY 1, 2

-- relay_seen: seconds since a relay, or a person, measured the outbox; relays do once a minute
SELECT greatest(extract(epoch FROM now() - measured_at), 0)::float8 FROM outbox_space

-- message: one message
SELECT message_id, destination, key, headers, payload, sender, created_at
  FROM outbox_message WHERE message_id = $1

-- acts: what was done by hand to a message
SELECT act, actor, login, reason, consumer, from_status, to_status, acted_at
  FROM delivery_act WHERE message_id = $1 ORDER BY act_id

-- last_acts: what was done by hand to all messages, those that were dropped since, too; newest first
SELECT act_id, acted_at, act, message_id, consumer, from_status, to_status, actor, login, reason
  FROM delivery_act WHERE $1::float8 IS NULL OR acted_at > now() - make_interval(secs => $1)
 ORDER BY act_id DESC LIMIT $2

-- act: do $7 (retry, abandon, resend) to them, as the actor $8 for the reason $9
SELECT message_id, consumer, status FROM outbox_act($7, $1, $2, $3, $4, $5, $6, $8, $9)
