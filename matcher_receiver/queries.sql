-- The statements of the checkpoint. The role `receiver_writer` may run all of them.

-- schema_version: which schema the database has
SELECT version FROM schema_version;

-- load: where a receiver stands
SELECT head_delivered, batch_last_id, seal, epoch
FROM receiver_checkpoint
WHERE chain_id = $1 AND receiver = $2;

-- save: compare-and-set of a receiver's place; inserts it where none is
INSERT INTO receiver_checkpoint AS stored
    (chain_id, receiver, head_delivered, batch_last_id, seal, epoch)
VALUES ($1, $2, $4, $5, $6, $7)
ON CONFLICT (chain_id, receiver) DO UPDATE
SET head_delivered = excluded.head_delivered,
    batch_last_id = excluded.batch_last_id,
    seal = excluded.seal,
    epoch = excluded.epoch,
    updated_at = now()
WHERE stored.head_delivered = $3
RETURNING head_delivered;
