"""Real chains in a real database, made without the sequencer."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import asyncpg
import pytest

from chain_kernel.sql import GAP_READER
from gapfill import GapReader, GapReaderConfig
from tests.builders.stored_chain import StoredChain

MakeStored = Callable[..., Awaitable[StoredChain]]
RoleDsn = Callable[[str], str]

CHAIN_ID = 7
PAGE_ROWS = 10


@pytest.fixture
async def admin(database: str) -> AsyncIterator[asyncpg.Connection]:
    """A superuser's connection, to look and to plant."""
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


@pytest.fixture
def make_stored(admin: asyncpg.Connection) -> MakeStored:
    """Make a chain with batches of the given sizes and store it."""

    async def make(sizes: Iterable[int], chain_id: int = CHAIN_ID) -> StoredChain:
        stored = await StoredChain.create(admin, chain_id)
        for rows in sizes:
            await stored.commit(rows)
        return stored

    return make


@pytest.fixture
def gap_dsn(role_dsn: RoleDsn) -> str:
    return role_dsn(GAP_READER)


@pytest.fixture
async def reader(gap_dsn: str) -> AsyncIterator[GapReader]:
    """The reader of chain 7 with its own role, and pages small enough to have many."""
    config = GapReaderConfig(database=gap_dsn, chain_id=CHAIN_ID, page_rows=PAGE_ROWS)
    async with GapReader(config) as made:
        yield made
