-- The tables of a consumer, in the consumer's own database: what it has applied, what is parked for
-- a retry, what it has given up. `chainctl schema print --part inbox` prints this file, `chainctl
-- schema apply --part inbox` applies it in one transaction. It needs none of the other parts.
--
-- Words: the inbox holds the ids of applied messages, each written in the transaction of its
-- effect. A message is parked while it waits for a retry, or for an earlier message of its key. A
-- dead letter has used up its tries, or is older than the inbox, and waits for a person.

-- Here `chainctl schema print` puts chainctl/schema/head.sql: the roles, and the version.

-- ------------------------------------------------------------------------------------- consumers

-- One row per consumer. Its messages below `horizon` are no longer in the inbox: whether they were
-- applied is not known, so they are not worked on. The horizon only rises.
CREATE TABLE inbox_consumer (
    consumer_id integer     PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name        text        NOT NULL UNIQUE,
    horizon     uuid        NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    created_at  timestamptz NOT NULL DEFAULT now()
);

-- The topics of each consumer.
CREATE TABLE inbox_topic (
    consumer_id   integer     NOT NULL REFERENCES inbox_consumer,
    topic         text        NOT NULL,
    -- Where it began, or was moved to, in each partition from 0 on; in those that came later at
    -- their oldest record. NULL: it has not begun.
    starts        bigint[],
    -- When a process of it was last known to read the topic. One that none has read for a week no
    -- longer keeps the inbox from forgetting.
    subscribed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_id, topic)
);

-- Their partitions. The inbox must outlive what may still come of each: what the consumer has not
-- read there, and what the senders have not finished, as their records report.
CREATE TABLE inbox_partition (
    consumer_id     integer NOT NULL,
    topic           text    NOT NULL,
    topic_partition integer NOT NULL,
    floor           uuid, -- below it no message will come; NULL: that is not known
    PRIMARY KEY (consumer_id, topic, topic_partition),
    FOREIGN KEY (consumer_id, topic) REFERENCES inbox_topic
);

-- ----------------------------------------------------------------------------------------- inbox

-- Ids are UUIDv7, so they rise with time: new rows are close together, old ones are dropped by
-- partition.
CREATE TABLE inbox (
    message_id      uuid        NOT NULL,
    consumer_id     integer     NOT NULL,
    topic           text        NOT NULL, -- where the record was that was applied
    topic_partition integer     NOT NULL,
    record_offset   bigint      NOT NULL,
    received_at     timestamptz NOT NULL,
    processed_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (message_id, consumer_id)
) PARTITION BY RANGE (message_id);

-- For what no day's partition takes: a strange clock of a sender must not stop its consumers.
CREATE TABLE inbox_default PARTITION OF inbox DEFAULT;

-- `place` is the order of arrival among those of the key: only the first one is tried, and it alone
-- has a due_at. It is counted from the rows: a sequence stays behind where rows are replicated.
CREATE TABLE inbox_parked (
    consumer_id     integer     NOT NULL REFERENCES inbox_consumer,
    message_id      uuid        NOT NULL,
    place           bigint      NOT NULL,
    destination     text        NOT NULL,
    topic           text        NOT NULL,
    topic_partition integer     NOT NULL,
    record_offset   bigint      NOT NULL,
    received_at     timestamptz NOT NULL,
    key             bytea, -- bytes, as the record has it: text may hold what PostgreSQL refuses
    confirm_topic   text,
    confirm_token   bytea, -- by which to prove the confirm
    headers         bytea       NOT NULL, -- the caller's own, as a MessagePack map of text to bytes
    payload         bytea       NOT NULL,
    failures        integer     NOT NULL CHECK (failures >= 0),
    due_at          timestamptz, -- NULL: it waits for an earlier message of its key
    last_error      text        NOT NULL,
    parked_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_id, message_id)
);

CREATE INDEX inbox_parked_due ON inbox_parked (consumer_id, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX inbox_parked_key ON inbox_parked (consumer_id, key, place) WHERE key IS NOT NULL;

CREATE TABLE inbox_dead (
    consumer_id     integer     NOT NULL REFERENCES inbox_consumer,
    message_id      uuid        NOT NULL,
    destination     text        NOT NULL,
    topic           text        NOT NULL,
    topic_partition integer     NOT NULL,
    record_offset   bigint      NOT NULL,
    received_at     timestamptz NOT NULL,
    key             bytea, -- bytes, as the record has it: text may hold what PostgreSQL refuses
    confirm_topic   text,
    confirm_token   bytea, -- by which to prove the confirm
    headers         bytea       NOT NULL, -- the caller's own, as a MessagePack map of text to bytes
    payload         bytea       NOT NULL,
    failures        integer     NOT NULL,
    reason          text        NOT NULL
        CHECK (reason IN ('tries used up', 'refused by the handler', 'older than the inbox')),
    last_error      text        NOT NULL,
    dead_at         timestamptz NOT NULL DEFAULT now(),
    -- The row of an abandoned message stays: otherwise a late record of it would be taken for a new
    -- one.
    abandoned_at    timestamptz,
    PRIMARY KEY (consumer_id, message_id)
);

-- Every manual act on a dead letter, or past a record that cannot be read: who, when, why.
-- Insert-only.
CREATE TABLE inbox_act (
    act_id      bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    consumer_id integer     NOT NULL REFERENCES inbox_consumer,
    message_id  uuid,       -- null: no record that could be read
    act         text        NOT NULL CHECK (act IN ('retry', 'abandon', 'pass-over')),
    detail      text        NOT NULL DEFAULT '',
    actor       text        NOT NULL CHECK (actor <> ''), -- who, in their own words
    login       text        NOT NULL DEFAULT session_user, -- and in the server's
    reason      text        NOT NULL CHECK (reason <> ''),
    acted_at    timestamptz NOT NULL DEFAULT now()
);

-- Rows to lock, and nothing else: one transaction at a time changes which message of a key is
-- tried. Only the owner can lock them, through inbox_lock_keys: anybody can take an advisory lock,
-- and block a key with it. Keys share the rows, so some wait for others that need not.
CREATE TABLE inbox_key_lock (
    slot integer PRIMARY KEY
);

INSERT INTO inbox_key_lock SELECT generate_series(0, 1023);

-- Locks keys of a consumer until the transaction ends. It locks all at once, and in one order:
-- otherwise two batches that each hold what the other wants would wait forever.
CREATE FUNCTION inbox_lock_keys(of_consumer integer, keys bytea[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    PERFORM FROM public.inbox_key_lock
     WHERE slot IN (SELECT (hashtextextended(of_consumer || ' ' || encode(key, 'hex'), 0) & 1023)::integer
                      FROM unnest(keys) AS key)
     ORDER BY slot FOR UPDATE;
END
$$;

-- ------------------------------------------------------------------------------------------- acts
-- What people do by hand. Only the functions can do it: so no act is without its row in inbox_act.

-- Parks a dead letter again, due at `due_from` or after the first one of its key. False: it is
-- none.
CREATE FUNCTION inbox_retry_dead(
    of_consumer integer, dead_id uuid, due_from timestamptz, by_actor text, for_reason text
) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    dead public.inbox_dead;
BEGIN
    SELECT * INTO dead FROM public.inbox_dead
     WHERE consumer_id = of_consumer AND message_id = dead_id AND abandoned_at IS NULL
       FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM public.inbox_lock_keys(of_consumer, ARRAY[dead.key]);
    INSERT INTO public.inbox_parked (consumer_id, message_id, place, destination, topic,
        topic_partition, record_offset, received_at, key, confirm_topic, confirm_token, headers,
        payload, failures, due_at, last_error)
    SELECT dead.consumer_id, dead.message_id, coalesce(max(place), 0) + 1, dead.destination,
           dead.topic, dead.topic_partition, dead.record_offset, dead.received_at, dead.key,
           dead.confirm_topic, dead.confirm_token, dead.headers, dead.payload, 0,
           CASE WHEN max(place) IS NULL THEN due_from END, dead.last_error
      FROM public.inbox_parked WHERE consumer_id = of_consumer AND key = dead.key;
    DELETE FROM public.inbox_dead WHERE consumer_id = of_consumer AND message_id = dead_id;
    INSERT INTO public.inbox_act (consumer_id, message_id, act, actor, reason)
    VALUES (of_consumer, dead_id, 'retry', by_actor, for_reason);
    RETURN true;
END
$$;

-- Ends a dead letter; its row stays, so that a late record of it is recognized. False: it is none.
CREATE FUNCTION inbox_abandon_dead(
    of_consumer integer, dead_id uuid, ended_at timestamptz, by_actor text, for_reason text
) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    UPDATE public.inbox_dead SET abandoned_at = ended_at
     WHERE consumer_id = of_consumer AND message_id = dead_id AND abandoned_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO public.inbox_act (consumer_id, message_id, act, actor, reason)
    VALUES (of_consumer, dead_id, 'abandon', by_actor, for_reason);
    RETURN true;
END
$$;

-- Stores that a person goes past a record that cannot be read; false: there is no such consumer.
CREATE FUNCTION inbox_pass_over(
    of_consumer text, what text, by_actor text, for_reason text
) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    INSERT INTO public.inbox_act (consumer_id, act, actor, reason, detail)
    SELECT consumer_id, 'pass-over', by_actor, for_reason, what
      FROM public.inbox_consumer WHERE name = of_consumer;
    RETURN FOUND;
END
$$;

-- ------------------------------------------------------------------------------------- retention

-- The smallest id that a message of this time can have (UUIDv7: 48 bits of milliseconds come first).
CREATE FUNCTION inbox_id_at(of_time timestamptz) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, public, pg_temp
RETURN (lpad(to_hex(floor(extract(epoch FROM of_time) * 1000)::bigint), 12, '0')
    || repeat('0', 20))::uuid;

-- Makes the partitions of the day of `of_time` and of the two after it. Rows of a day that are in
-- the default partition already, since a sender's clock was ahead, are moved into it. A day with
-- more of them than one call can move is left to it; returns how many such days there are.
CREATE FUNCTION inbox_extend(of_time timestamptz) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '2s'
    -- pg_temp last: otherwise it is searched first, and a caller's own type `text` would run as the
    -- owner.
    SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    rows_max  constant integer := 100000; -- about a second, in which all claims wait
    first_day date := (of_time AT TIME ZONE 'UTC')::date;
    new_lower uuid;
    new_upper uuid;
    day_table text;
    left_out  integer := 0;
BEGIN
    -- One at a time, by a row that only the owner can lock: anybody can take an advisory lock.
    PERFORM FROM public.inbox_version FOR UPDATE;
    IF abs(first_day - (now() AT TIME ZONE 'UTC')::date) > 3660 THEN
        RAISE EXCEPTION 'a partition for % is out of range', first_day;
    END IF;
    FOR step IN 0..2 LOOP
        new_lower := inbox_id_at((first_day + step)::timestamp AT TIME ZONE 'UTC');
        new_upper := inbox_id_at((first_day + step + 1)::timestamp AT TIME ZONE 'UTC');
        day_table := format('inbox_%s', to_char(first_day + step, 'YYYYMMDD'));
        CONTINUE WHEN to_regclass(format('public.%I', day_table)) IS NOT NULL;
        IF EXISTS (SELECT FROM public.inbox_default
                    WHERE message_id >= new_lower AND message_id < new_upper) THEN
            -- Rows are moved, which is rare: a claim that had looked up the partitions before, and
            -- reads them after, would find an applied message in neither.
            LOCK TABLE ONLY public.inbox IN ACCESS EXCLUSIVE MODE;
        END IF;
        IF (SELECT count(*) > rows_max FROM (
                SELECT FROM public.inbox_default
                 WHERE message_id >= new_lower AND message_id < new_upper LIMIT rows_max + 1
            ) AS strays) THEN
            left_out := left_out + 1;
            CONTINUE;
        END IF;
        EXECUTE format('CREATE TABLE public.%I (LIKE public.inbox INCLUDING ALL)', day_table);
        EXECUTE format('WITH moved AS (DELETE FROM public.inbox_default '
                       ' WHERE message_id >= %L AND message_id < %L RETURNING *) '
                       'INSERT INTO public.%I SELECT * FROM moved', new_lower, new_upper, day_table);
        EXECUTE format(
            'ALTER TABLE public.inbox ATTACH PARTITION public.%I FOR VALUES FROM (%L) TO (%L)',
            day_table, new_lower, new_upper
        );
    END LOOP;
    RETURN left_out;
END
$$;

-- Raises a consumer's horizon to `new_horizon` and drops what is below every consumer's: whole
-- days, except in the default partition, whose rows go in pieces, one a call. Returns how many
-- partitions went. Meanwhile all claims wait. A claim that began before and has not seen the new
-- horizon must not find the rows gone, or it would work on an applied message again.
CREATE FUNCTION inbox_retire(of_consumer integer, new_horizon uuid) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '1s'
    SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    rows_max constant integer := 100000; -- less than a second
    lowest   uuid;
    old_days name[];
    old_day  name;
BEGIN
    -- First of all: two consumers that waited for each other's horizon would both keep theirs.
    UPDATE public.inbox_consumer SET horizon = new_horizon
     WHERE consumer_id = of_consumer AND horizon < new_horizon;
    SELECT horizon INTO lowest FROM public.inbox_consumer ORDER BY horizon LIMIT 1;
    old_days := ARRAY(
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'public.inbox'::regclass
           -- CASE, since conditions are evaluated in any order, and only these names hold a date.
           AND CASE WHEN c.relname ~ '^inbox_[0-9]{8}$'
                    THEN inbox_id_at((substr(c.relname, 7)::date + 1)::timestamp AT TIME ZONE 'UTC')
                END <= lowest);
    -- Most calls find nothing to drop, and must not make anybody wait.
    IF cardinality(old_days) = 0
       AND NOT EXISTS (SELECT FROM public.inbox_default WHERE message_id < lowest) THEN
        RETURN 0;
    END IF;
    LOCK TABLE public.inbox IN ACCESS EXCLUSIVE MODE;
    -- A new consumer may have come meanwhile, and have claimed what is old.
    IF EXISTS (SELECT FROM public.inbox_consumer WHERE horizon < lowest) THEN
        RETURN 0;
    END IF;
    FOREACH old_day IN ARRAY old_days LOOP
        -- Another call may have been first.
        EXECUTE format('DROP TABLE IF EXISTS public.%I', old_day);
    END LOOP;
    DELETE FROM public.inbox_default WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM public.inbox_default WHERE message_id < lowest LIMIT rows_max
    ));
    RETURN cardinality(old_days);
END
$$;

-- ----------------------------------------------------------------------------------------- grants
-- docs/permissions.md shows every privilege, by role.

REVOKE ALL ON FUNCTION inbox_lock_keys(integer, bytea[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION inbox_retry_dead(integer, uuid, timestamptz, text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION inbox_abandon_dead(integer, uuid, timestamptz, text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION inbox_pass_over(text, text, text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION inbox_id_at(timestamptz) FROM PUBLIC;
REVOKE ALL ON FUNCTION inbox_extend(timestamptz) FROM PUBLIC;
REVOKE ALL ON FUNCTION inbox_retire(integer, uuid) FROM PUBLIC;

GRANT SELECT ON inbox_version, inbox_consumer TO outbox_consumer;
-- Not the horizon: only inbox_retire raises it, together with the drop.
GRANT INSERT (name) ON inbox_consumer TO outbox_consumer;
GRANT SELECT, INSERT, UPDATE ON inbox_topic TO outbox_consumer;
GRANT SELECT, INSERT, UPDATE, DELETE ON inbox_partition TO outbox_consumer;
-- Not UPDATE, not DELETE: what was applied stays so.
GRANT SELECT, INSERT ON inbox TO outbox_consumer;
GRANT SELECT, INSERT, UPDATE, DELETE ON inbox_parked TO outbox_consumer;
-- Not UPDATE, not DELETE: a dead letter belongs to a person.
GRANT SELECT, INSERT ON inbox_dead TO outbox_consumer;
GRANT EXECUTE ON FUNCTION inbox_id_at(timestamptz), inbox_extend(timestamptz),
    inbox_retire(integer, uuid), inbox_lock_keys(integer, bytea[]) TO outbox_consumer;

GRANT SELECT ON inbox_version, inbox_consumer, inbox_topic, inbox_partition, inbox, inbox_parked,
    inbox_dead, inbox_act TO outbox_operator;
-- To see whether the numbers are below those of the rows, as on a promoted logical replica.
GRANT SELECT ON SEQUENCE inbox_consumer_consumer_id_seq, inbox_act_act_id_seq TO outbox_operator;
GRANT EXECUTE ON FUNCTION inbox_retry_dead(integer, uuid, timestamptz, text, text),
    inbox_abandon_dead(integer, uuid, timestamptz, text, text),
    inbox_pass_over(text, text, text, text) TO outbox_operator;

RESET ROLE;
