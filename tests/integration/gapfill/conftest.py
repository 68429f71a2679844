"""Real chains in a real database, made without the sequencer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import asyncpg
import pytest

from gapfill import GapReader, GapReaderConfig
from orderchain.roles import GAP_READER
from tests.unit.matcher_receiver.stored_chain import StoredChain

MakeChain = Callable[..., Awaitable[StoredChain]]


@pytest.fixture
async def admin(database: str) -> AsyncIterator[asyncpg.Connection]:
    """A superuser's connection, to look and to plant."""
    connection = await asyncpg.connect(database, timeout=10)
    yield connection
    await connection.close(timeout=5)


@pytest.fixture
def make_stored(admin: asyncpg.Connection) -> MakeChain:
    """Make a chain with batches of the given sizes and store it."""

    async def make(sizes: Iterable[int], chain_id: int = 7, **settings: int) -> StoredChain:
        stored = await StoredChain.create(admin, chain_id, **settings)
        for rows in sizes:
            await stored.commit(rows)
        return stored

    return make


@pytest.fixture
async def reader(role_dsn: Callable[[str], str]) -> AsyncIterator[GapReader]:
    """The reader of chain 7 with its own role, and pages small enough to have many."""
    config = GapReaderConfig(database=role_dsn(GAP_READER), chain_id=7, page_rows=10)
    async with GapReader(config) as made:
        yield made
