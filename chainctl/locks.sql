-- server_started_at: one server has it, of several standbys too
SELECT pg_postmaster_start_time()

-- lock_holders: for whom a backend of the server that started then has waited longer than so many
-- seconds, those first that do not wait themselves; process 0 is a prepared transaction, and others'
-- queries may be hidden
WITH RECURSIVE holder AS (
       SELECT unnest(pg_blocking_pids($1)) AS pid
       UNION
       SELECT unnest(pg_blocking_pids(pid)) FROM holder
       )
SELECT coalesce(wanted.relation, (SELECT relation FROM pg_locks AS tuple
                                   WHERE tuple.pid = $1 AND tuple.locktype = 'tuple' LIMIT 1)
               )::regclass::text AS locked,
       greatest(extract(epoch FROM clock_timestamp() - wanted.waitstart), 0)::float8 AS waited_seconds,
       holder.pid, activity.usename::text AS login, activity.application_name AS application,
       activity.state, activity.query, cardinality(pg_blocking_pids(holder.pid)) > 0 AS is_waiting,
       greatest(extract(epoch FROM clock_timestamp() - activity.xact_start), 0)::float8 AS open_seconds
  FROM pg_locks AS wanted
 CROSS JOIN holder
  LEFT JOIN pg_stat_activity AS activity ON activity.pid = holder.pid
 WHERE wanted.pid = $1 AND NOT wanted.granted
   AND pg_postmaster_start_time() = $2
   AND wanted.waitstart < clock_timestamp() - make_interval(secs => $3)
 ORDER BY is_waiting, holder.pid

-- cancel_statement: end what a backend of this login does now
SELECT pg_cancel_backend($1)
