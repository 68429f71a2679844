-- The tables of the engine. `chainctl schema print` prints this file, `chainctl schema apply`
-- applies it in one transaction, and a DBA may apply it with psql (--single-transaction).
--
-- Words: an id is a position in a chain, a pid the id of the row before it (0 for the first row),
-- a batch the rows of one commit. Rows of a chain are never updated and never deleted.

-- ------------------------------------------------------------------------------------- database
-- Unless it is taken from PUBLIC, every role in a database, even one that is granted nothing but
-- SELECT, can fill the disk: with temporary tables, with tables of its own, and with large objects,
-- which belong to no table. What the applying role may not take away is left to a DBA, and
-- `chainctl schema check` names it. Other applications in this database then need a GRANT of their
-- own.

DO $$
DECLARE
    step record;
BEGIN
    -- Other encodings lack characters that keys have: one such key would stop the chain forever.
    IF getdatabaseencoding() <> 'UTF8' THEN
        RAISE EXCEPTION 'the encoding of database % is %, expected UTF8',
            current_database(), getdatabaseencoding();
    END IF;
    FOR step IN
        SELECT format('REVOKE CREATE, TEMPORARY ON DATABASE %I FROM PUBLIC', datname) AS statement,
               has_database_privilege('public', oid, 'CREATE')
               OR has_database_privilege('public', oid, 'TEMPORARY') AS is_due,
               datdba AS by_role
          FROM pg_database WHERE datname = current_database()
        UNION ALL
        SELECT 'REVOKE CREATE ON SCHEMA public FROM PUBLIC',
               has_schema_privilege('public', oid, 'CREATE'), nspowner
          FROM pg_namespace WHERE nspname = 'public'
        UNION ALL
        SELECT format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', oid::regprocedure),
               has_function_privilege('public', oid, 'EXECUTE'), proowner
          FROM pg_proc
         WHERE pronamespace = 'pg_catalog'::regnamespace
           AND proname IN ('lo_creat', 'lo_create', 'lo_from_bytea')
    LOOP
        IF step.is_due AND pg_has_role(step.by_role, 'USAGE') THEN
            EXECUTE step.statement;
        ELSIF step.is_due THEN
            RAISE NOTICE 'left to % or a superuser: %;', step.by_role::regrole, step.statement;
        END IF;
    END LOOP;
END
$$;

-- ---------------------------------------------------------------------------------------- roles
-- Login roles are made without a password, so no one can log in until a DBA sets one. Limits that
-- must hold are GRANTs and connection limits: a role may switch its own timeouts off.

DO $$
DECLARE
    role_name text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'orderchain_owner') THEN
        CREATE ROLE orderchain_owner NOLOGIN;
    END IF;
    FOREACH role_name IN ARRAY ARRAY['sequencer_writer', 'gap_reader', 'receiver_writer', 'auditor']
    LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
            EXECUTE format('CREATE ROLE %I LOGIN', role_name);
        END IF;
    END LOOP;
    -- A role that applies the schema without being a superuser must be able to act as the owner.
    IF NOT pg_has_role('orderchain_owner', 'USAGE') THEN
        EXECUTE format('GRANT orderchain_owner TO %I', current_user);
    END IF;
    -- A stampede of receivers must never take the connections that the sequencer needs. What a DBA
    -- has set stays: roles belong to the server, and another database may have been first.
    IF (SELECT rolconnlimit FROM pg_roles WHERE rolname = 'gap_reader') = -1 THEN
        ALTER ROLE gap_reader CONNECTION LIMIT 32;
    END IF;
    IF (SELECT rolconnlimit FROM pg_roles WHERE rolname = 'receiver_writer') = -1 THEN
        ALTER ROLE receiver_writer CONNECTION LIMIT 32;
    END IF;
    -- Comfort only: a role may switch it off. The hard limit is that it is granted only SELECT.
    IF NOT EXISTS (SELECT FROM pg_db_role_setting
                    WHERE setrole = 'gap_reader'::regrole AND setdatabase = 0) THEN
        ALTER ROLE gap_reader SET default_transaction_read_only = on;
    END IF;
END
$$;

GRANT CREATE, USAGE ON SCHEMA public TO orderchain_owner;
GRANT USAGE ON SCHEMA public TO sequencer_writer, gap_reader, receiver_writer, auditor;
SET LOCAL ROLE orderchain_owner;
SET LOCAL search_path = public;

-- ------------------------------------------------------------------------------- identity, version

CREATE TABLE schema_version (
    only_row    boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    version     integer     NOT NULL,
    -- An upgrade to it is under way: programs of that version work here, too (docs/upgrade.md).
    upgrade_to  integer     CHECK (upgrade_to = version + 1),
    -- Our own, drawn once: the server's system identifier changes with pg_upgrade.
    database_id uuid        NOT NULL DEFAULT gen_random_uuid(),
    applied_at  timestamptz NOT NULL DEFAULT now()
);

INSERT INTO schema_version (version) VALUES (2);

-- ------------------------------------------------------------------------------------------ chains

CREATE TABLE chain_head (
    chain_id        integer     PRIMARY KEY CHECK (chain_id > 0),
    epoch           bigint      NOT NULL DEFAULT 0 CHECK (epoch >= 0),
    nonce           bytea       NOT NULL DEFAULT '',
    owner           text        NOT NULL DEFAULT '',
    backend_pid     integer,
    backend_start   timestamptz,
    last_id         bigint      NOT NULL DEFAULT 0,
    last_seal       bytea       NOT NULL CHECK (length(last_seal) = 32),
    published_id    bigint      NOT NULL DEFAULT 0 CHECK (published_id <= last_id),
    topic           text        NOT NULL,
    topic_partition integer     NOT NULL DEFAULT 0,
    -- Whether its leader publishes to the topic; otherwise it notifies those who listen. Set at each
    -- take-over, by whether the leader has a broker.
    is_published    boolean     NOT NULL DEFAULT true,
    -- Pages of one partition of chain_page end within this many ids; see chain_page_extend.
    partition_ids   bigint      NOT NULL CHECK (partition_ids > 0),
    -- Seeds the hashes of keys, so that no client can craft keys that collide: keep it secret.
    key_salt        bigint      NOT NULL DEFAULT hashtextextended(gen_random_uuid()::text, 0),
    created_at      timestamptz NOT NULL DEFAULT now(),
    UNIQUE (topic, topic_partition)
) WITH (fillfactor = 10); -- one hot row a chain: room for HOT updates on its page

-- How a standby sees that the leader is alive: a counter that rises at a steady pace. It is in a
-- row of its own, so that a long commit, which holds the head row, does not hide it. It decides
-- only who tries to take over; epoch and nonce in chain_head decide who may commit.
CREATE TABLE chain_lease (
    chain_id integer PRIMARY KEY REFERENCES chain_head,
    epoch    bigint  NOT NULL DEFAULT 0,
    counter  bigint  NOT NULL DEFAULT 0,
    released boolean NOT NULL DEFAULT true, -- no leader: handed over, or never led
    -- For operators only, who see with them whether a leader is alive: by the database's clock. No
    -- process decides by them, since clocks jump.
    beat_at       timestamptz,
    lease_seconds double precision,
    -- An operator asks the leader to hand over. Another process that takes over clears it.
    step_down     boolean NOT NULL DEFAULT false
) WITH (fillfactor = 10);

-- Serialises the creation of partitions: a row that only the owner can lock. Every role that may
-- connect can take, and hold, an advisory lock.
CREATE TABLE chain_partition_lock (
    chain_id integer PRIMARY KEY
);

-- One row per take-over: who led when, and how frames of that term are recognised. Never changed,
-- never removed. A frame is believed when it carries the MAC of the frame_key of the term whose
-- nonce it names: so a role that may read this table can make frames, and no other can.
CREATE TABLE chain_term (
    chain_id          integer     NOT NULL REFERENCES chain_head,
    epoch             bigint      NOT NULL CHECK (epoch > 0),
    nonce             bytea       NOT NULL CHECK (length(nonce) = 16),
    frame_key         bytea       NOT NULL CHECK (length(frame_key) = 32),
    owner             text        NOT NULL,
    after_id          bigint      NOT NULL, -- the head at the take-over
    -- The server of it: a promoted standby has a higher timeline, a restored dump another id.
    system_identifier bigint      NOT NULL,
    timeline          bigint      NOT NULL,
    began_at          timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chain_id, epoch),
    UNIQUE (chain_id, nonce)
);

-- One row per commit. PostgreSQL itself refuses two batches with one parent and a parent that is no
-- batch, for one small index entry per batch instead of one per row. The genesis row (all zeros) has
-- no parent; nor has a boundary row, before which older batches were archived.
-- So the genesis row proves that the chain exists, and a commit needs no second foreign key.
CREATE TABLE chain_batch (
    chain_id     integer     NOT NULL,
    first_id     bigint      NOT NULL,
    last_id      bigint      NOT NULL,
    prev_last_id bigint,
    row_count    integer     NOT NULL CHECK (row_count >= 0),
    epoch        bigint      NOT NULL,
    seal         bytea       NOT NULL CHECK (length(seal) = 32),
    committed_at timestamptz NOT NULL,
    PRIMARY KEY (chain_id, last_id),
    UNIQUE (chain_id, prev_last_id),
    CHECK (prev_last_id < first_id AND first_id <= last_id),
    FOREIGN KEY (chain_id, prev_last_id) REFERENCES chain_batch (chain_id, last_id)
);

-- One stored row per batch, or per slice of a large one: the orders are in arrays of equal length.
-- With a stored row of its own, each order would cost a header, an index entry and log of three
-- times its size. In the arrays, the n-th elements are one row of the chain; ids rise.
CREATE TABLE chain_page (
    chain_id       integer  NOT NULL,
    first_id       bigint   NOT NULL,
    last_id        bigint   NOT NULL,
    ids            bigint[] NOT NULL,
    pids           bigint[] NOT NULL,
    keys           text[]   NOT NULL,
    event_times_ns bigint[] NOT NULL,
    payloads       bytea[]  NOT NULL,
    PRIMARY KEY (chain_id, last_id),
    -- IS TRUE: an empty array has no first element, and NULL would pass.
    CONSTRAINT chain_page_ends CHECK (
        (ids[1] = first_id AND ids[cardinality(ids)] = last_id AND pids[1] < first_id) IS TRUE),
    -- With other lower bounds or dimensions, slices of two columns would be other rows. Each of
    -- these reads the head of an array, not its elements.
    CONSTRAINT chain_page_lengths CHECK (
        (array_dims(pids) = array_dims(ids) AND array_dims(keys) = array_dims(ids)
         AND array_dims(event_times_ns) = array_dims(ids)
         AND array_dims(payloads) = array_dims(ids)) IS TRUE),
    CONSTRAINT chain_page_no_null CHECK (
        coalesce(array_position(ids, NULL), array_position(pids, NULL), array_position(keys, NULL),
                 array_position(event_times_ns, NULL), array_position(payloads, NULL)) IS NULL)
) PARTITION BY LIST (chain_id);
-- Orders hardly compress, and a compressed array must be unpacked whole for one element.
ALTER TABLE chain_page
    ALTER COLUMN ids SET STORAGE EXTERNAL,
    ALTER COLUMN pids SET STORAGE EXTERNAL,
    ALTER COLUMN keys SET STORAGE EXTERNAL,
    ALTER COLUMN event_times_ns SET STORAGE EXTERNAL,
    ALTER COLUMN payloads SET STORAGE EXTERNAL;

-- The orders as rows. It is good for a look at a whole chain. Read a range of ids by chain_events,
-- which finds its pages by the index: from this view PostgreSQL cannot know which pages hold an id.
CREATE VIEW chain_event AS
SELECT page.chain_id, event.id, event.pid, event.key, event.event_time_ns, event.payload
  FROM chain_page AS page
 CROSS JOIN LATERAL unnest(page.ids, page.pids, page.keys, page.event_times_ns, page.payloads)
            AS event (id, pid, key, event_time_ns, payload);

-- Which keys the last rows have, as hashes, many rows per page: written now and then after the
-- rows, so that a new leader need not read those again. It can always be rebuilt from chain_page.
CREATE TABLE chain_key_page (
    chain_id integer NOT NULL REFERENCES chain_head,
    after_id bigint  NOT NULL,
    until_id bigint  NOT NULL CHECK (until_id > after_id),
    spans    bytea   NOT NULL,
    hashes   bytea   NOT NULL CHECK (length(hashes) % 8 = 0),
    PRIMARY KEY (chain_id, after_id)
);
-- Hashes do not compress: do not try.
ALTER TABLE chain_key_page ALTER COLUMN hashes SET STORAGE EXTERNAL;

-- The highest number of each client whose keys are `client#number`, as of the last page, forever.
CREATE TABLE chain_client (
    chain_id      integer NOT NULL REFERENCES chain_head,
    client        text    NOT NULL,
    number        bigint  NOT NULL,
    id            bigint  NOT NULL,
    known_from    bigint  NOT NULL,
    known_from_id bigint  NOT NULL,
    PRIMARY KEY (chain_id, client)
) WITH (fillfactor = 80);

-- How far an intake (a file, a topic partition) was read, moved in the transaction of the batch.
CREATE TABLE chain_intake (
    chain_id integer NOT NULL REFERENCES chain_head,
    source   text    NOT NULL,
    position bigint  NOT NULL CHECK (position >= 0),
    digest   bytea   NOT NULL,
    PRIMARY KEY (chain_id, source)
) WITH (fillfactor = 50);

-- Records of an intake that became no order, stored in the transaction that moved the intake past
-- them. The record itself is found in its source, at its position.
CREATE TABLE chain_intake_reject (
    chain_id    integer     NOT NULL REFERENCES chain_head,
    source      text        NOT NULL,
    position    bigint      NOT NULL CHECK (position >= 0),
    key         text,
    reason      text        NOT NULL,
    rejected_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chain_id, source, position)
);

-- Ranges that were never published: the broker was away for so long that the queue had to drop
-- them. Receivers have read them from the database.
CREATE TABLE chain_skip (
    chain_id   integer     NOT NULL REFERENCES chain_head,
    after_id   bigint      NOT NULL,
    until_id   bigint      NOT NULL CHECK (until_id > after_id),
    epoch      bigint      NOT NULL,
    skipped_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chain_id, after_id)
);

-- Where each receiver is: moved by compare-and-set on head_delivered. A receiver whose place is
-- kept elsewhere only reports it, for operators and for retention: no receiver starts from that row.
CREATE TABLE receiver_checkpoint (
    chain_id       integer     NOT NULL REFERENCES chain_head,
    receiver       text        NOT NULL,
    head_delivered bigint      NOT NULL,
    batch_last_id  bigint      NOT NULL CHECK (batch_last_id <= head_delivered),
    seal           bytea       NOT NULL CHECK (length(seal) = 32),
    epoch          bigint      NOT NULL,
    updated_at     timestamptz NOT NULL DEFAULT now(),
    -- Which database the place belongs to: a place that was copied into another is refused there.
    database_id    uuid,
    is_report      boolean     NOT NULL DEFAULT false,
    -- Whose row it is: only that login changes it; see row security.
    login          text        NOT NULL DEFAULT session_user,
    PRIMARY KEY (chain_id, receiver)
) WITH (fillfactor = 50);

-- The gap ledger: what did not arrive by Kafka, and the outcome. Each receiver keeps only its last
-- ones. It is written after the delivery, so the end of it may be lost with a process.
CREATE TABLE receiver_gap (
    chain_id  integer     NOT NULL REFERENCES chain_head,
    receiver  text        NOT NULL,
    after_id  bigint      NOT NULL,
    until_id  bigint      NOT NULL CHECK (until_id > after_id),
    cause     text        NOT NULL,
    outcome   text        NOT NULL,
    source    text        NOT NULL,
    row_count bigint      NOT NULL CHECK (row_count >= 0),
    found_at  timestamptz NOT NULL,
    duration  interval    NOT NULL,
    login     text        NOT NULL DEFAULT session_user,
    PRIMARY KEY (chain_id, receiver, after_id)
);

-- Receivers that the primary has contradicted. While a row is here, none of its name starts.
CREATE TABLE receiver_halt (
    chain_id  integer     NOT NULL REFERENCES chain_head,
    receiver  text        NOT NULL,
    at_id     bigint      NOT NULL, -- the last row that had been handed on
    reason    text        NOT NULL, -- the error's name
    detail    text        NOT NULL, -- what it said
    halted_at timestamptz NOT NULL DEFAULT now(),
    login     text        NOT NULL DEFAULT session_user,
    PRIMARY KEY (chain_id, receiver)
);

-- Digests of the states that the callers of a receiver had after an order: what a replay and a
-- shadow are compared with. They are kept until the receiver is forgotten.
-- No reference to chain_head: a checkpoint would lock that row for each state.
CREATE TABLE receiver_state (
    chain_id integer NOT NULL,
    receiver text    NOT NULL,
    id       bigint  NOT NULL, -- the order
    "group"  text    NOT NULL, -- whose state, such as a symbol; empty where the chain has one
    digest   bytea   NOT NULL CHECK (length(digest) BETWEEN 1 AND 64),
    login    text    NOT NULL DEFAULT session_user,
    PRIMARY KEY (chain_id, receiver, id, "group")
);

-- The result of each shadow: a receiver that has no effects, and is compared with another one. It
-- has no checkpoint, and retention never waits for it.
CREATE TABLE receiver_shadow (
    chain_id      integer     NOT NULL REFERENCES chain_head,
    receiver      text        NOT NULL,
    shadow_of     text        NOT NULL,
    compared_id   bigint      NOT NULL, -- the last order after which states were compared
    compared      bigint      NOT NULL, -- states, since the shadow's start
    groups        bigint      NOT NULL, -- those that differ
    differs_group text,                 -- the first that differed, from here ...
    differs_id    bigint,
    equal_id      bigint,               -- the last order after which it was equal; 0 for none
    stored_digest bytea,                -- the other receiver's
    found_digest  bytea,                -- ... to here
    updated_at    timestamptz NOT NULL DEFAULT now(),
    login         text        NOT NULL DEFAULT session_user,
    PRIMARY KEY (chain_id, receiver)
) WITH (fillfactor = 50);

-- How far a chain was proven whole, and by whom: one row per verification that went further. Never
-- changed, and removed only by an act of the owner's; only the last one counts.
CREATE TABLE chain_verified (
    mark_id     bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    chain_id    integer     NOT NULL REFERENCES chain_head,
    after_id    bigint      NOT NULL, -- where that verification began
    until_id    bigint      NOT NULL CHECK (until_id > after_id),
    seal        bytea       NOT NULL CHECK (length(seal) = 32), -- after the batch that ends there
    verified_by text        NOT NULL CHECK (verified_by <> ''),
    login       text        NOT NULL DEFAULT session_user,
    -- Not now(): that is when the transaction began, which may be long ago.
    verified_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON chain_verified (chain_id, until_id);

-- What people did by hand to a chain or its receivers, and why. Never changed, never removed.
CREATE TABLE chain_act (
    act_id   bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    chain_id integer     NOT NULL REFERENCES chain_head,
    receiver text,
    act      text        NOT NULL,
    actor    text        NOT NULL CHECK (actor <> ''),
    login    text        NOT NULL DEFAULT session_user,
    reason   text        NOT NULL CHECK (reason <> ''),
    detail   text        NOT NULL,
    acted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- -------------------------------------------------------------------------------------- functions

-- The partitions of a chain that begin after its last batch: names and numbers. They hold no row of
-- the chain. The batch counts, not the head: the head is a number that the sequencer may write.
CREATE FUNCTION chain_page_ahead(of_chain integer) RETURNS TABLE (name text, number bigint)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT ranges.name, ranges.number
      FROM public.chain_head AS head
     CROSS JOIN LATERAL (
           SELECT c.relname::text, substring(c.relname FROM '_([0-9]+)$')::bigint
             FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
            WHERE i.inhparent = to_regclass(format('public.chain_page_%s', of_chain))
           ) AS ranges (name, number)
     WHERE head.chain_id = of_chain
       AND ranges.number > (SELECT max(batch.last_id) FROM public.chain_batch AS batch
                             WHERE batch.chain_id = of_chain) / head.partition_ids
     ORDER BY ranges.number
$$;

-- Drops the partitions ahead that are still empty; `kept` and the two after it stay. Returns
-- how many partitions ahead remain.
-- Size 0 under the strongest lock means that no transaction ever put a row there, whatever the
-- snapshot of the caller shows. Rows that were rolled back leave a size: their partition stays.
CREATE FUNCTION chain_page_reclaim(of_chain integer, kept bigint) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' -- readers wait for this lock
    SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    range_table text;
BEGIN
    EXECUTE format('LOCK TABLE ONLY public.chain_page_%s IN ACCESS EXCLUSIVE MODE', of_chain);
    FOR range_table IN
        SELECT name FROM public.chain_page_ahead(of_chain)
         WHERE number NOT BETWEEN kept AND kept + 2
    LOOP
        EXECUTE format('LOCK TABLE public.%I IN ACCESS EXCLUSIVE MODE', range_table);
        IF pg_relation_size(format('public.%I', range_table)) = 0 THEN
            EXECUTE format('DROP TABLE public.%I', range_table);
        END IF;
    END LOOP;
    RETURN (SELECT count(*) FROM public.chain_page_ahead(of_chain));
END
$$;

-- Makes partitions of chain_page until one holds `until_id` and two empty ones follow it.
-- A partition is made separately and then attached: CREATE ... PARTITION OF queues after readers
-- with the strongest lock and stops the writer, ATTACH does not.
-- SECURITY DEFINER: the sequencer may extend a chain, but owns no table.
CREATE FUNCTION chain_page_extend(extended_chain integer, until_id bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '2s'
    -- pg_temp last: otherwise it is searched first, and a caller's own type `text` would run as the
    -- owner.
    SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    -- Each take-over skips ids, so each one that ends before its first batch leaves three partitions
    -- ahead that nobody needs. From the first number on they are dropped, if no reader is in the
    -- way; at the second no more are made. Twenty such take-overs fit between the two.
    enough      CONSTANT integer := 30;
    too_many    CONSTANT integer := 90;
    chain_table CONSTANT text := format('chain_page_%s', extended_chain);
    span        bigint;
    lower_id    bigint;
    range_table text;
    ahead       integer;
BEGIN
    -- The head row is not locked: it is the leader's hot row.
    PERFORM FROM public.chain_partition_lock WHERE chain_id = extended_chain FOR UPDATE;
    SELECT partition_ids INTO STRICT span FROM public.chain_head WHERE chain_id = extended_chain;
    IF until_id < 0 OR until_id > 9223372036854775807 - 4 * span THEN
        RAISE EXCEPTION 'id % of chain % is out of range', until_id, extended_chain;
    END IF;
    FOR step IN 0..2 LOOP
        lower_id := (until_id / span + step) * span;
        range_table := format('%s_%s', chain_table, lower_id / span);
        CONTINUE WHEN to_regclass(format('public.%I', range_table)) IS NOT NULL;
        IF ahead IS NULL THEN
            ahead := (SELECT count(*) FROM public.chain_page_ahead(extended_chain));
            IF ahead >= enough THEN
                BEGIN
                    ahead := public.chain_page_reclaim(extended_chain, until_id / span);
                EXCEPTION WHEN lock_not_available THEN
                    NULL; -- somebody reads for long: the next extension tries again
                END;
            END IF;
            IF ahead >= too_many THEN
                RAISE EXCEPTION 'chain % has % partitions ahead of its last batch: no more are made',
                    extended_chain, ahead USING HINT = 'docs/permissions.md, partitions';
            END IF;
        END IF;
        EXECUTE format(
            'CREATE TABLE public.%I (LIKE public.chain_page INCLUDING ALL)', range_table
        );
        EXECUTE format(
            'ALTER TABLE public.%I ATTACH PARTITION public.%I FOR VALUES FROM (%s) TO (%s)',
            chain_table, range_table, lower_id, lower_id + span
        );
    END LOOP;
END
$$;

-- Makes a chain: its head row, its genesis batch, its partitions. Returns false when it exists.
-- SECURITY DEFINER, so that the partitions belong to the owner, whichever of its members calls.
CREATE FUNCTION chain_create(
    new_chain integer, genesis_seal bytea, new_topic text, new_topic_partition integer,
    new_partition_ids bigint
) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    chain_table text := format('chain_page_%s', new_chain);
BEGIN
    -- First, and a row with one index only: of two calls at once the second waits here for the
    -- first. At chain_head it would fail on the topic's index.
    INSERT INTO public.chain_partition_lock (chain_id) VALUES (new_chain)
    ON CONFLICT (chain_id) DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO public.chain_head (chain_id, last_seal, topic, topic_partition, partition_ids)
    VALUES (new_chain, genesis_seal, new_topic, new_topic_partition, new_partition_ids);
    INSERT INTO public.chain_lease (chain_id) VALUES (new_chain);
    INSERT INTO public.chain_batch
        (chain_id, first_id, last_id, prev_last_id, row_count, epoch, seal, committed_at)
    VALUES (new_chain, 0, 0, NULL, 0, 0, genesis_seal, now());
    -- Made apart and attached, as its own partitions are: no other chain waits for this.
    EXECUTE format(
        'CREATE TABLE public.%I (LIKE public.chain_page INCLUDING ALL) PARTITION BY RANGE (last_id)',
        chain_table
    );
    EXECUTE format(
        'ALTER TABLE public.chain_page ATTACH PARTITION public.%I FOR VALUES IN (%s)',
        chain_table, new_chain
    );
    PERFORM public.chain_page_extend(new_chain, 0);
    RETURN true;
END
$$;

-- The rows of a chain after one id, up to and including another: the index finds its pages.
-- Not SECURITY DEFINER, and nothing is set: so it is inlined in a query. Add ORDER BY id where the
-- order matters.
CREATE FUNCTION chain_events(of_chain integer, after_id bigint, until_id bigint)
RETURNS TABLE (
    chain_id integer, id bigint, pid bigint, key text, event_time_ns bigint, payload bytea
)
    LANGUAGE sql STABLE PARALLEL SAFE ROWS 5000
AS $$
    SELECT page.chain_id, event.id, event.pid, event.key, event.event_time_ns, event.payload
      FROM public.chain_page AS page
     CROSS JOIN LATERAL unnest(page.ids, page.pids, page.keys, page.event_times_ns, page.payloads)
                AS event (id, pid, key, event_time_ns, payload)
     WHERE page.chain_id = of_chain AND page.last_id > after_id
       -- The page that holds until_id is the first that does not end before it.
       AND page.last_id <= coalesce(
           (SELECT holder.last_id FROM public.chain_page AS holder
             WHERE holder.chain_id = of_chain AND holder.last_id >= until_id
             ORDER BY holder.last_id LIMIT 1),
           until_id)
       AND event.id > after_id AND event.id <= until_id
$$;

-- Keeps the last gaps of a receiver, where the calling login wrote them. It is a function because a
-- role that may DELETE from a table may also lock it against everybody else.
CREATE FUNCTION receiver_gap_trim(of_chain integer, of_receiver text, kept integer) RETURNS void
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
AS $$
    DELETE FROM public.receiver_gap
     WHERE chain_id = of_chain AND receiver = of_receiver AND login = session_user
       AND after_id <= (
           SELECT after_id FROM public.receiver_gap
            WHERE chain_id = of_chain AND receiver = of_receiver
            ORDER BY after_id DESC OFFSET kept LIMIT 1
       )
$$;

-- Refuses a change to all but the owner, its members and superusers; the argument names the rule.
-- Not SECURITY DEFINER: it checks who makes the change.
CREATE FUNCTION chain_refuse() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    IF NOT pg_has_role('orderchain_owner', 'USAGE') THEN
        RAISE insufficient_privilege
            USING MESSAGE = format('%s of chain %s: %s', TG_TABLE_NAME, OLD.chain_id, TG_ARGV[0]);
    END IF;
    RETURN NULL;
END
$$;

-- AFTER, so that the row is not locked a second time before its update. The server compares the
-- rows by itself and calls the function only for what no leader does. A commit names last_id, not
-- epoch, and one comparison delays it: 2 us.
CREATE TRIGGER epoch_by_one AFTER UPDATE OF epoch ON chain_head FOR EACH ROW
    WHEN (NEW.epoch NOT BETWEEN OLD.epoch AND OLD.epoch + 1)
    EXECUTE FUNCTION chain_refuse('the epoch rises by one');
CREATE TRIGGER only_forward AFTER UPDATE OF last_id ON chain_head FOR EACH ROW
    WHEN (NEW.last_id < OLD.last_id)
    EXECUTE FUNCTION chain_refuse('the last id never falls');

-- A counter at its end could never be raised again, and no process could take over.
CREATE TRIGGER counter_by_one AFTER UPDATE OF counter ON chain_lease FOR EACH ROW
    WHEN (NEW.counter NOT BETWEEN OLD.counter AND OLD.counter + 1)
    EXECUTE FUNCTION chain_refuse('the counter rises by one');

-- ----------------------------------------------------------------------------------- row security
-- Which rows a role may write, where not all of a table's. A role that may read a table reads all
-- of it. None of this binds the owner, its members and superusers.

-- A head, for what follows from it alone: PostgreSQL writes a row that breaks a constraint into its
-- log, with the salt of the keys in it, unless row security is on.
ALTER TABLE chain_head ENABLE ROW LEVEL SECURITY;
ALTER TABLE chain_batch ENABLE ROW LEVEL SECURITY;
ALTER TABLE chain_term ENABLE ROW LEVEL SECURITY;
ALTER TABLE chain_verified ENABLE ROW LEVEL SECURITY;
ALTER TABLE receiver_checkpoint ENABLE ROW LEVEL SECURITY;
ALTER TABLE receiver_gap ENABLE ROW LEVEL SECURITY;
ALTER TABLE receiver_halt ENABLE ROW LEVEL SECURITY;
ALTER TABLE receiver_state ENABLE ROW LEVEL SECURITY;
ALTER TABLE receiver_shadow ENABLE ROW LEVEL SECURITY;

DO $$
DECLARE
    known record;
BEGIN
    -- So that this section may be applied again.
    FOR known IN
        SELECT tablename, policyname FROM pg_policies
         WHERE schemaname = 'public'
           AND tablename IN ('chain_head', 'chain_batch', 'chain_term', 'chain_verified',
                             'receiver_checkpoint', 'receiver_gap', 'receiver_halt',
                             'receiver_state', 'receiver_shadow')
    LOOP
        EXECUTE format('DROP POLICY %I ON public.%I', known.policyname, known.tablename);
    END LOOP;
END
$$;

CREATE POLICY read_all ON chain_head FOR SELECT USING (true);
CREATE POLICY read_all ON chain_batch FOR SELECT USING (true);
CREATE POLICY read_all ON chain_term FOR SELECT USING (true);
CREATE POLICY read_all ON chain_verified FOR SELECT USING (true);
CREATE POLICY read_all ON receiver_checkpoint FOR SELECT USING (true);
CREATE POLICY read_all ON receiver_gap FOR SELECT USING (true);
CREATE POLICY read_all ON receiver_halt FOR SELECT USING (true);
CREATE POLICY read_all ON receiver_state FOR SELECT USING (true);
CREATE POLICY read_all ON receiver_shadow FOR SELECT USING (true);

CREATE POLICY update_all ON chain_head FOR UPDATE TO sequencer_writer USING (true);

-- No second root, and only batches of the term that the head is in.
CREATE POLICY continue_chain ON chain_batch FOR INSERT TO sequencer_writer WITH CHECK (
    prev_last_id IS NOT NULL
    AND epoch = (SELECT head.epoch FROM chain_head AS head
                  WHERE head.chain_id = chain_batch.chain_id)
);

-- Only the term that the head is in: one of a later epoch would prevent leaders from beginning it.
CREATE POLICY begin_term ON chain_term FOR INSERT TO sequencer_writer WITH CHECK (
    EXISTS (SELECT FROM chain_head AS head
             WHERE head.chain_id = chain_term.chain_id AND head.epoch = chain_term.epoch
               AND head.nonce = chain_term.nonce)
);

-- A mark holds the seal of a batch, and leaves out no rows after the mark or boundary before it.
CREATE POLICY mark_batch ON chain_verified FOR INSERT TO auditor WITH CHECK (
    EXISTS (SELECT FROM chain_batch AS batch
             WHERE batch.chain_id = chain_verified.chain_id
               AND batch.last_id = chain_verified.until_id AND batch.seal = chain_verified.seal)
    AND after_id <= greatest(
        (SELECT max(mark.until_id) FROM chain_verified AS mark
          WHERE mark.chain_id = chain_verified.chain_id),
        (SELECT max(root.last_id) FROM chain_batch AS root
          WHERE root.chain_id = chain_verified.chain_id AND root.prev_last_id IS NULL))
);

-- A receiver's rows belong to the login that made them, and its name to the login of its checkpoint.
CREATE POLICY own_insert ON receiver_checkpoint FOR INSERT TO receiver_writer
    WITH CHECK (login = session_user);
CREATE POLICY own_update ON receiver_checkpoint FOR UPDATE TO receiver_writer
    USING (login = session_user);
CREATE POLICY own_insert ON receiver_gap FOR INSERT TO receiver_writer WITH CHECK (
    login = session_user
    AND NOT EXISTS (SELECT FROM receiver_checkpoint AS place
                     WHERE place.chain_id = receiver_gap.chain_id
                       AND place.receiver = receiver_gap.receiver AND place.login <> session_user)
);
CREATE POLICY own_update ON receiver_gap FOR UPDATE TO receiver_writer
    USING (login = session_user);
CREATE POLICY own_insert ON receiver_halt FOR INSERT TO receiver_writer WITH CHECK (
    login = session_user
    AND NOT EXISTS (SELECT FROM receiver_checkpoint AS place
                     WHERE place.chain_id = receiver_halt.chain_id
                       AND place.receiver = receiver_halt.receiver AND place.login <> session_user)
);

CREATE POLICY own_insert ON receiver_state FOR INSERT TO receiver_writer WITH CHECK (
    login = session_user
    AND NOT EXISTS (SELECT FROM receiver_checkpoint AS place
                     WHERE place.chain_id = receiver_state.chain_id
                       AND place.receiver = receiver_state.receiver AND place.login <> session_user)
);
CREATE POLICY own_update ON receiver_state FOR UPDATE TO receiver_writer
    USING (login = session_user);
CREATE POLICY own_insert ON receiver_shadow FOR INSERT TO receiver_writer WITH CHECK (
    login = session_user
    AND NOT EXISTS (SELECT FROM receiver_checkpoint AS place
                     WHERE place.chain_id = receiver_shadow.chain_id
                       AND place.receiver = receiver_shadow.receiver
                       AND place.login <> session_user)
);
CREATE POLICY own_update ON receiver_shadow FOR UPDATE TO receiver_writer
    USING (login = session_user);

-- ----------------------------------------------------------------------------------------- grants
-- docs/permissions.md shows every privilege, by role.

REVOKE ALL ON FUNCTION chain_page_ahead(integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION chain_page_reclaim(integer, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION receiver_gap_trim(integer, text, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION chain_refuse() FROM PUBLIC;
REVOKE ALL ON FUNCTION chain_page_extend(integer, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION chain_create(integer, bytea, text, integer, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION chain_events(integer, bigint, bigint) FROM PUBLIC;

GRANT SELECT ON schema_version, chain_head, chain_term, chain_batch, chain_page, chain_event,
    chain_intake, chain_intake_reject, chain_skip TO sequencer_writer;
-- Not chain_id, topic or partition_ids: they are fixed when the chain is created.
GRANT UPDATE (epoch, nonce, owner, backend_pid, backend_start, last_id, last_seal, published_id,
    is_published) ON chain_head TO sequencer_writer;
GRANT SELECT, INSERT, UPDATE, DELETE ON chain_key_page TO sequencer_writer;
GRANT SELECT, INSERT, UPDATE ON chain_client TO sequencer_writer;
GRANT SELECT, UPDATE (epoch, counter, released, beat_at, lease_seconds, step_down)
    ON chain_lease TO sequencer_writer;
GRANT INSERT ON chain_batch, chain_page, chain_intake_reject, chain_skip TO sequencer_writer;
GRANT INSERT (chain_id, epoch, nonce, frame_key, owner, after_id, system_identifier, timeline)
    ON chain_term TO sequencer_writer;
GRANT INSERT, UPDATE ON chain_intake TO sequencer_writer;
GRANT EXECUTE ON FUNCTION chain_page_extend(integer, bigint) TO sequencer_writer;
GRANT EXECUTE ON FUNCTION chain_events(integer, bigint, bigint)
    TO sequencer_writer, gap_reader, auditor;

GRANT SELECT ON schema_version, chain_term, chain_batch, chain_page, chain_event TO gap_reader;
GRANT SELECT (chain_id, epoch, nonce, last_id, last_seal, published_id, topic, topic_partition,
    is_published) ON chain_head TO gap_reader;

-- Not `login`: the server writes it. And no UPDATE and DELETE of a whole table: with either one, a
-- role may lock the table against everybody.
GRANT SELECT,
    INSERT (chain_id, receiver, head_delivered, batch_last_id, seal, epoch, updated_at, database_id,
            is_report),
    UPDATE (head_delivered, batch_last_id, seal, epoch, updated_at, database_id)
    ON receiver_checkpoint TO receiver_writer;
GRANT SELECT,
    INSERT (chain_id, receiver, after_id, until_id, cause, outcome, source, row_count, found_at,
            duration),
    UPDATE (until_id, cause, outcome, source, row_count, found_at, duration)
    ON receiver_gap TO receiver_writer;
GRANT EXECUTE ON FUNCTION receiver_gap_trim(integer, text, integer) TO receiver_writer;
GRANT SELECT, INSERT (chain_id, receiver, id, "group", digest), UPDATE (digest)
    ON receiver_state TO receiver_writer;
GRANT SELECT,
    INSERT (chain_id, receiver, shadow_of, compared_id, compared, groups, differs_group, differs_id,
            equal_id, stored_digest, found_digest),
    UPDATE (shadow_of, compared_id, compared, groups, differs_group, differs_id, equal_id,
            stored_digest, found_digest, updated_at)
    ON receiver_shadow TO receiver_writer;
-- Not UPDATE, not DELETE: no service lifts its own halt.
GRANT SELECT, INSERT (chain_id, receiver, at_id, reason, detail) ON receiver_halt
    TO receiver_writer;
GRANT SELECT ON schema_version TO receiver_writer;
GRANT SELECT (chain_id, topic, topic_partition) ON chain_head TO receiver_writer;

-- All of chain_head except the salt of its keys.
GRANT SELECT (chain_id, epoch, nonce, owner, backend_pid, backend_start, last_id, last_seal,
    published_id, topic, topic_partition, is_published, partition_ids, created_at) ON chain_head TO auditor;
GRANT SELECT ON schema_version, chain_lease, chain_term, chain_batch, chain_page, chain_event,
    chain_key_page, chain_client, chain_intake, chain_intake_reject, chain_skip, receiver_checkpoint, receiver_gap,
    receiver_halt, receiver_state, receiver_shadow, chain_verified, chain_act TO auditor;
-- Not UPDATE, not DELETE: a mark that was set stays. The server sets number, login and time.
GRANT INSERT (chain_id, after_id, until_id, seal, verified_by) ON chain_verified TO auditor;
-- To see whether the numbers are below those of the rows, as on a promoted logical replica.
GRANT SELECT ON SEQUENCE chain_verified_mark_id_seq, chain_act_act_id_seq TO auditor;

RESET ROLE;
