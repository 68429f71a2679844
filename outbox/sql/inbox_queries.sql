-- The queries of a consumer to its own database. $1 is the consumer's number, unless stated
-- otherwise.

-- register: make the row of a new consumer, by its name
INSERT INTO inbox_consumer (name) VALUES ($1) ON CONFLICT (name) DO NOTHING;

-- find_consumer: the number and horizon of a consumer, by its name, with the schema's version
SELECT c.consumer_id, c.horizon, v.version, v.upgrade_to
  FROM inbox_version v LEFT JOIN inbox_consumer c ON c.name = $1;

-- extend: make the partitions of the day of a time ($1) and of the two after it; returns how many
-- could not be made
SELECT inbox_extend($1);

-- claim: record messages as applied, in the transaction of their effect; returns the new ones
-- It waits for a worker that has recorded the same id and not committed yet. In the order of ids,
-- so that two batches never wait for each other.
INSERT INTO inbox (message_id, consumer_id, topic, topic_partition, record_offset, received_at)
SELECT g.message_id, c.consumer_id, g.topic, g.topic_partition, g.record_offset, g.received_at
  FROM unnest($2::uuid[], $3::bytea[], $4::text[], $5::integer[], $6::bigint[], $7::timestamptz[])
       AS g (message_id, key, topic, topic_partition, record_offset, received_at)
  JOIN inbox_consumer c ON c.consumer_id = $1 AND g.message_id >= c.horizon
 WHERE NOT EXISTS (SELECT FROM inbox_parked p
                    WHERE p.consumer_id = $1 AND p.message_id = g.message_id)
   AND NOT EXISTS (SELECT FROM inbox_parked p WHERE p.consumer_id = $1 AND p.key = g.key)
   AND NOT EXISTS (SELECT FROM inbox_dead d
                    WHERE d.consumer_id = $1 AND d.message_id = g.message_id)
 ORDER BY g.message_id
ON CONFLICT DO NOTHING
RETURNING message_id;

-- admit: the messages that an idempotent handler may work on, since nothing is in their way
SELECT g.message_id
  FROM unnest($2::uuid[], $3::bytea[]) AS g (message_id, key)
 WHERE NOT EXISTS (SELECT FROM inbox_parked p
                    WHERE p.consumer_id = $1 AND p.message_id = g.message_id)
   AND NOT EXISTS (SELECT FROM inbox_parked p WHERE p.consumer_id = $1 AND p.key = g.key)
   AND NOT EXISTS (SELECT FROM inbox_dead d
                    WHERE d.consumer_id = $1 AND d.message_id = g.message_id);

-- judge: why messages could not be claimed
SELECT g.message_id,
       i.message_id IS NOT NULL AS is_applied,
       p.message_id IS NOT NULL AS is_parked,
       d.message_id IS NOT NULL AS is_dead,
       EXISTS (SELECT FROM inbox_parked h
                WHERE h.consumer_id = $1 AND h.key = g.key) AS is_key_parked,
       g.message_id < c.horizon AS is_below_horizon
  FROM unnest($2::uuid[], $3::bytea[]) AS g (message_id, key)
  JOIN inbox_consumer c ON c.consumer_id = $1
  LEFT JOIN inbox i ON i.message_id = g.message_id AND i.consumer_id = $1
  LEFT JOIN inbox_parked p ON p.message_id = g.message_id AND p.consumer_id = $1
  LEFT JOIN inbox_dead d ON d.message_id = g.message_id AND d.consumer_id = $1;

-- lock_keys: allow one transaction at a time to change which message of these keys is tried
SELECT inbox_lock_keys($1, $2);

-- applied: which messages a consumer, by its name, has applied
SELECT i.message_id
  FROM inbox_consumer c JOIN inbox i ON i.consumer_id = c.consumer_id
 WHERE c.name = $1 AND i.message_id = ANY ($2::uuid[]);

-- park: put a message aside; after the first one of its key if that is there
INSERT INTO inbox_parked (consumer_id, message_id, place, destination, topic, topic_partition,
    record_offset, received_at, key, confirm_topic, confirm_token, headers, payload, failures,
    due_at, last_error)
SELECT $1, $2, coalesce(max(h.place), 0) + 1, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
       CASE WHEN max(h.place) IS NULL THEN $14::timestamptz END,
       $15
  FROM inbox_parked h WHERE h.consumer_id = $1 AND h.key = $8
ON CONFLICT DO NOTHING;

-- park_in_turn: put many messages aside after the first ones of their keys
-- If such a first one has gone meanwhile, the first of these takes its place.
INSERT INTO inbox_parked (consumer_id, message_id, place, destination, topic, topic_partition,
    record_offset, received_at, key, confirm_topic, confirm_token, headers, payload, failures,
    due_at, last_error)
SELECT $1, g.message_id,
       coalesce(h.place, 0) + row_number() OVER (PARTITION BY g.key ORDER BY g.place),
       g.destination, g.topic, g.topic_partition, g.record_offset, g.received_at,
       g.key, g.confirm_topic, g.confirm_token, g.headers, g.payload, 0,
       CASE WHEN row_number() OVER (PARTITION BY g.key ORDER BY g.place) = 1 AND h.place IS NULL
            THEN $13::timestamptz END,
       $14
  FROM unnest($2::uuid[], $3::text[], $4::text[], $5::integer[], $6::bigint[], $7::timestamptz[],
              $8::bytea[], $9::text[], $10::bytea[], $11::bytea[], $12::bytea[])
       WITH ORDINALITY AS g (message_id, destination, topic, topic_partition, record_offset,
                             received_at, key, confirm_topic, confirm_token, headers, payload,
                             place)
 CROSS JOIN LATERAL (SELECT max(p.place) AS place FROM inbox_parked p
                      WHERE p.consumer_id = $1 AND p.key = g.key) AS h
ON CONFLICT DO NOTHING;

-- parked_until: until when parked messages wait, or the first ones of their keys
SELECT p.message_id,
       coalesce(p.due_at, (SELECT min(h.due_at) FROM inbox_parked h
                            WHERE h.consumer_id = $1 AND h.key = p.key)) AS due_at
  FROM inbox_parked p
 WHERE p.consumer_id = $1 AND p.message_id = ANY ($2::uuid[]);

-- waiting: up to $4 messages that wait for a parked one of their key, from a place on
SELECT place, message_id, confirm_topic, confirm_token, topic, topic_partition, record_offset
  FROM inbox_parked
 WHERE consumer_id = $1 AND key = $2 AND place > $3 AND due_at IS NULL
 ORDER BY place LIMIT $4;

-- take_due: lock one parked message that is due from $2 to $3; others take other messages
SELECT message_id, destination, topic, topic_partition, record_offset, received_at, key,
       confirm_topic, confirm_token, headers, payload, failures
  FROM inbox_parked
 WHERE consumer_id = $1 AND due_at BETWEEN $2 AND $3
 ORDER BY due_at, place
 LIMIT 1
   FOR UPDATE SKIP LOCKED;

-- record: write the id of a parked message into the inbox, however old it is
INSERT INTO inbox (message_id, consumer_id, topic, topic_partition, record_offset, received_at)
VALUES ($2, $1, $3, $4, $5, $6)
ON CONFLICT DO NOTHING
RETURNING message_id;

-- park_again: the next try of a parked message that has failed again
UPDATE inbox_parked SET failures = $3, due_at = $4, last_error = $5
 WHERE consumer_id = $1 AND message_id = $2;

-- take_again: lock one parked message that is to be tried, unless it has failed since
SELECT FROM inbox_parked
 WHERE consumer_id = $1 AND message_id = $2 AND failures = $3 AND due_at IS NOT NULL
   FOR UPDATE SKIP LOCKED;

-- postpone: the next try of a parked message that was interrupted
UPDATE inbox_parked SET due_at = $3 WHERE consumer_id = $1 AND message_id = $2;

-- unpark: a parked message has ended
DELETE FROM inbox_parked WHERE consumer_id = $1 AND message_id = $2;

-- next_of_key: make the next message of a key due, after its first one has ended
UPDATE inbox_parked SET due_at = $3
 WHERE consumer_id = $1 AND message_id = (
       SELECT p.message_id FROM inbox_parked p
        WHERE p.consumer_id = $1 AND p.key = $2
        ORDER BY p.place LIMIT 1)
   AND due_at IS NULL;

-- bury: make a message a dead letter
INSERT INTO inbox_dead (consumer_id, message_id, destination, topic, topic_partition,
    record_offset, received_at, key, confirm_topic, confirm_token, headers, payload, failures,
    reason, last_error)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
ON CONFLICT DO NOTHING
RETURNING message_id;

-- know_topics: a process reads these topics; of new ones it is not known what may still come
-- In order, so that two processes never wait for each other.
INSERT INTO inbox_topic (consumer_id, topic)
SELECT $1, g.topic FROM unnest($2::text[]) AS g (topic) ORDER BY g.topic
ON CONFLICT (consumer_id, topic) DO UPDATE SET subscribed_at = now();

-- begin: keep where a consumer begins in the partitions of a topic; $4: although it had begun
-- What it was moved back to comes once more, so what was known of the partitions no longer holds.
WITH forgotten AS (
    DELETE FROM inbox_partition WHERE consumer_id = $1 AND topic = $2 AND $4
)
UPDATE inbox_topic SET starts = $3 WHERE consumer_id = $1 AND topic = $2 AND ($4 OR starts IS NULL)

-- starts: where a consumer began in those of these topics in which it has begun
SELECT topic, starts FROM inbox_topic
 WHERE consumer_id = $1 AND topic = ANY ($2::text[]) AND starts IS NOT NULL

-- know_partitions: these partitions are there; of new ones it is not known what may still come
INSERT INTO inbox_partition (consumer_id, topic, topic_partition)
SELECT $1, g.topic, g.number FROM unnest($2::text[], $3::integer[]) AS g (topic, number)
 ORDER BY g.topic, g.number
ON CONFLICT DO NOTHING;

-- keep_floors: below which ids no message will come in these partitions
INSERT INTO inbox_partition (consumer_id, topic, topic_partition, floor)
SELECT $1, g.topic, g.number, g.floor
  FROM unnest($2::text[], $3::integer[], $4::uuid[]) AS g (topic, number, floor)
 ORDER BY g.topic, g.number
ON CONFLICT (consumer_id, topic, topic_partition) DO UPDATE SET floor = excluded.floor;

-- highest_floors: the highest floor of each topic in which one is known
SELECT topic, max(floor::text)::uuid AS floor
  FROM inbox_partition WHERE consumer_id = $1 AND floor IS NOT NULL GROUP BY topic;

-- horizon: the highest one that is allowed: below a time, and below what may still come anywhere
SELECT CASE WHEN bool_and(p.floor IS NOT NULL)
            THEN least(inbox_id_at($2), min(p.floor::text)::uuid) END AS horizon
  FROM inbox_topic t LEFT JOIN inbox_partition p USING (consumer_id, topic)
 WHERE t.consumer_id = $1 AND t.subscribed_at > now() - interval '7 days';

-- retire: raise the horizon, and drop what is below every consumer's
SELECT inbox_retire($1, $2);
