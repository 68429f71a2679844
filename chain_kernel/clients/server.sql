-- Which server a session is on.

-- server_identity: the system identifier, and the timeline of the log that is being written (that of the
-- last checkpoint lags behind a promotion); no timeline on a standby, which writes none. Two addresses
-- may lead to one server: it has one time of its start
SELECT (SELECT system_identifier FROM pg_control_system()) AS system_identifier,
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint
       END AS timeline,
       pg_postmaster_start_time() AS started_at

-- hidden: of these tables, those with rows that this login reads, changes or deletes, and may not see:
-- by row security that has no policy for all rows, or one that restricts it; our own policies restrict
-- what is written, and are known by the policy read_all beside them; and those that hide rows from
-- their owner
SELECT known.relname::text
  FROM pg_catalog.pg_class AS known
 WHERE known.relname = ANY ($1::text[]) AND known.relnamespace = 'public'::regnamespace
   AND known.relrowsecurity
   -- Forced on the owner, too, as whom our functions run: unless it sees all by a policy of its own.
   AND (known.relforcerowsecurity AND has_any_column_privilege(known.oid, 'SELECT')
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles
                         WHERE oid = known.relowner AND (rolsuper OR rolbypassrls))
        AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_policy
             WHERE polrelid = known.oid AND polcmd::text IN ('r', '*') AND polpermissive
               AND polqual::text ~ '^\{CONST :consttype 16 .*:constvalue 1 \[[ 0]*1[ 0]*\]\}$'
               AND EXISTS (SELECT FROM unnest(polroles) AS role (id)
                            WHERE id = 0 OR pg_has_role(known.relowner, id, 'USAGE')))
    OR row_security_active(known.oid) AND EXISTS (
       SELECT FROM (VALUES ('r', has_any_column_privilege(known.oid, 'SELECT')),
                           ('w', has_any_column_privilege(known.oid, 'UPDATE')),
                           ('d', has_table_privilege(known.oid, 'DELETE'))) AS command (letter, may)
        CROSS JOIN LATERAL (
               SELECT coalesce(bool_or(policy.polpermissive AND policy.is_all), false) AS is_open,
                      coalesce(bool_or(NOT policy.polpermissive AND NOT policy.is_all), false)
                          AS is_closed
                 FROM (SELECT polpermissive,
                              -- USING (true), as it is stored: pg_get_expr would wait for locks.
                              polqual::text ~ '^\{CONST :consttype 16 .*:constvalue 1 \[[ 0]*1[ 0]*\]\}$'
                                  AS is_all
                         FROM pg_catalog.pg_policy
                        WHERE polrelid = known.oid AND polcmd::text IN (command.letter, '*')
                          AND EXISTS (SELECT FROM unnest(polroles) AS role (id)
                                       WHERE id = 0 OR pg_has_role(id, 'USAGE'))) AS policy
             ) AS seen
        WHERE command.may AND (seen.is_closed OR NOT seen.is_open)
          AND (command.letter = 'r' OR NOT EXISTS (SELECT FROM pg_catalog.pg_policy
                                                    WHERE polrelid = known.oid
                                                      AND polname = 'read_all'))))
 ORDER BY 1
