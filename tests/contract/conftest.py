"""One database in memory, and the same one as a real PostgreSQL, with a chain 1."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import asyncpg
import pytest

from orderchain.roles import SEQUENCER_WRITER
from orderchain.seal import genesis_seal
from orderchain.simulation.memory_store import (
    MemoryChainStore,
    MemoryDatabase,
    MemoryKeyStore,
    MemoryLease,
)
from sequencer.config import SequencerConfig
from sequencer.key_store import PostgresKeyStore
from sequencer.lease import PostgresLease
from sequencer.store import PostgresChainStore

if TYPE_CHECKING:
    from orderchain.ports import ChainStore, KeyStore, Lease

OpenStore = Callable[..., "ChainStore"]
OpenLease = Callable[[], "Lease"]
OpenKeys = Callable[[], "KeyStore"]


async def make_chain_in_postgres(database: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        database_id = await connection.fetchval("SELECT database_id FROM schema_version")
        await connection.execute(
            "SELECT chain_create(1, $1, 'orders', 0, 1000000)", genesis_seal(database_id, 1)
        )
    finally:
        await connection.close()


def config_for(dsn: str, chain_id: int = 1) -> SequencerConfig:
    return SequencerConfig(chain_id=chain_id, database=dsn, kafka="unused:9092")


@pytest.fixture(params=["memory", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def memory() -> MemoryDatabase:
    database = MemoryDatabase()
    database.create(1)
    return database


@pytest.fixture
async def writer_dsn(request: pytest.FixtureRequest, kind: str) -> str:
    """The sequencer's DSN of a database with chain 1; none for the one in memory."""
    if kind == "memory":
        return ""
    await make_chain_in_postgres(request.getfixturevalue("database"))
    dsn: str = request.getfixturevalue("role_dsn")(SEQUENCER_WRITER)
    return dsn


@pytest.fixture
async def open_store(
    kind: str, memory: MemoryDatabase, writer_dsn: str
) -> AsyncIterator[OpenStore]:
    """Open stores of one database, each as a process of its own would."""
    opened: list[ChainStore] = []

    def open_one(chain_id: int = 1) -> ChainStore:
        opened.append(
            MemoryChainStore(memory, chain_id)
            if kind == "memory"
            else PostgresChainStore(config_for(writer_dsn, chain_id))
        )
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def open_lease(
    kind: str, memory: MemoryDatabase, writer_dsn: str
) -> AsyncIterator[OpenLease]:
    """The lease of the same database."""
    lease: Lease = (
        MemoryLease(memory, 1) if kind == "memory" else PostgresLease(config_for(writer_dsn))
    )
    yield lambda: lease
    await lease.close()


@pytest.fixture
async def open_keys(kind: str, memory: MemoryDatabase, writer_dsn: str) -> AsyncIterator[OpenKeys]:
    """The keys of the same database."""
    keys: KeyStore = (
        MemoryKeyStore(memory, 1) if kind == "memory" else PostgresKeyStore(config_for(writer_dsn))
    )
    yield lambda: keys
    await keys.close()
