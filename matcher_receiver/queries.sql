-- The statements for what is stored about a receiver. The role `receiver_writer` may run all of them.

-- load: a receiver's place, the database that it is in, whether the receiver has halted, and which
-- other login holds its name; ids as text: the connection may be the caller's own, with codecs of its own
SELECT v.version, v.upgrade_to, v.database_id::text,
       c.head_delivered, c.batch_last_id, encode(c.seal, 'hex') AS seal, c.epoch,
       c.database_id::text AS stored_in, c.is_report,
       h.at_id AS halted_at_id, h.reason, h.detail, h.halted_at,
       CASE WHEN row_security_active('public.receiver_checkpoint') THEN
            CASE WHEN c.login <> session_user THEN c.login
                 WHEN s.login <> session_user THEN s.login END END AS held_by,
       s.shadow_of
FROM public.schema_version v
LEFT JOIN public.receiver_shadow s ON s.chain_id = $1 AND s.receiver = $2
LEFT JOIN public.receiver_checkpoint c ON c.chain_id = $1 AND c.receiver = $2
LEFT JOIN public.receiver_halt h ON h.chain_id = $1 AND h.receiver = $2;

-- save: compare-and-set of a receiver's place, which never moves back; and states that it has there
-- If none is stored, it is inserted at a start ($3 = $4) or from the beginning of the chain, and
-- never from anywhere else: then a place was lost, with the database that had it. The connection
-- may be the caller's own: in another database than $8 nothing is stored.
WITH moved AS (
    INSERT INTO public.receiver_checkpoint AS stored
        (chain_id, receiver, head_delivered, batch_last_id, seal, epoch, database_id)
    SELECT $1, $2, $4, $5, decode($6, 'hex'), $7, here.database_id
    FROM public.schema_version AS here
    WHERE ($8::text IS NULL OR here.database_id = $8::text::uuid)
      AND ($3::bigint IN (0, $4::bigint)
           OR EXISTS (SELECT FROM public.receiver_checkpoint WHERE chain_id = $1 AND receiver = $2))
    ON CONFLICT (chain_id, receiver) DO UPDATE
    SET head_delivered = excluded.head_delivered,
        batch_last_id = excluded.batch_last_id,
        seal = excluded.seal,
        epoch = excluded.epoch,
        database_id = excluded.database_id,
        updated_at = now()
    WHERE stored.head_delivered = $3 AND excluded.head_delivered >= stored.head_delivered
      AND NOT stored.is_report
    RETURNING chain_id, receiver, head_delivered
), kept AS (
    INSERT INTO public.receiver_state (chain_id, receiver, id, "group", digest)
    SELECT chain_id, receiver, head_delivered, given."group", decode(given.digest, 'hex')
    FROM moved, unnest($9::text[], $10::text[]) AS given ("group", digest)
    ON CONFLICT (chain_id, receiver, id, "group") DO UPDATE SET digest = excluded.digest
)
SELECT head_delivered FROM moved;

-- put_states: states of a receiver whose place is kept elsewhere, and those of a shadow
INSERT INTO receiver_state (chain_id, receiver, id, "group", digest)
SELECT $1, $2, given.*
FROM unnest($3::bigint[], $4::text[], $5::bytea[]) AS given
ON CONFLICT (chain_id, receiver, id, "group") DO UPDATE SET digest = excluded.digest;

-- other_states: the place of another receiver, and the next states that it has stored up to there
SELECT place.head_delivered, state.id, state."group", state.digest
FROM receiver_checkpoint AS place
LEFT JOIN LATERAL (
    SELECT id, "group", digest FROM receiver_state
    WHERE chain_id = place.chain_id AND receiver = place.receiver
      AND id > $3 AND id <= place.head_delivered
    ORDER BY id FETCH FIRST $4 ROWS WITH TIES
) AS state ON true
WHERE place.chain_id = $1 AND place.receiver = $2
ORDER BY state.id, state."group";

-- report_shadow: the result of a shadow's comparisons; it replaces the one before
INSERT INTO receiver_shadow (chain_id, receiver, shadow_of, compared_id, compared, groups,
                             differs_group, differs_id, equal_id, stored_digest, found_digest)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (chain_id, receiver) DO UPDATE
SET shadow_of = excluded.shadow_of,
    compared_id = excluded.compared_id,
    compared = excluded.compared,
    groups = excluded.groups,
    differs_group = excluded.differs_group,
    differs_id = excluded.differs_id,
    equal_id = excluded.equal_id,
    stored_digest = excluded.stored_digest,
    found_digest = excluded.found_digest,
    updated_at = now();

-- report: the place of a receiver that keeps it elsewhere, up or down; never over a checkpoint
INSERT INTO receiver_checkpoint AS stored
    (chain_id, receiver, head_delivered, batch_last_id, seal, epoch, database_id, is_report)
VALUES ($1, $2, $3, $4, decode($5, 'hex'), $6, (SELECT database_id FROM schema_version), true)
ON CONFLICT (chain_id, receiver) DO UPDATE
SET head_delivered = excluded.head_delivered,
    batch_last_id = excluded.batch_last_id,
    seal = excluded.seal,
    epoch = excluded.epoch,
    database_id = excluded.database_id,
    updated_at = now()
WHERE stored.is_report
RETURNING head_delivered;

-- halt: a receiver was contradicted; the first reason stays
INSERT INTO receiver_halt (chain_id, receiver, at_id, reason, detail)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (chain_id, receiver) DO NOTHING;

-- record_gaps: entries of the gap ledger; the last entry of a place counts
INSERT INTO receiver_gap
    (chain_id, receiver, after_id, until_id, cause, outcome, source, row_count, found_at, duration)
SELECT $1, $2, given.*
FROM unnest(
    $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::bigint[],
    $9::timestamptz[], $10::interval[]
) AS given
ON CONFLICT (chain_id, receiver, after_id) DO UPDATE
SET until_id = excluded.until_id,
    cause = excluded.cause,
    outcome = excluded.outcome,
    source = excluded.source,
    row_count = excluded.row_count,
    found_at = excluded.found_at,
    duration = excluded.duration;

-- end_gaps: gaps that were being filled when a process of this receiver ended without a record
UPDATE receiver_gap SET outcome = 'interrupted'
WHERE chain_id = $1 AND receiver = $2 AND outcome = 'open';

-- unfilled_gaps: where the gaps end that a receiver has not filled
SELECT until_id FROM receiver_gap
WHERE chain_id = $1 AND receiver = $2 AND outcome <> 'filled' ORDER BY until_id;

-- fill_gaps: the gaps that a receiver has passed, for one whose place is not stored
UPDATE receiver_gap SET outcome = 'filled'
WHERE chain_id = $1 AND receiver = $2 AND outcome <> 'filled' AND until_id <= $3;

-- trim_gaps: keep the last gaps of a receiver
SELECT receiver_gap_trim($1, $2, $3);
