-- The sender's tables of the outbox. They are in the business's own database, so that a message is
-- stored in the transaction of the change that it reports. `chainctl schema print --part outbox`
-- prints this file with its head, which a DBA may apply with psql (--single-transaction), `chainctl
-- schema apply --part outbox` does it.
--
-- Words: a delivery is one message for one consumer. A message is never changed. What changes is in
-- outbox_pending, for unfinished deliveries only; finished ones are moved to outbox_done.

-- Here `chainctl schema print` puts chainctl/schema/head.sql: the roles, and the version.

-- ----------------------------------------------------------------------------------- destinations

CREATE TABLE outbox_destination (
    destination        text             COLLATE "C" PRIMARY KEY CHECK (destination <> ''),
    topic              text             NOT NULL CHECK (topic <> ''),
    confirm            text             NOT NULL CHECK (confirm IN ('required', 'none')),
    -- One delivery each; with confirm = none a single one, whose consumer is ''.
    consumers          text[]           NOT NULL,
    confirm_topic      text             NOT NULL,
    tries_max          smallint         NOT NULL CHECK (tries_max > 0),
    resend_seconds     double precision NOT NULL CHECK (resend_seconds > 0),
    resend_seconds_max double precision NOT NULL CHECK (resend_seconds_max >= resend_seconds),
    queue_seconds_max  double precision NOT NULL CHECK (queue_seconds_max > 0),
    resend_filter      boolean          NOT NULL,
    payload_bytes_max  integer          NOT NULL CHECK (payload_bytes_max BETWEEN 1 AND 524288),
    changed_at         timestamptz      NOT NULL DEFAULT now(),
    CHECK ((confirm = 'required') = (cardinality(consumers) > 0)),
    CHECK ((confirm = 'required') = (confirm_topic <> ''))
);

-- --------------------------------------------------------------------------------------- messages

-- Whether headers can be sent as they are: what could not be read back would block others.
CREATE FUNCTION outbox_headers_fit(headers jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT CASE WHEN jsonb_typeof(headers) = 'object' THEN (
        SELECT count(*) <= 64
           AND coalesce(sum(octet_length(header.key) + octet_length(header.value #>> '{}')), 0) <= 16384
           AND coalesce(bool_and(jsonb_typeof(header.value) = 'string'
                                 AND header.key ~ '^[ -~]{1,100}$'
                                 AND header.key NOT ILIKE 'orderchain-%'), true)
          FROM jsonb_each(headers) AS header
    ) ELSE false END
$$;

-- Insert-only. Partitioned by message_id, a UUIDv7, and so by time; with a default partition, since
-- a strange clock must not abort the business transaction.
CREATE TABLE outbox_message (
    message_id  uuid        NOT NULL,
    destination text        NOT NULL,
    key         text        CHECK (octet_length(key) BETWEEN 1 AND 512),
    headers     jsonb       CHECK (headers IS NULL OR outbox_headers_fit(headers)),
    payload     bytea       NOT NULL,
    -- Who gave it to a message service; NULL if the business stored it itself.
    sender      text        CHECK (sender ~ '^[ -~]{1,100}$'),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (message_id)
) PARTITION BY RANGE (message_id);
-- A client of a message service lists its own messages without a look at those of others.
CREATE INDEX outbox_message_sender ON outbox_message (sender, message_id) WHERE sender IS NOT NULL;

-- The stubs: unfinished deliveries only, so this table and its indexes stay small whatever the
-- history. `init` to `confirmed` changes no indexed column: with the room that the fill factor
-- leaves, that update is HOT.
CREATE TABLE outbox_pending (
    message_id   uuid        NOT NULL,
    consumer     text        NOT NULL,
    destination  text        NOT NULL COLLATE "C",
    status       smallint    NOT NULL CHECK (status IN (0, 1, 3, 4)),
    -- False until the sender has said whether it is to be sent: in `prepared`, and in an `abnormal`
    -- that came from there.
    is_decided   boolean     NOT NULL DEFAULT true,
    -- Who is asked whether it is to be sent; empty: not known; NULL: that is decided.
    asked        text        COLLATE "C",
    send_count   smallint    NOT NULL DEFAULT 0, -- tries of this round: sends that are known of
    -- Claims without a written outcome, since the last one that has one.
    claim_count  smallint    NOT NULL DEFAULT 0,
    check_count  smallint    NOT NULL DEFAULT 0, -- checks that were really answered
    -- When the next action falls due: a send, or for `prepared` a check. Infinity: none does.
    next_send_at timestamptz NOT NULL,
    claim_token  uuid, -- whose claim it is; results are written back only by it
    topic        text,
    "partition"  integer,
    "offset"     bigint, -- NULL: not known to be on the broker, or an acknowledgement was lost
    sent_at      timestamptz, -- when the last acknowledged send was claimed
    last_error   text,
    PRIMARY KEY (message_id, consumer),
    CHECK (is_decided OR status IN (3, 4)),
    CHECK (NOT (is_decided AND status = 4))
) WITH (
    fillfactor = 40, -- a whole page of rows may be acknowledged by one statement, and grows by it
    -- Rows live for milliseconds: clean up often, by count and not by share, and without a pause.
    autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0
);
-- Indexed by destination: what is due to one is found without a look at what is due to others.
CREATE INDEX outbox_pending_due ON outbox_pending (destination, next_send_at);
-- Checks are found by sender, for the same reason. The condition is no status, which would make
-- every acknowledgement write the indexes.
CREATE INDEX outbox_pending_asked ON outbox_pending (asked, next_send_at) WHERE asked IS NOT NULL;

-- Finished deliveries. Insert-only, and in partitions of the same bounds as outbox_message.
CREATE TABLE outbox_done (
    message_id  uuid        NOT NULL,
    consumer    text        NOT NULL,
    destination text        NOT NULL,
    status      smallint    NOT NULL CHECK (status IN (1, 2, 5, 6)),
    send_count  smallint    NOT NULL,
    finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (message_id, consumer)
) PARTITION BY RANGE (message_id);

CREATE TABLE outbox_message_default PARTITION OF outbox_message DEFAULT;
CREATE TABLE outbox_done_default PARTITION OF outbox_done DEFAULT;

-- The partitions of both tables: the same bounds, the same suffix of their names.
CREATE TABLE outbox_partition (
    lower_id uuid PRIMARY KEY,
    upper_id uuid NOT NULL CHECK (upper_id > lower_id),
    suffix   text NOT NULL UNIQUE
);

-- What the outbox takes on disk, as the last round of retention measured it, and how much it may.
CREATE TABLE outbox_space (
    only_row    boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    bytes       bigint      NOT NULL DEFAULT 0,
    bytes_max   bigint      NOT NULL DEFAULT 0 CHECK (bytes_max >= 0), -- 0: no bound
    measured_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 20);

INSERT INTO outbox_space DEFAULT VALUES;

-- How far each consumer has come in each partition, as its confirms report: what was sent below
-- that is lost and not merely queued. Partition -1: when it last confirmed, with or without that.
CREATE TABLE outbox_progress (
    consumer    text        NOT NULL,
    topic       text        NOT NULL,
    "partition" integer     NOT NULL,
    "offset"    bigint      NOT NULL CHECK ("offset" >= 0), -- the smallest unfinished one
    told_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, topic, "partition")
) WITH (fillfactor = 20);

-- Topics that relays could not use at their last look. The table is for people: a relay remembers
-- its own. What was not seen for long is over, or nothing waits for it any more.
CREATE TABLE outbox_trouble (
    topic   text        PRIMARY KEY,
    reason  text        NOT NULL,
    since   timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now()
);

-- The key of the tokens that go with each message, by which its consumers prove that they received
-- it, and of the MACs, by which they know that it is their sender's. Drawn here and never changed;
-- only relays and message services may read it.
CREATE TABLE outbox_secret (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    confirm_key bytea   NOT NULL CHECK (length(confirm_key) = 32)
);

INSERT INTO outbox_secret (confirm_key) -- 366 random bits
SELECT sha256(decode(replace(string_agg(gen_random_uuid()::text, ''), '-', ''), 'hex'))
  FROM generate_series(1, 3);

-- What people did by hand to a delivery, and why. Never changed, never removed.
CREATE TABLE delivery_act (
    act_id      bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    message_id  uuid        NOT NULL,
    consumer    text        NOT NULL,
    act         text        NOT NULL,
    actor       text        NOT NULL CHECK (actor <> ''),
    login       text        NOT NULL DEFAULT session_user,
    reason      text        NOT NULL CHECK (reason <> ''),
    from_status smallint    NOT NULL,
    to_status   smallint    NOT NULL,
    acted_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON delivery_act (message_id);

-- -------------------------------------------------------------------------------------- functions
-- Those that write are SECURITY DEFINER: a business service that stores messages needs no privilege
-- on the tables, and so cannot change or remove what it or others have stored.

-- The smallest message_id of a time: UUIDv7 begins with the millisecond.
CREATE FUNCTION outbox_id_at(at timestamptz) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0')
            || '00000000000000000000')::uuid
$$;

-- A new message_id: the time, version 7, the variant, and random bits.
CREATE FUNCTION outbox_new_id() RETURNS uuid
    LANGUAGE sql VOLATILE PARALLEL SAFE
    SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT (lpad(to_hex(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
            || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14, 3)
            || substr(replace(gen_random_uuid()::text, '-', ''), 17))::uuid
$$;

-- Stores messages, each with a delivery for every consumer of its destination: all of them, or none
-- and a row for each that is refused. It does not raise for those, so the transaction stays usable.
-- It raises, with SQLSTATE 53000, while the outbox takes more on disk than it may.
--
-- `claim` stores them as claimed for the first try by that token, for a caller that sends them
-- itself after this has committed; otherwise they are due at once. It notifies no relay: a NOTIFY
-- would forbid PREPARE TRANSACTION, let one business commit at a time, and fail it with a full queue.
-- `check_at` stores them as prepared: not to be sent before their sender decides.
CREATE FUNCTION outbox_add_many(
    message_ids uuid[], destinations text[], keys text[], headers jsonb[], payloads bytea[],
    claim uuid DEFAULT NULL, check_at timestamptz DEFAULT NULL, sender text DEFAULT NULL
) RETURNS TABLE ("position" bigint, destination text, payload_bytes_max integer)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    space  public.outbox_space;
    bad_id uuid;
BEGIN
    SELECT * INTO space FROM public.outbox_space WHERE bytes_max > 0 AND bytes > bytes_max;
    IF FOUND THEN
        RAISE EXCEPTION 'the outbox takes % bytes and may take %: nothing is added until history is '
            'dropped', space.bytes, space.bytes_max
            USING ERRCODE = '53000', HINT = 'chainctl outbox keep';
    END IF;
    -- Only a message service speaks for others: its clients.
    IF sender IS NOT NULL AND NOT pg_has_role(session_user, 'outbox_relay', 'MEMBER') THEN
        RAISE EXCEPTION 'a sender is named by a message service alone' USING ERRCODE = '42501';
    END IF;
    -- A time that no reader's calendar holds would be in the way of those who list deliveries.
    IF check_at NOT BETWEEN now() - interval '1 year' AND now() + interval '1 year' THEN
        RAISE EXCEPTION 'check_at was %, expected a time within a year', check_at
            USING ERRCODE = '22023', COLUMN = 'check_at';
    END IF;
    -- Partitions, retention and the inboxes of consumers go by the time in it.
    SELECT id INTO bad_id FROM unnest(message_ids) AS id WHERE id::text !~ '^.{14}7.{4}[89ab]';
    IF FOUND THEN
        RAISE EXCEPTION 'message_id was %, expected a UUIDv7', bad_id
            USING ERRCODE = '22023', COLUMN = 'message_id';
    END IF;
    RETURN QUERY
    SELECT given."position", given.destination, known.payload_bytes_max
      FROM unnest(destinations, payloads) WITH ORDINALITY AS given (destination, payload, "position")
      LEFT JOIN public.outbox_destination AS known USING (destination)
     WHERE known.destination IS NULL OR length(given.payload) > known.payload_bytes_max
     ORDER BY 1;
    IF FOUND THEN
        RETURN;
    END IF;
    INSERT INTO public.outbox_message (message_id, destination, key, headers, payload, sender)
    SELECT given.message_id, given.destination, given.key, given.header, given.payload,
           outbox_add_many.sender
      FROM unnest(message_ids, destinations, keys, outbox_add_many.headers, payloads)
        AS given (message_id, destination, key, header, payload);
    INSERT INTO public.outbox_pending
           (message_id, consumer, destination, status, is_decided, asked, claim_count,
            next_send_at, claim_token)
    SELECT given.message_id, consumer, given.destination,
           CASE WHEN check_at IS NULL THEN 0 ELSE 4 END, check_at IS NULL,
           CASE WHEN check_at IS NOT NULL THEN coalesce(sender, '') END,
           CASE WHEN claim IS NULL OR check_at IS NOT NULL THEN 0 ELSE 1 END,
           CASE WHEN check_at IS NOT NULL THEN check_at
                WHEN claim IS NULL THEN clock_timestamp()
                ELSE clock_timestamp() + known.resend_seconds * interval '1 second' END,
           CASE WHEN check_at IS NULL THEN claim END
      FROM unnest(message_ids, destinations) AS given (message_id, destination)
      JOIN public.outbox_destination AS known USING (destination)
     CROSS JOIN LATERAL unnest(CASE known.confirm WHEN 'none' THEN ARRAY['']
                                    ELSE known.consumers END) AS consumer;
END
$$;

-- Stores one message and returns its id, for services in any language. Raises if it is refused,
-- with SQLSTATE 22023, the field as COLUMN and the value in the message.
CREATE FUNCTION outbox_add(
    destination text, payload bytea, key text DEFAULT NULL, headers jsonb DEFAULT NULL,
    message_id uuid DEFAULT NULL
) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    new_id  uuid := coalesce(message_id, public.outbox_new_id());
    refusal record;
    header  record;
BEGIN
    IF destination IS NULL OR payload IS NULL THEN
        RAISE EXCEPTION 'destination and payload must be given' USING ERRCODE = '22023',
            COLUMN = CASE WHEN destination IS NULL THEN 'destination' ELSE 'payload' END;
    END IF;
    IF octet_length(key) > 512 OR key = '' THEN
        RAISE EXCEPTION 'key was of % bytes, expected 1 to 512', octet_length(key)
            USING ERRCODE = '22023', COLUMN = 'key';
    END IF;
    IF headers IS NOT NULL AND jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers was a JSON %, expected an object of names to text',
            jsonb_typeof(headers) USING ERRCODE = '22023', COLUMN = 'headers';
    END IF;
    FOR header IN SELECT * FROM jsonb_each(headers) LOOP
        IF jsonb_typeof(header.value) <> 'string' OR header.key !~ '^[ -~]{1,100}$'
           OR header.key ILIKE 'orderchain-%' THEN
            RAISE EXCEPTION 'header % was refused, expected a name of 1 to 100 printable ASCII '
                'characters that does not begin with orderchain-, and text', header.key
                USING ERRCODE = '22023', COLUMN = 'headers';
        END IF;
    END LOOP;
    -- The table checks this, too: one rule, whichever way a row comes.
    IF headers IS NOT NULL AND NOT public.outbox_headers_fit(headers) THEN
        RAISE EXCEPTION 'headers were too many or too large, expected at most 64 of them, and at most '
            '16384 bytes of names and values' USING ERRCODE = '22023', COLUMN = 'headers';
    END IF;
    SELECT * INTO refusal FROM public.outbox_add_many(
        ARRAY[new_id], ARRAY[destination], ARRAY[key], ARRAY[headers], ARRAY[payload]
    );
    IF refusal.payload_bytes_max IS NOT NULL THEN
        RAISE EXCEPTION 'payload was % bytes, expected at most %', length(payload),
            refusal.payload_bytes_max USING ERRCODE = '22023', COLUMN = 'payload';
    ELSIF refusal.destination IS NOT NULL THEN
        RAISE EXCEPTION 'destination was %, expected one that was set up', destination
            USING ERRCODE = '22023', COLUMN = 'destination';
    END IF;
    RETURN new_id;
END
$$;

-- Makes the partitions of both histories from the time `from_time` on until `ahead` of them come
-- after it, each of `span_hours`. Rows of a range that are in the default partition already, since
-- a writer's clock or a writer's own ids were ahead, are moved into it. A range with more of them
-- than one call can move is left to the default partition; returns how many such ranges there are.
-- Partitions are made apart and then attached: CREATE ... PARTITION OF would stop the writers,
-- ATTACH locks only the default partition.
CREATE FUNCTION outbox_extend(from_time timestamptz, span_hours integer, ahead integer)
    RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '500ms'
    SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    rows_max    constant integer := 100000; -- a second or two, in which all writers wait
    bytes_max   constant bigint := 268435456;
    span        bigint := span_hours * 3600;
    lower_at    timestamptz;
    new_lower   uuid;
    new_upper   uuid;
    new_suffix  text;
    parent      text;
    fits        boolean;
    left_out    integer := 0;
BEGIN
    IF span_hours NOT BETWEEN 1 AND 24 * 366 OR ahead NOT BETWEEN 0 AND 100 THEN
        RAISE EXCEPTION 'a span of % hours, and % ahead, are out of range', span_hours, ahead;
    END IF;
    -- One at a time, by a row that only the owner can lock: anybody can take an advisory lock.
    PERFORM FROM public.outbox_version FOR UPDATE;
    -- A logical replica has the rows of its primary, and not each of the tables.
    DELETE FROM public.outbox_partition
     WHERE to_regclass(format('public.outbox_message_%s', suffix)) IS NULL;
    FOR step IN 0..ahead LOOP
        lower_at := to_timestamp((floor(extract(epoch FROM from_time) / span) + step) * span);
        new_lower := public.outbox_id_at(lower_at);
        new_upper := public.outbox_id_at(lower_at + span * interval '1 second');
        CONTINUE WHEN EXISTS (SELECT FROM public.outbox_partition
                               WHERE lower_id < new_upper AND upper_id > new_lower);
        IF EXISTS (SELECT FROM public.outbox_message_default
                    WHERE message_id >= new_lower AND message_id < new_upper)
           OR EXISTS (SELECT FROM public.outbox_done_default
                       WHERE message_id >= new_lower AND message_id < new_upper) THEN
            -- Rows are moved, which is rare: a reader that had looked up the partitions before, and
            -- reads them after, would find a row in neither.
            LOCK TABLE ONLY public.outbox_message, ONLY public.outbox_done
                IN ACCESS EXCLUSIVE MODE;
        END IF;
        SELECT count(*) <= rows_max AND coalesce(sum(bytes), 0) <= bytes_max INTO fits FROM (
            (SELECT length(payload) AS bytes FROM public.outbox_message_default
              WHERE message_id >= new_lower AND message_id < new_upper LIMIT rows_max + 1)
             UNION ALL
            (SELECT 0 FROM public.outbox_done_default
              WHERE message_id >= new_lower AND message_id < new_upper LIMIT rows_max + 1)
        ) AS strays;
        IF NOT fits THEN
            left_out := left_out + 1;
            CONTINUE;
        END IF;
        new_suffix := to_char(lower_at AT TIME ZONE 'UTC', 'YYYYMMDDHH24');
        FOREACH parent IN ARRAY ARRAY['outbox_message', 'outbox_done'] LOOP
            EXECUTE format('CREATE TABLE public.%I (LIKE public.%I INCLUDING ALL)',
                           parent || '_' || new_suffix, parent);
            EXECUTE format('WITH moved AS (DELETE FROM public.%I '
                           ' WHERE message_id >= %L AND message_id < %L RETURNING *) '
                           'INSERT INTO public.%I SELECT * FROM moved',
                           parent || '_default', new_lower, new_upper, parent || '_' || new_suffix);
            EXECUTE format('ALTER TABLE public.%I ATTACH PARTITION public.%I '
                           'FOR VALUES FROM (%L) TO (%L)',
                           parent, parent || '_' || new_suffix, new_lower, new_upper);
        END LOOP;
        INSERT INTO public.outbox_partition (lower_id, upper_id, suffix)
        VALUES (new_lower, new_upper, new_suffix);
    END LOOP;
    RETURN left_out;
END
$$;

-- Drops both partitions that begin at `dropped_id`. Messages with an unfinished delivery survive:
-- they are moved to the default partition, with what is done of them. Returns how many did; NULL,
-- and drops nothing, if more than `survivors_max` would have to.
CREATE FUNCTION outbox_drop(dropped_id uuid, survivors_max integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '500ms'
    SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    dropped   public.outbox_partition;
    survivors bigint;
BEGIN
    -- One at a time, by a row that only the owner can lock: anybody can take an advisory lock.
    PERFORM FROM public.outbox_version FOR UPDATE;
    DELETE FROM public.outbox_partition WHERE lower_id = dropped_id RETURNING * INTO dropped;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- From here on nobody adds to the range: this waits, within the timeout, for those who had
    -- begun to.
    EXECUTE format('ALTER TABLE public.outbox_message DETACH PARTITION public.%I',
                   'outbox_message_' || dropped.suffix);
    EXECUTE format('ALTER TABLE public.outbox_done DETACH PARTITION public.%I',
                   'outbox_done_' || dropped.suffix);
    SELECT count(*) INTO survivors FROM (
        SELECT DISTINCT message_id FROM public.outbox_pending
         WHERE message_id >= dropped.lower_id AND message_id < dropped.upper_id
         LIMIT survivors_max + 1
    ) AS unfinished;
    IF survivors > survivors_max THEN
        RAISE EXCEPTION 'more than % messages of partition % are unfinished', survivors_max,
            dropped.suffix USING ERRCODE = '55006';
    END IF;
    EXECUTE format(
        'INSERT INTO public.outbox_message SELECT * FROM public.%I AS message '
        ' WHERE EXISTS (SELECT FROM public.outbox_pending AS pending '
        '                WHERE pending.message_id = message.message_id)',
        'outbox_message_' || dropped.suffix
    );
    EXECUTE format(
        'INSERT INTO public.outbox_done SELECT * FROM public.%I AS done '
        ' WHERE EXISTS (SELECT FROM public.outbox_pending AS pending '
        '                WHERE pending.message_id = done.message_id)',
        'outbox_done_' || dropped.suffix
    );
    EXECUTE format('DROP TABLE public.%I, public.%I',
                   'outbox_message_' || dropped.suffix, 'outbox_done_' || dropped.suffix);
    RETURN survivors;
EXCEPTION
    WHEN object_in_use THEN
        RETURN NULL; -- and everything above is undone
END
$$;

-- Removes finished messages older than `before` from the default partitions, at most `rows_max` of
-- them, and of their deliveries; returns how many messages. The default partitions hold strays and
-- survivors, so they are small.
CREATE FUNCTION outbox_trim(before timestamptz, rows_max integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    trimmed bigint;
BEGIN
    DELETE FROM public.outbox_message_default WHERE message_id IN (
        SELECT message_id FROM public.outbox_message_default AS message
         WHERE created_at < before
           AND NOT EXISTS (SELECT FROM public.outbox_pending AS pending
                            WHERE pending.message_id = message.message_id)
         LIMIT rows_max
    );
    GET DIAGNOSTICS trimmed = ROW_COUNT;
    DELETE FROM public.outbox_done_default WHERE (message_id, consumer) IN (
        SELECT message_id, consumer FROM public.outbox_done_default AS done
         WHERE finished_at < before
           AND NOT EXISTS (SELECT FROM public.outbox_pending AS pending
                            WHERE pending.message_id = done.message_id)
         LIMIT rows_max
    );
    RETURN trimmed;
END
$$;

-- Measures what the outbox takes on disk, with its indexes and what is not finished. While that is
-- more than `new_bytes_max` (0: no bound; NULL: the bound that was set last) nothing more is added.
CREATE FUNCTION outbox_measure(new_bytes_max bigint) RETURNS TABLE (bytes bigint, bytes_max bigint)
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
AS $$
    UPDATE public.outbox_space AS space
       SET bytes = pg_total_relation_size('public.outbox_pending')
                 + (
               SELECT sum(pg_total_relation_size(member.relid))
                 FROM unnest(ARRAY['public.outbox_message', 'public.outbox_done']::regclass[]) AS parent
                CROSS JOIN LATERAL pg_partition_tree(parent) AS member
           ),
           bytes_max = coalesce(new_bytes_max, space.bytes_max), measured_at = now()
    RETURNING space.bytes, space.bytes_max
$$;

-- Does by hand what people may do to deliveries, each with its row in delivery_act: `retry`,
-- `abandon` or `resend`. It chooses those that match everything that is given; what is NULL matches
-- all. Only this function can do it: so no act is without its row. Returns what was changed, with
-- its status after that.
CREATE FUNCTION outbox_act(
    what text, message_ids uuid[], to_destination text, for_consumer text, in_statuses smallint[],
    below uuid, rows_max integer, by_actor text, for_reason text
) RETURNS TABLE (message_id uuid, consumer text, status smallint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    ids       uuid[];
    consumers text[];
BEGIN
    IF what IS NULL OR what NOT IN ('retry', 'abandon', 'resend') THEN
        RAISE EXCEPTION 'act was %, expected retry, abandon or resend', what
            USING ERRCODE = '22023', COLUMN = 'what';
    END IF;
    SELECT array_agg(message_id), array_agg(consumer) INTO ids, consumers FROM (
        SELECT message_id, consumer FROM public.outbox_pending
         WHERE (message_ids IS NULL OR message_id = ANY(message_ids))
           AND (to_destination IS NULL OR destination = to_destination)
           AND (for_consumer IS NULL OR consumer = for_consumer)
           AND (in_statuses IS NULL OR status = ANY(in_statuses))
           AND (below IS NULL OR message_id < below)
           -- What is on its way may be sent now; what is abnormal may be retried, or ended. What is on
           -- its way is ended only by name.
           AND status = ANY(CASE WHEN what = 'resend' THEN '{0,1}'::smallint[]
                                 WHEN what = 'abandon' AND in_statuses IS NOT NULL THEN '{0,1,3}'
                                 ELSE '{3}' END)
         ORDER BY message_id, consumer LIMIT rows_max FOR UPDATE
    ) AS chosen;
    IF ids IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH recorded AS (
        INSERT INTO public.delivery_act
               (message_id, consumer, act, actor, reason, from_status, to_status)
        SELECT pending.message_id, pending.consumer, what, by_actor, for_reason, pending.status,
               CASE what WHEN 'resend' THEN pending.status WHEN 'abandon' THEN 6
                         ELSE CASE WHEN pending.is_decided THEN 0 ELSE 4 END END
          FROM unnest(ids, consumers) AS chosen (message_id, consumer)
          JOIN public.outbox_pending AS pending USING (message_id, consumer)
        RETURNING message_id, consumer, to_status
    )
    SELECT message_id, consumer, to_status FROM recorded ORDER BY message_id, consumer;
    IF what = 'abandon' THEN
        WITH gone AS (
            DELETE FROM public.outbox_pending AS pending
             USING unnest(ids, consumers) AS chosen (message_id, consumer)
             WHERE pending.message_id = chosen.message_id AND pending.consumer = chosen.consumer
            RETURNING pending.message_id, pending.consumer, pending.destination, pending.send_count
        )
        INSERT INTO public.outbox_done (message_id, consumer, destination, status, send_count)
        SELECT message_id, consumer, destination, 6, send_count FROM gone;
        RETURN;
    END IF;
    UPDATE public.outbox_pending AS pending
       -- Without an offset it is due by time alone, wherever its consumer is.
       SET send_count = 0, claim_count = 0, next_send_at = now(), claim_token = NULL,
           "offset" = NULL,
           status = CASE what WHEN 'resend' THEN pending.status
                              ELSE CASE WHEN pending.is_decided THEN 0 ELSE 4 END END,
           check_count = CASE what WHEN 'resend' THEN pending.check_count ELSE 0 END,
           last_error = CASE what WHEN 'resend' THEN pending.last_error END
      FROM unnest(ids, consumers) AS chosen (message_id, consumer)
     WHERE pending.message_id = chosen.message_id AND pending.consumer = chosen.consumer;
END
$$;

-- The first partitions, so that messages can be stored before any relay has run.
SELECT outbox_extend(now(), 6, 2);

-- ----------------------------------------------------------------------------------------- grants
-- docs/permissions.md shows every privilege, by role.

REVOKE ALL ON FUNCTION outbox_id_at(timestamptz), outbox_new_id() FROM PUBLIC;
REVOKE ALL ON FUNCTION
    outbox_add_many(uuid[], text[], text[], jsonb[], bytea[], uuid, timestamptz, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION outbox_add(text, bytea, text, jsonb, uuid) FROM PUBLIC;
REVOKE ALL ON FUNCTION outbox_extend(timestamptz, integer, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION outbox_drop(uuid, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION outbox_trim(timestamptz, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION outbox_measure(bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION outbox_headers_fit(jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION
    outbox_act(text, uuid[], text, text, smallint[], uuid, integer, text, text) FROM PUBLIC;

-- A business service may store messages, and look up where they may go; nothing else.
GRANT SELECT ON outbox_version, outbox_destination TO outbox_writer;
GRANT EXECUTE ON FUNCTION outbox_new_id() TO outbox_writer;
GRANT EXECUTE ON FUNCTION
    outbox_add_many(uuid[], text[], text[], jsonb[], bytea[], uuid, timestamptz, text)
    TO outbox_writer, outbox_relay;
GRANT EXECUTE ON FUNCTION outbox_add(text, bytea, text, jsonb, uuid) TO outbox_writer, outbox_relay;

GRANT SELECT ON outbox_version, outbox_destination, outbox_message, outbox_pending, outbox_done,
    outbox_progress, outbox_partition, outbox_space TO outbox_relay;
GRANT SELECT ON outbox_secret TO outbox_relay;
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_trouble TO outbox_relay;
GRANT UPDATE (status, is_decided, asked, send_count, claim_count, check_count, next_send_at,
    claim_token, topic, "partition", "offset", sent_at, last_error), DELETE ON outbox_pending TO outbox_relay;
GRANT INSERT ON outbox_done TO outbox_relay;
GRANT INSERT, UPDATE ON outbox_progress TO outbox_relay;
GRANT EXECUTE ON FUNCTION outbox_id_at(timestamptz), outbox_new_id() TO outbox_relay;
GRANT EXECUTE ON FUNCTION outbox_id_at(timestamptz) TO outbox_operator;
GRANT EXECUTE ON FUNCTION outbox_extend(timestamptz, integer, integer) TO outbox_relay, outbox_operator;
GRANT EXECUTE ON FUNCTION outbox_drop(uuid, integer) TO outbox_relay, outbox_operator;
GRANT EXECUTE ON FUNCTION outbox_trim(timestamptz, integer) TO outbox_relay, outbox_operator;
GRANT EXECUTE ON FUNCTION outbox_measure(bigint) TO outbox_relay, outbox_operator;

-- People. They act only through functions, and each act leaves a row in delivery_act.
GRANT SELECT ON outbox_version, outbox_destination, outbox_message, outbox_pending, outbox_done,
    outbox_progress, outbox_partition, outbox_space, outbox_trouble, delivery_act TO outbox_operator;
-- To see whether the numbers are below those of the rows, as on a promoted logical replica.
GRANT SELECT ON SEQUENCE delivery_act_act_id_seq TO outbox_operator;
GRANT INSERT, UPDATE, DELETE ON outbox_destination TO outbox_operator;
GRANT EXECUTE ON FUNCTION
    outbox_act(text, uuid[], text, text, smallint[], uuid, integer, text, text) TO outbox_operator;

RESET ROLE;
