-- Which server a session is on.

-- server_identity: the system identifier, and the timeline of the log that is being written (that of the
-- last checkpoint lags behind a promotion); no timeline on a standby, which writes none
SELECT (SELECT system_identifier FROM pg_control_system()) AS system_identifier,
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint
       END AS timeline
