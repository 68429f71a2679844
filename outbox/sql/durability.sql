-- What the durability of a session's commits depends on.

-- pin: the settings, and synchronous_commit kept for this session as it is: a reload changes nothing
-- Our deadlines count, not one that only newer servers know (PostgreSQL 17).
SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
       set_config('synchronous_commit', current_setting('synchronous_commit'), false)
           AS synchronous_commit,
       CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
            THEN set_config('transaction_timeout', '0', false) END AS transaction_timeout

-- synchronous: what the commit of this transaction waits for, and the marks of what it stores,
-- without what was rolled back to a savepoint; and on which server; raises if an error has broken it
SELECT current_setting('synchronous_commit'), current_setting('orderchain.stored', true),
       (SELECT system_identifier FROM pg_control_system())::text,
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint
       END::text

-- barrier: with a synchronous standby, returns once that has everything which is visible here
-- A visible row may be missing on the standby, if the wait of its commit was cut off, or a crash
-- came in between. Something must be written, since a commit of nothing does not wait.
SELECT pg_logical_emit_message(true, 'orderchain', '')
 WHERE current_setting('synchronous_standby_names') <> ''

-- begin_barrier: the same on a session whose settings are not kept, such as one through a pooler, and
-- of a login that only reads by default
BEGIN READ WRITE;
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'
