"""A session opens when it is needed, gives up after an error, and closes after a while."""

from __future__ import annotations

import asyncio
import json
import struct
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.postgres import DRIVER_ERRORS, PoolerFound, close_connection, connect
from chain_kernel.clients.session import Connections, Session, SessionConfig, connected
from chain_kernel.errors import (
    ConnectError,
    OrderchainError,
    RetryError,
    SchemaError,
    SettingError,
)
from tests.deadlines import LONG_SECONDS, deadline
from tests.silent_server import silent_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from chain_kernel.clients.postgres import Connection

PID = "SELECT pg_backend_pid() AS pid"


@pytest.fixture
async def watcher(empty_database: str) -> AsyncIterator[Connection]:
    """A connection that looks at the others, and makes what a test needs."""
    connection = await connect(
        DatabaseConfig.of(empty_database),
        application_name="watcher",
        within_seconds=LONG_SECONDS,
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


async def test_session_opens_at_its_first_statement_and_keeps_its_connection(
    config_of: Any, watcher: Connection
) -> None:
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


async def test_session_that_lingers_is_let_go_of_and_opens_again(
    config_of: Any, watcher: Connection
) -> None:
    async with opened(config_of(linger_seconds=0.05)) as session:
        first = await pid_of(session)
        await until_open(watcher, 0)
        assert await pid_of(session) != first


async def test_callers_come_one_after_the_other(config_of: Any, watcher: Connection) -> None:
    async with opened(config_of()) as session:
        pids = await asyncio.gather(*(pid_of(session) for _ in range(5)))
        assert len(set(pids)) == 1


# -- errors --------------------------------------------------------------------------------------


async def test_connection_that_was_ended_is_given_up_and_the_next_statement_opens_another(
    config_of: Any, watcher: Connection
) -> None:
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


async def test_cancelled_caller_leaves_a_session_that_works(
    config_of: Any, watcher: Connection
) -> None:
    async with opened(config_of()) as session:
        first = await pid_of(session)
        asking = asyncio.create_task(session.fetch("SELECT pg_sleep(600)"))
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)' AND pid = $1"
        )
        async with deadline():
            while not await watcher.fetchval(query, first):
                pass  # each look is a round trip
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


async def test_refusal_of_the_callers_own_is_asked_first(
    config_of: Any, watcher: Connection
) -> None:
    own = KeyError("ours")
    async with opened(config_of(), refusal=lambda _: own) as session:
        with pytest.raises(KeyError):
            await session.fetch("SELECT 1 / 0")
    async with opened(config_of(), refusal=lambda _: None) as session:
        with pytest.raises(OrderchainError):
            await session.fetch("SELECT 1 / 0")


async def test_preparation_runs_on_each_connection_and_its_refusal_ends_it(
    config_of: Any, watcher: Connection
) -> None:
    prepared: list[int] = []

    async def prepare(connection: Connection) -> None:
        prepared.append(await connection.fetchval(PID))
        if len(prepared) == 2:
            raise SchemaError("schema", 2, "1")

    async with opened(config_of(), prepare=prepare) as session:
        first = await pid_of(session)
        await pid_of(session)
        assert prepared == [first]
        with pytest.raises(RetryError):
            await session.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        with pytest.raises(SchemaError) as found:
            await session.fetch(PID)
        assert found.value.__cause__ is None
        await until_open(watcher, 0)
        assert await pid_of(session) == prepared[2]


# -- transactions --------------------------------------------------------------------------------


async def test_transaction_commits_at_its_end_and_not_after_an_error(
    config_of: Any, watcher: Connection
) -> None:
    async with opened(config_of()) as session:
        async with session.transaction() as connection:
            await connection.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(KeyError, match="ours"):
            await _insert_and_fail(session)
        async with session.transaction() as connection:
            assert await connection.fetchval("SELECT array_agg(id) FROM orders") == [1]


async def test_commit_that_the_server_answers_with_a_rollback_has_failed(
    config_of: Any, watcher: Connection
) -> None:
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


# -- few connections -----------------------------------------------------------------------------


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
    async with (
        opened(scarce()) as holder,
        opened(scarce(busy_seconds=LONG_SECONDS)) as session,
    ):
        await pid_of(holder)
        asking = asyncio.create_task(pid_of(session))
        with pytest.raises(RetryError, match="not ready"):
            await pid_of(Session(scarce()))
        assert not asking.done()
        await holder.close()
        assert await asking


async def test_session_gives_up_when_there_is_no_connection_for_long(scarce: Any) -> None:
    async with opened(scarce()) as holder, opened(scarce(busy_seconds=0.3)) as session:
        await pid_of(holder)
        with pytest.raises(RetryError, match="not ready"):
            await pid_of(session)


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
            with pytest.raises(RetryError, match="no answer in time"):
                await session.fetch(PID)


async def _refuse_parameters(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    (length,) = struct.unpack("!i", await reader.readexactly(4))
    await reader.readexactly(length - 4)
    fields = b"SFATAL\0C08P01\0Munsupported startup parameter: jit\0\0"
    writer.write(b"E" + struct.pack("!i", len(fields) + 4) + fields)
    await writer.drain()
    writer.close()


@pytest.mark.parametrize("pooler", ["ignored", "refused", "read through"])
async def test_pooler_that_refuses_whatever_it_is_asked_is_named(pooler: Any) -> None:
    server = await asyncio.start_server(_refuse_parameters, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        database = DatabaseConfig(host="127.0.0.1", port=port, sslmode="disable")
        config = SessionConfig(
            database=database, application_name="session", role="auditor", pooler=pooler
        )
        async with opened(config) as session, deadline():
            with pytest.raises(PoolerFound, match="goes through a pooler, unsupported startup"):
                await session.fetch(PID)


# -- one connection for what is done once --------------------------------------------------------


async def test_connection_that_is_held_names_a_server_that_is_not_to_be_written_to(
    config_of: Any, watcher: Connection
) -> None:
    database = config_of().database
    settings = {"default_transaction_read_only": "on"}
    with pytest.raises(ConnectError, match=r"may write \(on the primary\)") as found:
        async with connected(config_of(settings=settings)) as connection:
            await connection.execute("INSERT INTO orders VALUES (1)")
    assert f"(login {database.login}: cannot execute INSERT in a read-only" in str(found.value)
    await until_open(watcher, 0)


async def test_connection_that_is_held_has_a_deadline_for_each_statement(config_of: Any) -> None:
    with pytest.raises(RetryError, match="no answer in time"):
        async with connected(config_of(statement_seconds=0.2)) as connection:
            await connection.execute("SELECT pg_sleep(600)")


async def test_error_of_a_file_beside_a_connection_is_none_of_the_databases(config_of: Any) -> None:
    with pytest.raises(FileNotFoundError):
        async with connected(config_of()):
            raise FileNotFoundError("ours")


# -- connections that are taken ------------------------------------------------------------------


async def test_connections_are_used_again_and_those_in_a_transaction_ended(
    config_of: Any, watcher: Connection
) -> None:
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


async def test_connection_that_breaks_in_a_transaction_is_described_in_words(
    config_of: Callable[..., SessionConfig], watcher: Connection
) -> None:
    async def work() -> None:
        async with connected(config_of()) as connection, connection.transaction():
            await watcher.execute(f"SELECT pg_terminate_backend({connection.get_server_pid()})")
            with suppress(*DRIVER_ERRORS):
                await connection.execute("SELECT 1")

    with pytest.raises(RetryError, match=r"^the statement failed: the connection to the .* broke$"):
        await work()


async def test_codec_of_a_type_that_our_statements_use_is_refused(watcher: Connection) -> None:
    await watcher.set_type_codec(
        "jsonb", encoder=str, decoder=json.loads, schema="pg_catalog"
    )  # a handler's own
    assert await watcher.fetchval("""SELECT '{"a": 1}'::jsonb""") == {"a": 1}
    with pytest.raises(SettingError, match="codec was 'uuid', expected the driver's own"):
        await watcher.set_type_codec("uuid", encoder=str, decoder=str, schema="pg_catalog")
