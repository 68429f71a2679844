"""A session is as it must be, whatever its role has set; a try that is given up leaves nothing."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest

from chain_kernel.errors import RetryError
from chain_kernel.sql import GAP_READER, RECEIVER_WRITER
from gapfill import GapReader, GapReaderConfig
from matcher_receiver import CheckpointConfig, PostgresCheckpointStore
from tests.builders.stored_chain import StoredChain
from tests.deadlines import deadline

HARMFUL = {
    "search_path": "pg_catalog",
    "statement_timeout": "1ms",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "standard_conforming_strings": "off",
}
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
TRIES = 6


@pytest.fixture
async def stored(database: str) -> AsyncIterator[StoredChain]:
    connection = await asyncpg.connect(database)
    chain = await StoredChain.create(connection, 7)
    await chain.commit(5)
    yield chain
    await connection.close()


async def test_settings_that_a_role_has_made_for_itself_stop_no_receiver_and_are_named(
    stored: StoredChain, role_dsn: Callable[[str], str], database: str
) -> None:
    for role in (GAP_READER, RECEIVER_WRITER):
        writing = {"default_transaction_read_only": "off"}
        own = await asyncpg.connect(role_dsn(role), server_settings=writing)
        for name, value in HARMFUL.items():
            await own.execute(f"ALTER ROLE {role} SET {name} = '{value}'")
        await own.close()
    try:
        async with GapReader(GapReaderConfig(database=role_dsn(GAP_READER), chain_id=7)) as reader:
            start = (await reader.standing(0)).mark
            assert start is not None
            runs = [run async for run in reader.runs(start, stored.chain.mark().id)]
        store = PostgresCheckpointStore(
            CheckpointConfig(database=role_dsn(RECEIVER_WRITER), chain_id=7, name="r")
        )
        await store.save(0, runs[-1].end)
        await store.close()
        checking = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "chainctl", "schema", "check"),
            env={**os.environ, "CHAINCTL_DATABASE": database},
            stdout=asyncio.subprocess.PIPE,
        )
        async with deadline():
            out, _ = await checking.communicate()
        assert checking.returncode == 1, out.decode()
        named = [line for line in out.decode().splitlines() if "search_path" in line]
        assert any(GAP_READER in line and "pg_catalog" in line for line in named), out.decode()
    finally:
        for role in (GAP_READER, RECEIVER_WRITER):
            for name in HARMFUL:
                await stored.admin.execute(f"ALTER ROLE {role} RESET {name}")
        await stored.admin.execute(
            f"ALTER ROLE {GAP_READER} SET default_transaction_read_only = on"
        )


async def test_tries_that_were_given_up_under_a_lock_leave_no_backend(
    stored: StoredChain, role_dsn: Callable[[str], str], database: str
) -> None:
    config = GapReaderConfig(
        database=role_dsn(GAP_READER), chain_id=7, statement_seconds=0.3, connect_seconds=5.0
    )
    holder = await asyncpg.connect(database)
    try:
        async with holder.transaction():
            await holder.execute("LOCK TABLE chain_head")
            async with GapReader(config) as reader:
                for _ in range(TRIES):
                    with pytest.raises(RetryError, match="no answer in time"):
                        await reader.standing(0)
            async with deadline():
                while await stored.admin.fetchval(WAITING):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
    finally:
        await holder.close()
