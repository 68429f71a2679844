"""What a leader's sessions depend on: pinned, refused, or watched; and what is in between."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import urlsplit

import asyncpg
import msgspec
import pytest

from chain_kernel.clock import SystemClock
from chain_kernel.errors import ClockError, ConnectError, SchemaError
from local_stack import PostgresServer
from sequencer import SequencerConfig, open_sequencer
from sequencer.leadership import PostgresLease
from sequencer.stores.postgres import PostgresChainStore
from sequencer.stores.session import LeaderSession, SideSessions
from tests.builders.created_chain import Chain
from tests.deadlines import deadline
from tests.integration.sequencer.conftest import MakeChain

DAY_NS = 24 * 3600 * 10**9

UNFIT = {
    "statement_timeout": ("1ms", "0"),
    "lock_timeout": ("1ms", "0"),
    "idle_session_timeout": ("1ms", "0"),
    "client_connection_check_interval": ("0", "2s"),
    "idle_in_transaction_session_timeout": ("1ms", "1min"),
    "transaction_timeout": ("1min", "0"),
    "client_encoding": ("LATIN1", "UTF8"),
    "standard_conforming_strings": ("off", "on"),
    "default_transaction_isolation": ("serializable", "read committed"),
    "default_transaction_read_only": ("on", "off"),
    "default_transaction_deferrable": ("on", "off"),
    "client_min_messages": ("error", "warning"),
    "synchronous_commit": ("remote_apply", "remote_apply"),
}
"""What a DBA may have set for a database, and what a leader's session has all the same: its own,
but for how safe a commit is, which is the DBA's."""


async def make_unfit(chain: Chain) -> dict[str, str]:
    """Set all that is unfit for the chain's database; return what a session must have."""
    known = {
        row[0]
        for row in await chain.admin.fetch(
            "SELECT name FROM pg_settings WHERE name = ANY($1)", list(UNFIT)
        )
    }
    database = await chain.admin.fetchval("SELECT current_database()")
    for name in known:
        await chain.admin.execute(f"ALTER DATABASE {database} SET {name} = '{UNFIT[name][0]}'")
    return {name: UNFIT[name][1] for name in known}


async def settings_of(connection: asyncpg.Connection, names: Iterable[str]) -> dict[str, str]:
    return {name: await connection.fetchval(f"SHOW {name}") for name in names}


async def test_sessions_of_a_leader_pin_what_they_depend_on(make_chain: MakeChain) -> None:
    chain = await make_chain()
    expected = await make_unfit(chain)
    session = LeaderSession(chain.config, SystemClock())
    await session.open()
    assert await settings_of(await session.idle(), expected) == expected
    await session.close()
    expected["synchronous_commit"] = "off"
    store, side = PostgresChainStore(chain.config), SideSessions(chain.config, "lease")
    term = await store.take_over("me", await store.look())
    shown = "SELECT $1, name, current_setting(name) FROM unnest($2::text[]) AS name"
    found = await side.fetch(term, shown, list(expected))
    assert {row[1]: row[2] for row in found} == expected
    await side.close()
    await store.close()


async def test_unfit_settings_of_a_database_cost_no_term(make_chain: MakeChain) -> None:
    chain = await make_chain()
    await make_unfit(chain)
    async with open_sequencer(chain.config) as sequencer:
        for number in range(20):
            await sequencer.submit(f"k{number}", b"")
            await chain.admin.fetchval("SELECT count(*) FROM pg_class, pg_class AS other")
        assert sequencer.stats().take_overs == 1
    assert len(await chain.rows()) == 20


async def test_database_that_cannot_hold_every_key_is_refused_at_the_start(
    make_chain: MakeChain, postgres_server: PostgresServer, database_name: str
) -> None:
    chain = await make_chain(copies=0)
    name = f"{database_name}_latin1"
    await chain.admin.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING LATIN1 LOCALE_PROVIDER libc LOCALE 'C'"
    )
    try:
        assert isinstance(chain.config.database, str)
        address = chain.config.database.replace(database_name, name)
        config = msgspec.structs.replace(chain.config, database=address)
        with pytest.raises(
            SchemaError, match="encoding of the database was 'LATIN1', expected UTF8"
        ):
            await open_sequencer(config).__aenter__()
    finally:
        postgres_server.drop_database(name)


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """Serve each connection in its turn; yields the port."""

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def through(config: SequencerConfig, port: int) -> str:
    assert isinstance(config.database, str)
    parts = urlsplit(config.database)
    user = parts.netloc.rpartition("@")[0]
    return f"postgresql://{user}@127.0.0.1:{port}{parts.path}?sslmode=disable"


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


def pooler(port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Return what serves clients as a pooler does: with a process number (message K) of its own."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        sending = asyncio.create_task(copy(reader, to_server))
        try:
            kind = b""
            while kind != b"K":
                kind = await from_server.readexactly(1)
                (length,) = struct.unpack("!i", await from_server.readexactly(4))
                body = await from_server.readexactly(length - 4)
                if kind == b"K":
                    body = struct.pack("!i", 4_711_000) + body[4:]
                writer.write(kind + struct.pack("!i", length) + body)
            await copy(from_server, writer)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            to_server.close()

    return serve


async def test_pooler_is_refused(make_chain: MakeChain, postgres_server: PostgresServer) -> None:
    chain = await make_chain(copies=0)
    async with listening(pooler(postgres_server.config.port)) as port:
        config = msgspec.structs.replace(chain.config, database=through(chain.config, port))
        with pytest.raises(ConnectError) as raised:
            await open_sequencer(config).__aenter__()
    shown = "a direct connection to PostgreSQL, at the server's own port (this one goes through"
    assert shown in str(raised.value)
    assert "which hides the process that serves it" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert (await chain.head())["epoch"] == 0


class AheadClock(SystemClock):
    """A clock that is wrong by so much."""

    ahead_ns = 0

    def wall_ns(self) -> int:
        return super().wall_ns() + self.ahead_ns


async def test_clock_that_is_years_ahead_leads_no_chain(make_chain: MakeChain) -> None:
    chain = await make_chain(copies=0)
    clock = AheadClock()
    clock.ahead_ns = 366 * DAY_NS
    store = PostgresChainStore(chain.config, clock)
    with pytest.raises(ClockError, match="366 days ahead of the database"):
        await store.look()
    assert (await chain.head())["epoch"] == 0


async def test_lease_does_not_wait_for_a_commit_that_holds_the_head(make_chain: MakeChain) -> None:
    chain = await make_chain(copies=0)
    store, lease = PostgresChainStore(chain.config), PostgresLease(chain.config)
    async with AsyncExitStack() as closing:
        closing.push_async_callback(store.close)
        closing.push_async_callback(lease.close)
        term = await store.take_over("me", await store.look())
        await chain.admin.execute("UPDATE chain_head SET last_id = 7")
        async with chain.admin.transaction():
            await chain.admin.execute("UPDATE chain_head SET topic = topic")
            async with deadline():
                await lease.renew(term, 7)
        assert (await chain.head())["published_id"] == 0
        await lease.renew(term, 7)
        assert (await chain.head())["published_id"] == 7
