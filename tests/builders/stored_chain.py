"""A chain of `chains.py`, stored in a real database and published to a real topic."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from chain_kernel.frame import default_topic
from chain_kernel.seal import Batch
from tests.builders.chains import Chain
from tests.stored_pages import LET_TAMPER, store_rows

PARTITION_IDS = 1_000_000
STORED_PAGE_ROWS = 9
"""Few, so that batches have several pages, and ranges end in the midst of one."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class StoredChain:
    """Commits batches as the sequencer would: head, rows and batch row in one transaction."""

    admin: Any
    chain: Chain

    @classmethod
    async def create(cls, admin: Any, chain_id: int, *, seed: int = 0) -> Self:
        database_id = await admin.fetchval("SELECT database_id FROM schema_version")
        chain = Chain(chain_id=chain_id, database_id=database_id, seed=seed)
        await admin.execute(
            "SELECT chain_create($1, $2, $3, 0, $4)",
            chain_id,
            chain.genesis,
            default_topic(chain_id),
            PARTITION_IDS,
        )
        stored = cls(admin, chain)
        await stored.lead()
        return stored

    @property
    def topic(self) -> str:
        return default_topic(self.chain.chain_id)

    async def lead(self) -> None:
        """Store who leads."""
        await self.admin.execute(
            "UPDATE chain_head SET epoch = $2, nonce = $3 WHERE chain_id = $1",
            self.chain.chain_id,
            self.chain.epoch,
            self.chain.nonce,
        )
        term = self.chain.terms[0]
        await self.admin.execute(
            "INSERT INTO chain_term (chain_id, epoch, nonce, frame_key, owner, after_id, "
            "system_identifier, timeline) VALUES ($1, $2, $3, $4, 'test', $5, 1, 1)",
            self.chain.chain_id,
            term.epoch,
            term.nonce,
            term.frame_key,
            self.chain.mark().id,
        )

    async def commit(self, rows: int, **settings: int) -> Batch:
        batch = self.chain.add(rows, **settings)
        await self.store(batch)
        return batch

    async def store(self, batch: Batch) -> None:
        async with self.admin.transaction():
            await self.admin.execute(
                "UPDATE chain_head SET last_id = $2, last_seal = $3 WHERE chain_id = $1",
                batch.chain_id,
                batch.last_id,
                batch.seal,
            )
            rows = [(e.id, e.pid, e.key, e.event_time_ns, e.payload) for e in batch.events]
            await store_rows(self.admin, batch.chain_id, rows, STORED_PAGE_ROWS)
            await self.admin.execute(
                "INSERT INTO chain_batch (chain_id, first_id, last_id, prev_last_id, row_count, "
                "epoch, seal, committed_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                batch.chain_id,
                batch.first_id,
                batch.last_id,
                batch.pid,
                batch.row_count,
                batch.epoch,
                batch.seal,
                _EPOCH + timedelta(microseconds=batch.committed_at_us),
            )

    async def delete_rows(self, *ids: int) -> None:
        await self.admin.execute(LET_TAMPER)
        await self.admin.execute(
            "DELETE FROM chain_event WHERE chain_id = $1 AND id = ANY($2)",
            self.chain.chain_id,
            list(ids),
        )

    async def archive_up_to(self, boundary: Batch) -> None:
        """Put a boundary row in the place of `boundary` and everything before it."""
        async with self.admin.transaction():
            chain_id, last_id = self.chain.chain_id, boundary.last_id
            await self.admin.execute(
                "DELETE FROM chain_page WHERE chain_id = $1 AND last_id <= $2", chain_id, last_id
            )
            await self.admin.execute(
                "UPDATE chain_batch SET prev_last_id = NULL, first_id = last_id, row_count = 0 "
                "WHERE chain_id = $1 AND last_id = $2",
                chain_id,
                last_id,
            )
            await self._delete_batches_before(chain_id, last_id)

    async def _delete_batches_before(self, chain_id: int, last_id: int) -> None:
        older = await self.admin.fetch(
            "SELECT last_id FROM chain_batch WHERE chain_id = $1 AND last_id < $2 "
            "ORDER BY last_id DESC",
            chain_id,
            last_id,
        )
        for (batch_last_id,) in older:
            await self.admin.execute(
                "DELETE FROM chain_batch WHERE chain_id = $1 AND last_id = $2",
                chain_id,
                batch_last_id,
            )
