-- What people do with dead letters, as the role outbox_operator. $1 is a consumer's name wherever
-- one is meant.

-- consumers: the consumers of this database, with what waits in it
SELECT c.name,
       (SELECT count(*) FROM inbox_parked p WHERE p.consumer_id = c.consumer_id) AS parked,
       (SELECT count(*) FROM inbox_dead d
         WHERE d.consumer_id = c.consumer_id AND d.abandoned_at IS NULL) AS dead
  FROM inbox_consumer c ORDER BY c.name;

-- list: dead letters, newest first; a condition that is NULL is none
SELECT c.name AS consumer, d.message_id, d.destination, d.topic, d.key, d.reason, d.failures, d.last_error,
       d.received_at, d.dead_at, d.abandoned_at
  FROM inbox_dead d JOIN inbox_consumer c USING (consumer_id)
 WHERE ($1::text IS NULL OR c.name = $1)
   AND ($2::text IS NULL OR d.reason = $2)
   AND ($3::bytea IS NULL OR d.key = $3)
   AND ($4::timestamptz IS NULL OR d.dead_at < $4)
   AND ($5 OR d.abandoned_at IS NULL)
   AND ($7::uuid[] IS NULL OR d.message_id = ANY ($7))
 ORDER BY d.dead_at DESC, d.message_id
 LIMIT $6;

-- show: all of one message's dead letters, with payload and headers
SELECT c.name AS consumer, d.*
  FROM inbox_dead d JOIN inbox_consumer c USING (consumer_id)
 WHERE d.message_id = $1 AND ($2::text IS NULL OR c.name = $2)
 ORDER BY c.name;

-- acts_on: what was done about a message, in order
SELECT c.name AS consumer, a.act, a.actor, a.reason, a.acted_at
  FROM inbox_act a JOIN inbox_consumer c USING (consumer_id)
 WHERE a.message_id = $1 AND ($2::text IS NULL OR c.name = $2)
 ORDER BY a.act_id;

-- last_acts: what people did about dead letters within $1 seconds, or ever; the last first
SELECT a.act_id, a.acted_at, a.act, a.message_id, c.name AS consumer, a.actor, a.login, a.reason,
       a.detail
  FROM inbox_act a JOIN inbox_consumer c USING (consumer_id)
 WHERE $1::float8 IS NULL OR a.acted_at > now() - make_interval(secs => $1)
 ORDER BY a.act_id DESC LIMIT $2;

-- retry: park a dead letter again, due at $3 or in its turn within its key; false: it is none
SELECT inbox_retry_dead((SELECT consumer_id FROM inbox_consumer WHERE name = $1), $2, $3, $4, $5);

-- pass_over: store that a person goes past a record that cannot be read; false: no such consumer
SELECT inbox_pass_over($1, $2, $3, $4);

-- abandon: end a dead letter; false: it is none any more
SELECT inbox_abandon_dead((SELECT consumer_id FROM inbox_consumer WHERE name = $1), $2, $3, $4, $5);
