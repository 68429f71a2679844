-- The demo's own table: what its matching service knows, beside the checkpoint of its receiver.

-- make_table: the table, once; the matching service logs in as receiver_writer. The first two statements let one
-- demo after the other make it; `lock_schema` says why that is no advisory lock.
CREATE TABLE public.demo_exchange_apply ();
DROP TABLE public.demo_exchange_apply;
CREATE TABLE IF NOT EXISTS public.demo_exchange (
    chain_id       integer     NOT NULL,
    receiver       text        NOT NULL,
    -- The id up to which the state was built: that of the checkpoint, always.
    head_delivered bigint      NOT NULL,
    -- Length of the journal after the same row: what is longer was written and not yet stored.
    journal_bytes  bigint      NOT NULL,
    state          bytea       NOT NULL,
    saved_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chain_id, receiver)
);
GRANT SELECT, INSERT, UPDATE ON public.demo_exchange TO receiver_writer;

-- load_state: what was stored last
SELECT head_delivered, journal_bytes, state
  FROM public.demo_exchange
 WHERE chain_id = $1 AND receiver = $2;

-- save_state: store the state; in one transaction with the checkpoint
INSERT INTO public.demo_exchange (chain_id, receiver, head_delivered, journal_bytes, state)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (chain_id, receiver) DO UPDATE
SET head_delivered = excluded.head_delivered,
    journal_bytes = excluded.journal_bytes,
    state = excluded.state,
    saved_at = now();

-- next_chain: the next free number
SELECT coalesce(max(chain_id), 0) + 1 FROM chain_head;
