"""A session is as it must be, whatever its role has set; a try that is given up leaves nothing."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import pytest

from chain_kernel.clients.session import Session
from chain_kernel.errors import RetryError
from chain_kernel.sql import AUDITOR, GAP_READER, RECEIVER_WRITER
from chain_verifier.server import verifier_session_config
from chainctl.console.state_reader import StateReader
from chainctl.database import connected_to
from chainctl.settings import Settings
from gapfill import GapReader, GapReaderConfig
from matcher_receiver import CheckpointConfig, PostgresCheckpointStore
from outbox import ConsumerConfig
from outbox.consumer.inbox import ConsumerConnections
from outbox.sender.config import KeepConfig
from outbox.session import OutboxSession
from tests.builders.stored_chain import StoredChain
from tests.deadlines import deadline, until
from tests.opened import connected

if TYPE_CHECKING:
    from chain_kernel.clients.postgres import Connection

HARMFUL = {
    "search_path": "pg_catalog",
    "statement_timeout": "1ms",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "standard_conforming_strings": "off",
}
WAITING = "SELECT count(*) = 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
TRIES = 6


@pytest.fixture
async def stored(database: str) -> AsyncIterator[StoredChain]:
    async with connected(database) as connection:
        chain = await StoredChain.create(connection, 7)
        await chain.commit(5)
        yield chain


async def test_settings_that_a_role_has_made_for_itself_stop_no_receiver_and_are_named(
    stored: StoredChain, role_dsn: Callable[[str], str], database: str
) -> None:
    for role in (GAP_READER, RECEIVER_WRITER):
        writing = {"default_transaction_read_only": "off"}
        async with connected(role_dsn(role), server_settings=writing) as own:
            for name, value in HARMFUL.items():
                await own.execute(f"ALTER ROLE {role} SET {name} = '{value}'")
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
        # Doctor shows the first of them, as a warning.
        for command, exit_code, words in (
            (("schema", "check"), 1, "session setting search_path is pg_catalog"),
            (("doctor",), 0, "session setting"),
        ):
            checking = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "chainctl", *command),
                env={**os.environ, "CHAINCTL_DATABASE": database},
                stdout=asyncio.subprocess.PIPE,
            )
            async with deadline():
                out, _ = await checking.communicate()
            assert checking.returncode == exit_code, out.decode()
            named = [line for line in out.decode().splitlines() if words in line]
            assert any(GAP_READER in line for line in named), out.decode()
    finally:
        for role in (GAP_READER, RECEIVER_WRITER):
            for name in HARMFUL:
                await stored.admin.execute(f"ALTER ROLE {role} RESET {name}")
        await stored.admin.execute(
            f"ALTER ROLE {GAP_READER} SET default_transaction_read_only = on"
        )


async def test_every_other_session_notices_that_its_client_has_given_up(
    stored: StoredChain, database: str
) -> None:
    """Those of a leader are in `test_session.py` of the sequencer, Spark's in its unit tests."""

    async def shown(connection: Connection) -> str:
        return str(await connection.fetchval("SHOW client_connection_check_interval"))

    chain_id = stored.chain.chain_id
    receiver = CheckpointConfig(database=database, chain_id=chain_id, name="r")
    gap_reader = GapReader(GapReaderConfig(database=database, chain_id=chain_id))
    parts = {
        "gap reader": gap_reader._connection.session,
        "receiver": PostgresCheckpointStore(receiver)._session,
        "console": StateReader(Settings(database=database), None)._session,
        "verifier": Session(verifier_session_config(database, AUDITOR)),
        "outbox": Session(OutboxSession(KeepConfig(database=database), "keep")._config),
    }
    found = {}
    for name, session in parts.items():
        found[name] = await session.run(shown)
        await session.close()
    async with connected_to(database, 5.0, AUDITOR) as connection:
        found["command"] = await shown(connection)
    consumer = ConsumerConfig(name="c", topics=("t",), kafka="h:1", database=database)
    connections = ConsumerConnections(consumer)
    async with connections.transaction() as connection:
        found["consumer"] = await shown(connection)
    await connections.close()
    assert set(found.values()) == {"2s"}, found


async def test_tries_that_were_given_up_under_a_lock_leave_no_backend(
    stored: StoredChain, role_dsn: Callable[[str], str], database: str
) -> None:
    config = GapReaderConfig(
        database=role_dsn(GAP_READER), chain_id=7, statement_seconds=0.3, connect_seconds=5.0
    )
    async with connected(database) as holder, holder.transaction():
        await holder.execute("LOCK TABLE chain_head")
        async with GapReader(config) as reader:
            for _ in range(TRIES):
                with pytest.raises(RetryError, match="no answer in time"):
                    await reader.standing(0)
        await until(lambda: stored.admin.fetchval(WAITING))


async def test_handlers_transaction_lasts_as_long_as_it_may_whatever_the_database_has_set(
    stored: StoredChain, database: str
) -> None:
    known = await stored.admin.fetch(
        "SELECT name FROM pg_settings WHERE name = ANY($1)",
        ["idle_in_transaction_session_timeout", "transaction_timeout"],
    )
    name = await stored.admin.fetchval("SELECT current_database()")
    for (setting,) in known:
        await stored.admin.execute(f"ALTER DATABASE {name} SET {setting} = '60s'")
    connections = ConsumerConnections(
        ConsumerConfig(
            name="c", topics=("t",), kafka="h:1", database=database, handler_seconds=120.0
        )
    )
    async with connections.transaction() as connection:
        for (setting,) in known:
            found = await connection.fetchval(
                "SELECT setting::integer FROM pg_settings WHERE name = $1", setting
            )
            assert found == 0 or found > 120_000, setting
    await connections.close()
