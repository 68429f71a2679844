-- The statements for what is stored about a receiver. The role `receiver_writer` may run all of them.

-- load: a receiver's place, the database that it is in, whether the receiver has halted, and which
-- other login holds its name; ids as text: the connection may be the caller's own, with codecs of its own
SELECT v.version, v.upgrade_to, v.database_id::text,
       c.head_delivered, c.batch_last_id, encode(c.seal, 'hex') AS seal, c.epoch,
       c.database_id::text AS stored_in, c.is_report,
       h.at_id AS halted_at_id, h.reason, h.detail, h.halted_at,
       CASE WHEN c.login <> session_user AND row_security_active('public.receiver_checkpoint')
            THEN c.login END AS held_by
FROM public.schema_version v
LEFT JOIN public.receiver_checkpoint c ON c.chain_id = $1 AND c.receiver = $2
LEFT JOIN public.receiver_halt h ON h.chain_id = $1 AND h.receiver = $2;

-- save: compare-and-set of a receiver's place, which never moves back
-- If none is stored, it is inserted at a start ($3 = $4) or from the beginning of the chain, and
-- never from anywhere else: then a place was lost, with the database that had it. The connection
-- may be the caller's own: in another database than $8 nothing is stored.
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
RETURNING head_delivered;

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
