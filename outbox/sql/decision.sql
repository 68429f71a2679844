-- The decisions of a service that prepares messages (mode 6), in its own business database. Its
-- local transaction and the answer to a check write the same key, and the second one is refused: so
-- "not done" also holds against a transaction that is still running. `chainctl schema print --part
-- decision` prints this file, `chainctl schema apply --part decision` applies it in one
-- transaction. It needs none of the other parts. A business service that has a login role of its own
-- is granted ours: GRANT outbox_decider TO ...

-- Here `chainctl schema print` puts chainctl/schema/head.sql: the roles, and the version.

-- -------------------------------------------------------------------------------------- decisions

-- One row per message, written once and never changed: that is the fence.
CREATE TABLE outbox_decision (
    message_id uuid        PRIMARY KEY,
    is_done    boolean     NOT NULL, -- true: by the local transaction; false: by a check, "not done"
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Decisions below `floor_id` were forgotten, and an unknown one is never taken for "not done".
CREATE TABLE outbox_decision_floor (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    floor_id uuid    NOT NULL
);

INSERT INTO outbox_decision_floor (floor_id) VALUES ('00000000-0000-0000-0000-000000000000');

-- -------------------------------------------------------------------------------------- functions

-- Decides for a message in the local transaction that it belongs to. Raises if a check has answered
-- "not done" meanwhile, or if this was done before: with SQLSTATE 23505, and as DETAIL `done`, `not
-- done` or `forgotten`. The error ends the transaction, so it can't commit by oversight.
CREATE FUNCTION outbox_decide(decided_id uuid) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    found text;
BEGIN
    -- This decides whether a message is sent or cancelled: it must be durable, whatever
    -- the session has set. What is set here ends with the transaction.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF decided_id < (SELECT floor_id FROM public.outbox_decision_floor) THEN
        found := 'forgotten';
    ELSE
        BEGIN
            INSERT INTO public.outbox_decision (message_id, is_done) VALUES (decided_id, true);
            RETURN;
        EXCEPTION WHEN unique_violation THEN
            -- A transaction with one snapshot may not see the row that caused the refusal.
            SELECT CASE WHEN is_done THEN 'done' ELSE 'not done' END INTO found
              FROM public.outbox_decision WHERE message_id = decided_id;
        END;
    END IF;
    RAISE EXCEPTION 'message % was decided before', decided_id
        USING ERRCODE = '23505', DETAIL = coalesce(found, 'not seen'),
              CONSTRAINT = 'outbox_decision_pkey';
END
$$;

-- Answers a check: `done`, `not_done`, or `unknown`. "not_done" is stored before it is returned,
-- and refuses the local transaction from then on. While a local transaction that has decided is
-- still running this waits for it, `wait_ms` at most, and then returns `unknown`.
CREATE FUNCTION outbox_check_decision(checked_id uuid, wait_ms integer) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    found boolean;
BEGIN
    -- This decides whether a message is sent or cancelled: it must be durable, whatever
    -- the session has set. What is set here ends with the transaction.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF checked_id < (SELECT floor_id FROM public.outbox_decision_floor) THEN
        RETURN 'unknown';
    END IF;
    PERFORM set_config('lock_timeout', greatest(wait_ms, 1)::text, true);
    BEGIN
        INSERT INTO public.outbox_decision (message_id, is_done) VALUES (checked_id, false)
            ON CONFLICT (message_id) DO NOTHING;
    EXCEPTION WHEN lock_not_available THEN
        RETURN 'unknown';
    END;
    SELECT is_done INTO found FROM public.outbox_decision WHERE message_id = checked_id;
    IF current_setting('synchronous_standby_names') <> '' THEN
        -- What was found may be here and not on the standby, if the wait of its commit was cut off.
        -- So this transaction writes something, and waits for the standby itself.
        PERFORM pg_logical_emit_message(true, 'orderchain', '');
    END IF;
    RETURN CASE WHEN found THEN 'done' WHEN NOT found THEN 'not_done' ELSE 'unknown' END;
END
$$;

-- Forgets the decisions on messages that were made before `before`, at most `rows_max` of them, and
-- returns how many. Keep decisions until they are asked for no more, and no transaction of that time
-- still runs.
CREATE FUNCTION outbox_forget_decisions(before timestamptz, rows_max integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    -- UUIDv7 begins with the millisecond.
    new_floor uuid := (lpad(to_hex(floor(extract(epoch FROM before) * 1000)::bigint), 12, '0')
                       || '00000000000000000000')::uuid;
    forgotten bigint;
BEGIN
    IF before > clock_timestamp() - interval '1 day' THEN
        RAISE EXCEPTION 'decisions are kept for at least a day, % is too late', before
            USING ERRCODE = '22023', COLUMN = 'before';
    END IF;
    UPDATE public.outbox_decision_floor SET floor_id = new_floor WHERE floor_id < new_floor;
    DELETE FROM public.outbox_decision WHERE message_id IN (
        SELECT message_id FROM public.outbox_decision
         WHERE message_id < (SELECT floor_id FROM public.outbox_decision_floor)
         ORDER BY message_id LIMIT rows_max
    );
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten;
END
$$;

-- ----------------------------------------------------------------------------------------- grants
-- docs/permissions.md shows every privilege, by role.

REVOKE ALL ON FUNCTION outbox_decide(uuid) FROM PUBLIC;
REVOKE ALL ON FUNCTION outbox_check_decision(uuid, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION outbox_forget_decisions(timestamptz, integer) FROM PUBLIC;

GRANT SELECT ON decision_version, outbox_decision, outbox_decision_floor TO outbox_decider;
GRANT EXECUTE ON FUNCTION outbox_decide(uuid) TO outbox_decider;
GRANT EXECUTE ON FUNCTION outbox_check_decision(uuid, integer) TO outbox_decider;
GRANT EXECUTE ON FUNCTION outbox_forget_decisions(timestamptz, integer) TO outbox_decider;

RESET ROLE;
