"""Terms for the sequencer's cores, and a world in memory for its shell."""

import asyncio
from typing import Any
from uuid import UUID

from chain_kernel.clock import Clock, SystemClock
from chain_kernel.frame import decode_body, decode_header
from chain_kernel.model import Event, ServerIdentity, Term
from chain_kernel.seal import genesis_seal
from chain_kernel.testing.memory_log import MemoryFrameSink, MemoryLog
from chain_kernel.testing.memory_store import (
    MemoryChainStore,
    MemoryDatabase,
    MemoryKeyStore,
    MemoryLease,
)
from sequencer import Sequencer, SequencerConfig
from tests.tuned import scaled_down, tuned

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
        server=ServerIdentity(1, 1),
        spread=spread,
        seen_id=seen_id,
    )


CONFIG = SequencerConfig(chain_id=1, database="postgresql://memory", kafka="memory:1")


class World:
    """One chain, one log, and sequencers over them."""

    def __init__(self) -> None:
        self.database = MemoryDatabase()
        self.chain = self.database.create(1)
        self.log = MemoryLog()
        self.store = MemoryChainStore(self.database, 1)
        self.sink = MemoryFrameSink(self.log)

    def sequencer(
        self,
        clock: Clock | None = None,
        *,
        below_bounds: dict[str, int] | None = None,
        turns: asyncio.Semaphore | None = None,
        has_broker: bool = True,
        **settings: Any,
    ) -> Sequencer:
        quick = {"heartbeat_seconds": 0.01, "recover_seconds": 5, **settings}
        config = tuned(CONFIG, **quick)
        return Sequencer(
            scaled_down(config, **(below_bounds or {})),
            store=self.store,
            keys=MemoryKeyStore(self.database, 1),
            lease=MemoryLease(self.database, 1),
            sink=self.sink if has_broker else None,
            clock=clock or SystemClock(),
            turns=turns,
        )

    async def steal(self) -> None:
        """Let another process take the chain over behind our back."""
        other = MemoryChainStore(self.database, 1)
        await other.take_over("other", await other.look())

    def rows(self) -> list[Event]:
        return [event for batch in self.chain.batches for event in batch.events]

    def keys(self) -> list[str]:
        return [row.key for row in self.rows()]

    def published(self) -> list[Event]:
        headers = [(record, decode_header(record)) for record in self.log.records]
        return [
            event
            for record, header in headers
            if not header.is_heartbeat
            for event in decode_body(record, header)
        ]
