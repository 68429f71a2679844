"""Many chains on a server whose table of locks has room for the partitions of a few of them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from chain_kernel.seal import genesis_seal
from chain_kernel.sql import AUDITOR, GAP_READER, LOGIN_ROLES, schema_sql
from chainctl.console.state_reader import StateReader
from chainctl.settings import Settings
from gapfill import GapReader, GapReaderConfig
from local_stack import KafkaServer, PostgresServer, PostgresServerConfig
from local_stack.postgres import SUPERUSER
from local_stack.process import free_port
from sequencer import open_sequencer
from tests.builders.created_chain import Chain
from tests.builders.orders import make_orders
from tests.command_call import call_here

from .chains import create_chain
from .inspector import inspect

CHAINS = 100
OURS = 50
ORDERS = 50
TIMES = 10
"""At its sixth call a statement would get a plan for any value: the server tries one then."""

COMMANDS = (
    ["status", "--chain", OURS],
    ["lag", "--chain", OURS],
    ["tail", "--chain", OURS],
    ["show", "1", "--chain", OURS],
    ["sizes"],
    ["doctor"],
    ["chain", "list"],
    ["verify", "--local", "--source", "database", "--chain", OURS],
)


@pytest.fixture
def server(server_folder: Path) -> Iterator[PostgresServer]:
    config = PostgresServerConfig(
        directory=server_folder / "few-locks",
        port=free_port(),
        passwords={role: secrets.token_hex(16) for role in (SUPERUSER, *LOGIN_ROLES)},
        shared_buffers_mb=64,
        # The least that PostgreSQL takes: all partitions at once are "out of shared memory".
        max_connections=20,
        settings={
            "max_locks_per_transaction": "10",
            "max_wal_senders": "0",
            "max_worker_processes": "1",
            "autovacuum_max_workers": "1",
            "autovacuum": "off",
        },
    )
    with PostgresServer(config) as server:
        server.prepare_roles()
        server.create_database("many")
        server.execute(f"BEGIN;\n{schema_sql()}\nCOMMIT;\n", database="many")
        yield server


@pytest.mark.nightly
def test_statements_of_one_chain_lock_no_partition_of_another(
    server: PostgresServer, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    asyncio.run(_use(server, kafka_server))
    settings = {
        "CHAINCTL_DATABASE": server.dsn(AUDITOR, "many"),
        "CHAINCTL_GAP_DATABASE": server.dsn(GAP_READER, "many"),
        "CHAINCTL_KAFKA": kafka_server.bootstrap,
    }
    for arguments in COMMANDS:
        done = call_here(arguments, settings, tmp_path)
        assert done.code in (0, 1), (arguments, done)
        assert "shared memory" not in done.out


async def _use(server: PostgresServer, kafka: KafkaServer) -> None:
    await _create_others(server.dsn(SUPERUSER, "many"))
    chain = await create_chain(server, "many", kafka, OURS, commit_seconds=10.0, lease_seconds=20.0)
    with pytest.raises(asyncpg.OutOfMemoryError, match="shared memory"):
        await chain.fetch("SELECT FROM chain_page")
    await _fill(server, await _lead(chain))
    await _look(server)


async def _create_others(dsn: str) -> None:
    """Create the other chains, each with pages, so that each has a rate for `sizes`."""
    connection = await asyncpg.connect(dsn)
    try:
        identity = await connection.fetchval("SELECT database_id FROM schema_version")
        for number in range(1, CHAINS + 1):
            if number != OURS:
                await connection.execute(
                    "SELECT chain_create($1, $2, $3, 0, $4)",
                    number, genesis_seal(identity, number), f"many.{number}", 2**23,
                )  # fmt: skip
                await connection.execute("SELECT chain_page_extend($1, $2)", number, 2**24)
    finally:
        await connection.close()


async def _lead(chain: Chain) -> int:
    orders = make_orders(ORDERS)
    async with open_sequencer(chain.config) as sequencer:
        for order in orders:
            await sequencer.submit_many([order])
    for _ in range(2):
        await chain.fetch("UPDATE chain_head SET published_id = 0 WHERE chain_id = 50")
        async with open_sequencer(chain.config) as sequencer:
            for order in orders[:TIMES]:
                await sequencer.submit_many([order])
    rows = await inspect(chain)
    assert len(rows) == len(orders), "keys that come again are no new orders"
    return rows[-1].id


async def _fill(server: PostgresServer, until_id: int) -> None:
    config = GapReaderConfig(chain_id=OURS, database=server.dsn(GAP_READER, "many"), page_rows=5)
    async with GapReader(config) as reader:
        start = (await reader.standing(0)).mark
        assert start is not None
        found = [event.id async for run in reader.runs(start, until_id) for event in run.events]
    assert len(found) == ORDERS


async def _look(server: PostgresServer) -> None:
    for _ in range(TIMES):
        reader = StateReader(Settings(database=server.dsn(AUDITOR, "many")), None)
        try:
            assert len((await reader.read()).chains) == CHAINS
        finally:
            await reader.close()
