"""Seeded chains in batches with true seals."""

import random
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import asyncpg
from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.seal import genesis_seal
from tests.integration.chain_verifier.planted_faults import Row, chain_of
from tests.integration.chain_verifier.published_frames import begin_term
from tests.integration.chain_verifier.stored_rows import fields_of, seal_of
from tests.stored_pages import store_rows

_FIRST_COMMIT: Final = datetime(2026, 1, 1, tzinfo=UTC)
_PARTITION_IDS: Final = 10**6
_PAGE_ROWS: Final = 3
"""Batches have two pages, or three."""


class Committed(Struct, frozen=True):
    """A batch as a sequencer commits it."""

    rows: list[Row]
    epoch: int
    seal_before: bytes
    seal: bytes
    committed_at: datetime

    @property
    def first_id(self) -> int:
        return self.rows[0].id or 0

    @property
    def last_id(self) -> int:
        return self.rows[-1].id or 0

    @property
    def prev_last_id(self) -> int:
        return self.rows[0].pid or 0


class Chain(Struct):
    """A whole chain in batches of 4 to 8 rows; the epoch rises by two now and then."""

    chain_id: int
    database_id: UUID
    batches: list[Committed]

    @property
    def head(self) -> int:
        return self.batches[-1].last_id

    @property
    def row_count(self) -> int:
        return sum(len(batch.rows) for batch in self.batches)


def sealed_chain(rng: random.Random, chain_id: int, database_id: UUID) -> Chain:
    rows = [replace(row, chain_id=chain_id) for row in chain_of(rng, rng.randint(110, 180))]
    seal = genesis_seal(database_id, chain_id)
    batches: list[Committed] = []
    epoch = 3
    while len(rows) > 4:
        count = rng.randint(4, 8)
        taken, rows = rows[:count], rows[count:]
        epoch += rng.choice([0, 0, 0, 2])
        committed_at = _FIRST_COMMIT + timedelta(seconds=len(batches))
        after = seal_of(taken, seal, epoch, committed_at)
        batches.append(Committed(taken, epoch, seal, after, committed_at))
        seal = after
    return Chain(chain_id, database_id, batches)


async def commit(connection: asyncpg.Connection, chain: Chain, topic: str) -> None:
    """Put a whole chain into the tables, published to its head."""
    chain_id, batches = chain.chain_id, chain.batches
    await connection.execute(
        "SELECT chain_create($1, $2, $3, 0, $4)",
        chain_id, batches[0].seal_before, topic, _PARTITION_IDS,
    )  # fmt: skip
    await begin_term(connection, chain_id)
    await connection.execute("SELECT chain_page_extend($1, $2)", chain_id, chain.head)
    for batch in batches:
        await store_rows(connection, chain_id, list(map(fields_of, batch.rows)), _PAGE_ROWS)
    await connection.executemany(
        "INSERT INTO chain_batch VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        [
            (chain_id, b.first_id, b.last_id, b.prev_last_id, len(b.rows), b.epoch, b.seal,
             b.committed_at)
            for b in batches
        ],
    )  # fmt: skip
    await connection.execute(
        "UPDATE chain_head SET last_id = $2, published_id = $2, last_seal = $3, epoch = $4"
        " WHERE chain_id = $1",
        chain_id, chain.head, batches[-1].seal, batches[-1].epoch,
    )  # fmt: skip
