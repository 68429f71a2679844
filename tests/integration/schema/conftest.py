"""Databases of the schema's own tests: with the schema applied here, and without one."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from local_stack import PostgresServer, PostgresServerConfig
from local_stack.postgres import SUPERUSER
from local_stack.process import free_port
from tests.opened import connected

Connect = Callable[[str], Awaitable["asyncpg.Connection"]]

GENESIS_SEAL = bytes(range(32))
PARTITION_IDS = 100


@pytest.fixture
async def chain_database(database: str, database_name: str) -> str:
    """The name of a database with our schema and chain 1, whose partitions span 100 ids."""
    async with connected(database) as connection:
        await connection.execute(
            "SELECT chain_create($1, $2, $3, $4, $5)", 1, GENESIS_SEAL, "t.1", 0, PARTITION_IDS
        )
    return database_name


@pytest.fixture
async def connect(postgres_server: PostgresServer, chain_database: str) -> AsyncIterator[Connect]:
    """Opens connections to `chain_database` as a role; they are closed after the test."""
    opened: list[asyncpg.Connection] = []

    async def open_as(role: str) -> asyncpg.Connection:
        dsn = postgres_server.dsn(role, chain_database)
        connection = await asyncpg.connect(dsn)
        opened.append(connection)
        return connection

    yield open_as
    for connection in opened:
        connection.terminate()


@pytest.fixture
def bare_server(server_folder: Path) -> Iterator[PostgresServer]:
    """A server of one test, on which no role of ours exists yet."""
    config = PostgresServerConfig(
        directory=server_folder / "postgres",
        port=free_port(),
        passwords={SUPERUSER: secrets.token_hex(16)},
        shared_buffers_mb=16,
        max_wal_size_mb=64,
    )
    with PostgresServer(config) as server:
        yield server


@pytest.fixture
async def catalog(connect: Connect) -> asyncpg.Connection:
    return await connect(SUPERUSER)
