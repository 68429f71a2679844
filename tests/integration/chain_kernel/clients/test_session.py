"""A session opens when it is needed, gives up after an error, and closes after a while."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from chain_kernel.clients import session as session_module
from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.postgres import close_connection, connect
from chain_kernel.clients.postgres_errors import DRIVER_ERRORS
from chain_kernel.clients.session import Connections, Session, SessionConfig, connected
from chain_kernel.errors import (
    ConnectError,
    OrderchainError,
    RetryError,
    SchemaError,
    SettingError,
)
from tests.deadlines import LONG_SECONDS, deadline, until
from tests.silent_server import silent_server

if TYPE_CHECKING:
    from chain_kernel.clients.postgres import Connection

PID = "SELECT pg_backend_pid() AS pid"


@pytest.fixture
async def watcher(empty_database: str) -> AsyncIterator[Connection]:
    """A connection that looks at the others, and makes what a test needs."""
    connection = await connect(
        DatabaseConfig.of(empty_database), application_name="watcher", within_seconds=LONG_SECONDS
    )
    await connection.execute("CREATE TABLE orders (id int CHECK (id > 0))")
    yield connection
    await close_connection(connection)


@pytest.fixture
def config_of(empty_database: str, watcher: Connection) -> Callable[..., SessionConfig]:
    def make(**given: Any) -> SessionConfig:
        return SessionConfig(
            **{
                "database": DatabaseConfig.of(empty_database),
                "application_name": "session",
                "role": "auditor",
                "connect_seconds": LONG_SECONDS,
                "statement_seconds": LONG_SECONDS,
                **given,
            }
        )

    return make


@asynccontextmanager
async def opened(config: SessionConfig, **given: Any) -> AsyncIterator[Session]:
    session = Session(config, **given)
    try:
        yield session
    finally:
        await session.close()


async def until_open(watcher: Connection, count: int) -> None:
    """Wait until the server has `count` connections of sessions."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'session'"
    async with deadline():
        while await watcher.fetchval(query) != count:
            pass  # each look is a round trip


async def pid_of(session: Session) -> int:
    (row,) = await session.fetch(PID)
    return int(row["pid"])


async def test_session_opens_at_its_first_statement(config_of: Any, watcher: Connection) -> None:
    async with opened(config_of(settings={"work_mem": "7MB"})) as session:
        await until_open(watcher, 0)
        pid = await pid_of(session)
        assert await pid_of(session) == pid
        (row,) = await session.fetch("SELECT current_setting('work_mem')")
        assert row[0] == "7MB"
        assert await session.execute("INSERT INTO orders SELECT generate_series(1, $1)", 7) == 7
        assert await session.run(lambda c: c.fetchval("SELECT count(*) FROM orders")) == 7
        await until_open(watcher, 1)
    await until_open(watcher, 0)


async def test_ended_connection_is_given_up(config_of: Any, watcher: Connection) -> None:
    async with opened(config_of()) as session:
        first = await pid_of(session)
        with pytest.raises(RetryError):
            await session.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        assert await pid_of(session) != first


async def test_deadline_gives_the_connection_up(config_of: Any, watcher: Connection) -> None:
    async with opened(config_of(statement_seconds=0.2)) as session:
        with pytest.raises(RetryError, match="no answer in time"):
            await session.fetch("SELECT pg_sleep(600)")
    async with opened(config_of(statement_seconds=0.2)) as session:
        with pytest.raises(RetryError, match="no answer in time"):
            await session.run(lambda connection: connection.execute("SELECT pg_sleep(600)"))


async def test_cancelled_caller_harms_no_session(config_of: Any, watcher: Connection) -> None:
    async with opened(config_of()) as session:
        first = await pid_of(session)
        asking = asyncio.create_task(session.fetch("SELECT pg_sleep(600)"))
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)' AND pid = $1"
        )
        await until(lambda: watcher.fetchval(query, first))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await pid_of(session) != first


@pytest.mark.parametrize(
    ("statement", "kind", "words"),
    [
        ("SELECT * FROM missing", SchemaError, "chainctl schema apply"),
        ("INSERT INTO orders VALUES (-1)", OrderchainError, "refused the statement"),
        ("SELECT 1 / 0", OrderchainError, "division by zero"),
        ("SET TRANSACTION READ ONLY; INSERT INTO orders VALUES (1)", RetryError, "read-only"),
        ("SET ROLE pg_monitor; TABLE orders", ConnectError, "is a member of auditor"),
    ],
)
async def test_what_the_server_says_becomes_an_error_of_ours(
    config_of: Any, watcher: Connection, statement: str, kind: type[Exception], words: str
) -> None:
    async with opened(config_of()) as session:
        with pytest.raises(kind, match=words) as found:
            await session.run(lambda connection: connection.execute(statement))
        assert type(found.value) is kind
        assert isinstance(found.value.__cause__, DRIVER_ERRORS)


async def test_transaction_commits_at_its_end(config_of: Any, watcher: Connection) -> None:
    async with opened(config_of()) as session:
        async with session.transaction() as connection:
            await connection.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(KeyError, match="ours"):
            await _insert_and_fail(session)
        async with session.transaction() as connection:
            assert await connection.fetchval("SELECT array_agg(id) FROM orders") == [1]


async def test_commit_answered_by_rollback_has_failed(config_of: Any, watcher: Connection) -> None:
    async with opened(config_of()) as session:
        with pytest.raises(OrderchainError, match="its error was hidden"):
            await _hide_an_error(session)
    connections = Connections(config_of())
    with pytest.raises(DRIVER_ERRORS, match="its error was hidden"):
        await _hide_an_error(connections)
    await until_open(watcher, 0)
    assert await watcher.fetchval("SELECT count(*) FROM orders") == 0


async def _hide_an_error(session: Session | Connections) -> None:
    async with session.transaction() as connection:
        await connection.execute("INSERT INTO orders VALUES (1)")
        with suppress(*DRIVER_ERRORS):
            await connection.execute("SELECT 1 / 0")


async def _insert_and_fail(session: Session) -> None:
    async with session.transaction() as connection:
        await connection.execute("INSERT INTO orders VALUES (2)")
        raise KeyError("ours")


@pytest.fixture
async def scarce(watcher: Connection, config_of: Any, empty_database_name: str) -> Any:
    """A config for a role with one connection at a time."""
    role = f"{empty_database_name}_scarce"
    await watcher.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'few' CONNECTION LIMIT 1")
    config = config_of()
    port = config.database.port
    database = DatabaseConfig(
        host="127.0.0.1", port=port, dbname=empty_database_name, user=role, password="few"
    )
    yield lambda **given: config_of(database=database, **given)
    await watcher.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", role
    )
    await watcher.execute(f"DROP ROLE {role}")


async def test_session_waits_while_there_is_no_connection_left(scarce: Any) -> None:
    async with opened(scarce()) as holder, opened(scarce(busy_seconds=LONG_SECONDS)) as session:
        await pid_of(holder)
        asking = asyncio.create_task(pid_of(session))
        with pytest.raises(RetryError, match="not ready"):
            await pid_of(Session(scarce()))
        assert not asking.done()
        await holder.close()
        assert await asking


async def test_session_that_never_rests_gives_others_a_turn(
    config_of: Any, watcher: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_LIFE_SECONDS", 0.2)
    async with opened(config_of(linger_seconds=LONG_SECONDS)) as session, deadline():
        first = await pid_of(session)
        while await pid_of(session) == first:
            pass  # without a rest
        await until_open(watcher, 1)


async def test_call_ends_within_its_own_deadline_however_long_the_parts_may_take() -> None:
    async with silent_server() as port:
        database = DatabaseConfig(host="127.0.0.1", port=port)
        config = SessionConfig(
            database=database,
            application_name="session",
            role="auditor",
            connect_seconds=600.0,
            call_seconds=0.2,
        )
        async with opened(config) as session:
            with pytest.raises(ConnectError, match="answers in time"):
                await session.fetch(PID)


async def test_call_whose_first_host_is_silent_is_served_by_the_next(config_of: Any) -> None:
    """Each host has its share of what the call leaves for a connect."""
    right = config_of().database
    async with silent_server() as port:
        both = msgspec.structs.replace(
            right, host=f"{right.host},{right.host}", port=f"{port},{right.port}"
        )
        async with opened(config_of(database=both, call_seconds=4.0)) as session:
            assert await pid_of(session)


async def test_read_only_server_is_named(config_of: Any, watcher: Connection) -> None:
    database = config_of().database
    settings = {"default_transaction_read_only": "on"}
    with pytest.raises(ConnectError, match=r"may write \(on the primary\)") as found:
        async with connected(config_of(settings=settings)) as connection:
            await connection.execute("INSERT INTO orders VALUES (1)")
    assert f"(login {database.login}: cannot execute INSERT in a read-only" in str(found.value)
    await until_open(watcher, 0)


async def test_connections_are_used_again(config_of: Any, watcher: Connection) -> None:
    connections = Connections(config_of())
    first, second = await connections.take(), await connections.take()
    connections.give_back(first)
    assert await connections.take() is first
    await second.execute("BEGIN")
    connections.give_back(second)
    await until_open(watcher, 1)
    first.terminate()
    connections.give_back(first)
    async with connections.transaction() as third:
        assert third is not first
        await third.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(KeyError):
        await _take_and_fail(connections)
    async with connections.transaction() as fourth:
        assert await fourth.fetchval("SELECT array_agg(id) FROM orders") == [1]
    await connections.close()
    await until_open(watcher, 0)


async def _take_and_fail(connections: Connections) -> None:
    async with connections.transaction() as connection:
        await connection.execute("INSERT INTO orders VALUES (2)")
        raise KeyError("ours")


async def test_codec_of_a_type_that_our_statements_use_is_refused(watcher: Connection) -> None:
    await watcher.set_type_codec(
        "jsonb", encoder=str, decoder=json.loads, schema="pg_catalog"
    )  # a handler's own
    assert await watcher.fetchval("""SELECT '{"a": 1}'::jsonb""") == {"a": 1}
    with pytest.raises(SettingError, match="codec was 'uuid', expected the driver's own"):
        await watcher.set_type_codec("uuid", encoder=str, decoder=str, schema="pg_catalog")
