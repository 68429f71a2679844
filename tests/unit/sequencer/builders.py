"""Terms and orders for the tests of the sequencer's cores."""

from __future__ import annotations

from uuid import UUID

from chain_kernel.model import Term
from chain_kernel.seal import genesis_seal

DATABASE_ID = UUID(int=7)
WALL_NS = 1_700_000_000_123_456_789


def make_term(
    *,
    last_id: int = 0,
    epoch: int = 1,
    partition_ids: int = 2**23,
    committed_at_us: int = 0,
    spread: int = 0,
    seen_id: int = 0,
) -> Term:
    return Term(
        chain_id=1,
        database_id=DATABASE_ID,
        epoch=epoch,
        nonce=epoch.to_bytes(16, "big"),
        frame_key=epoch.to_bytes(32, "big"),
        last_id=last_id,
        last_seal=genesis_seal(DATABASE_ID, 1),
        last_committed_at_us=committed_at_us,
        published_id=last_id,
        topic="orders",
        partition=0,
        key_salt=1,
        partition_ids=partition_ids,
        spread=spread,
        seen_id=seen_id,
    )
