-- The store of a callback service (mode 5), in a database of its own: which messages are to be
-- checked when, and what their consumers have confirmed. `chainctl schema print --part callback`
-- prints this file, `chainctl schema apply --part callback` applies it in one transaction. It needs
-- none of the other parts.

-- ------------------------------------------------------------------------------------- database
-- It is a database of its own, so no other role needs the rights that every role has unless they are
-- taken from PUBLIC. What the applying role may not take away is left to a DBA
-- (docs/permissions.md).

DO $$
DECLARE
    maker regprocedure;
BEGIN
    IF pg_has_role((SELECT datdba FROM pg_database WHERE datname = current_database()), 'USAGE') THEN
        EXECUTE format('REVOKE CREATE, TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
    ELSE
        RAISE NOTICE 'left to the owner of the database: REVOKE CREATE, TEMPORARY ON DATABASE % '
            'FROM PUBLIC;', quote_ident(current_database());
    END IF;
    -- Large objects belong to no table, so no GRANT of ours keeps a role from making them.
    FOR maker IN
        SELECT oid FROM pg_proc
         WHERE pronamespace = 'pg_catalog'::regnamespace
           AND proname IN ('lo_creat', 'lo_create', 'lo_from_bytea')
    LOOP
        IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
            EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', maker);
        ELSE
            RAISE NOTICE 'left to a superuser: REVOKE EXECUTE ON FUNCTION % FROM PUBLIC;', maker;
        END IF;
    END LOOP;
END
$$;

-- Here `chainctl schema print` puts chainctl/schema/head.sql: the roles, and the version.

-- ------------------------------------------------------------------------------------- deliveries

-- One row per delivery: made by its check record or its consumer's, whichever comes first. Ended
-- rows stay for a while, so that a repeat of either record is recognized.
CREATE TABLE callback_delivery (
    message_id   uuid        NOT NULL,
    consumer     text        NOT NULL,
    sender       text, -- NULL: confirmed or parked, and its check record has not come yet
    -- 0 waiting for its confirm, 1 confirmed, 2 returned to its sender, 3 ended by its sender's word
    state        smallint    NOT NULL CHECK (state BETWEEN 0 AND 3),
    -- When the next action falls due: the question to the sender, or the return of the confirm.
    due_at       timestamptz NOT NULL,
    ask_count    integer     NOT NULL DEFAULT 0, -- questions that were answered
    claim_token  uuid, -- whose claim it is; results are written back only by it
    confirmed_at timestamptz,
    proof        bytea, -- of the confirm, for its sender, who alone can judge it
    last_error   text,
    PRIMARY KEY (message_id, consumer),
    CHECK (sender IS NOT NULL OR state <= 1)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 0
);
-- Indexed by sender: what is due to one is found without a look at what is due to others.
CREATE INDEX callback_delivery_due ON callback_delivery (state, sender, due_at)
    WHERE due_at < 'infinity';

-- How far the confirm topics were taken in: everything that was in a partition at that time is
-- stored. A question is only asked about what fell due before, since a confirm may wait there
-- unread.
CREATE TABLE callback_intake (
    topic       text        NOT NULL,
    "partition" integer     NOT NULL,
    read_until  timestamptz NOT NULL,
    PRIMARY KEY (topic, "partition")
) WITH (fillfactor = 20);

-- ----------------------------------------------------------------------------------------- grants
-- docs/permissions.md shows every privilege, by role.

GRANT SELECT ON callback_version TO outbox_callback;
GRANT SELECT, INSERT, UPDATE, DELETE ON callback_delivery TO outbox_callback;
GRANT SELECT, INSERT, UPDATE ON callback_intake TO outbox_callback;

RESET ROLE;
