"""A table is locked by a forgotten session: each command for operators names it within seconds."""

import asyncio
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

import chainctl.locks
from chain_kernel.errors import RetryError
from chain_kernel.sql import AUDITOR
from chainctl.console.state_reader import StateReader
from chainctl.settings import Settings
from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER
from tests.deadlines import deadline
from tests.integration.chainctl.conftest import Call
from tests.integration.chainctl.runbooks import sql

ACT = ("--reason", "a test", "--actor", "ann")
BY_TABLE = {
    "chain_head": (
        ("status", "--chain", "1"), ("leader", "--chain", "1"),
        ("lag", "--chain", "1"), ("step-down", "--chain", "1", *ACT), ("chain", "list"),
        ("doctor",),
    ),
    "chain_act": (("acts", "--chain", "1"),),
}  # fmt: skip


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """Runs what needs a loop; connections stay open in between."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def locked(runner: asyncio.Runner, database_name: str, postgres_server: PostgresServer) -> Any:
    """Locks a table from a session of a superuser, as somebody forgets it."""
    begun: list[asyncpg.Connection] = []

    async def lock(statement: str) -> int:
        dsn = postgres_server.dsn(SUPERUSER, database_name)
        connection = await asyncpg.connect(dsn, server_settings={"application_name": "psql"})
        begun.append(connection)
        await connection.execute("BEGIN")
        await connection.execute(statement)
        return int(connection.get_server_pid())

    yield lambda statement: runner.run(lock(statement))
    for connection in begun:
        runner.run(connection.close())


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chainctl.locks, "LOCK_SECONDS", 0.2)


@pytest.mark.parametrize("table", BY_TABLE)
def test_command_under_a_lock_names_its_table_holder_and_query(
    call: Call, state_settings: dict[str, str], locked: Any, table: str
) -> None:
    assert call("chain", "create", 1, settings=state_settings).code == 0
    process_id = locked(f"LOCK TABLE {table}")
    for command in BY_TABLE[table]:
        done = call(*command, settings=state_settings)
        said = done.out + done.err
        for part in (f"{table} is locked", f"process {process_id} of {SUPERUSER} (psql)",
                     "idle in transaction", f"LOCK TABLE {table}"):  # fmt: skip
            assert part in said, (command, done)
        assert done.code == (1 if command == ("doctor",) else 3), done


def test_lock_of_one_row_and_a_login_that_may_not_see_queries(
    call: Call, state_settings: dict[str, str], locked: Any, postgres_server: PostgresServer,
    database_name: str,
) -> None:  # fmt: skip
    assert call("chain", "create", 1, settings=state_settings).code == 0
    dsn = state_settings["CHAINCTL_DATABASE"]
    sql(dsn, "UPDATE chain_lease SET released = false RETURNING epoch")
    process_id = locked("UPDATE chain_lease SET step_down = false")
    done = call("step-down", "--chain", 1, *ACT, settings=state_settings)
    held = rf"chain_lease is locked: after \d+ s it was still held by process {process_id} "
    assert re.search(held, done.err)
    locked_by = locked("LOCK TABLE chain_head")
    auditor = {"CHAINCTL_DATABASE": postgres_server.dsn(AUDITOR, database_name)}
    line = call("status", "--chain", 1, settings=auditor).err
    assert f"process {locked_by} of {SUPERUSER} (psql), whose query this login may not see" in line


def test_backend_of_the_same_number_on_another_server_is_not_ours(
    locked: Any, runner: asyncio.Runner, postgres_server: PostgresServer, database_name: str
) -> None:
    process_id = locked("SELECT pg_advisory_xact_lock(1)")

    async def look() -> None:
        dsn = postgres_server.dsn(SUPERUSER, database_name)
        ours, other = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
        waiting = asyncio.ensure_future(ours.execute("SELECT pg_advisory_lock(1)"))
        started_at = await other.fetchval(chainctl.locks._SQL["server_started_at"])
        look = chainctl.locks._SQL["lock_holders"], ours.get_server_pid()
        async with deadline():
            while not (holders := await other.fetch(*look, started_at, 0.0)):
                pass
        assert [each["pid"] for each in holders] == [process_id]
        assert await other.fetch(*look, started_at + timedelta(seconds=1), 0.0) == []
        ours.terminate()
        await asyncio.wait([waiting])
        await other.close()

    runner.run(look())


def test_console_under_a_lock_names_its_holder(
    call: Call, state_settings: dict[str, str], locked: Any, runner: asyncio.Runner
) -> None:
    assert call("chain", "create", 1, settings=state_settings).code == 0
    process_id = locked("LOCK TABLE chain_head")

    async def look() -> None:
        reader = StateReader(Settings(database=state_settings["CHAINCTL_DATABASE"]), None)
        try:
            await reader.read()
        finally:
            await reader.close()

    with pytest.raises(RetryError, match=f"chain_head is locked.*process {process_id}"):
        runner.run(look())
