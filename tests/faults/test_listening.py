"""Harm to the session that listens: notifications are heard again, by themselves."""

from __future__ import annotations

import asyncio
import secrets
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from msgspec.structs import replace

from chain_kernel.clients import listener
from chain_kernel.clients.database_config import PINNED
from chain_kernel.clients.postgres_errors import DRIVER_ERRORS
from chain_kernel.clients.session import Session
from chain_kernel.errors import ConnectError, RetryError
from chain_kernel.frame import notice_channel
from chain_kernel.sql import GAP_READER, LOGIN_ROLES, RECEIVER_WRITER, SEQUENCER_WRITER, schema_sql
from local_stack import PostgresServer, PostgresServerConfig
from local_stack.postgres import SUPERUSER
from local_stack.process import free_port
from matcher_receiver import ReceiverConfig, ReceiverTuning
from matcher_receiver.stores.notified import NotifiedFrames, listened_to
from orderchain import open_receiver
from sequencer import open_sequencer
from tests.builders.created_chain import create_chain
from tests.builders.standbys import SMALL, ServerPair
from tests.deadlines import LONG_SECONDS, deadline, until
from tests.opened import connected
from tests.pgbouncer import pgbouncer

from .proxy import Proxy, postgres_requests

RoleDsn = Callable[[str], str]

NAME = "chains"
LEASE = "SELECT pid FROM pg_stat_activity WHERE application_name = 'orderchain lease 1'"
LISTENER = "SELECT pid FROM pg_stat_activity WHERE application_name = 'orderchain listener'"


@asynccontextmanager
async def listening(
    *databases: str, chain_id: int = 1, within: float = 2.0
) -> AsyncIterator[NotifiedFrames]:
    tuning = ReceiverTuning(connect_seconds=within, statement_seconds=within)
    config = ReceiverConfig(chain_id=chain_id, name="r", gap_databases=databases, tuning=tuning)
    async with NotifiedFrames(config, listened_to(config)) as source:
        await source.start()
        yield source


def prepare(server: PostgresServer) -> None:
    """Make a database of chains."""
    server.create_database(NAME)
    server.execute(f"BEGIN;\n{schema_sql()}\nCOMMIT;\n", database=NAME)


async def until_heard(source: NotifiedFrames, admin: str, chain_id: int = 1) -> None:
    """Notify until `source` hears it: what is sent while it does not listen is lost."""
    frame = secrets.token_bytes(8)
    notice = (notice_channel(chain_id), f"0 {b64encode(frame).decode()}")

    async def is_heard() -> bool:
        with suppress(*DRIVER_ERRORS, RetryError):
            async with connected(admin) as connection:
                await connection.execute("SELECT pg_notify($1, $2)", *notice)
            return frame in await source.records(0.2)
        return False

    await until(is_heard)


@pytest.fixture
async def proxy(postgres_server: PostgresServer) -> AsyncIterator[Proxy]:
    async with Proxy(postgres_server.config.port, postgres_requests) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: Proxy, postgres_server: PostgresServer, role_dsn: RoleDsn) -> str:
    """The database, through `proxy`."""
    port = postgres_server.config.port
    return role_dsn(GAP_READER).replace(f":{port}/", f":{proxy.port}/")


@pytest.mark.parametrize("is_silent", [False, True], ids=["reset", "silent"])
async def test_connection_that_breaks_is_replaced(
    proxy: Proxy, through: str, database: str, *, is_silent: bool
) -> None:
    async with listening(through) as source:
        await until_heard(source, database)
        if is_silent:
            proxy.drops_answers = True
            with pytest.raises(RetryError):
                await until(lambda: source.records(0.2))
            proxy.drops_answers = False
        else:
            proxy.reset()
        await until_heard(source, database)


async def test_many_chains_are_listened_to_again_in_one_trip(
    proxy: Proxy, through: str, database: str
) -> None:
    requests: list[bytes] = []

    async def noted(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        async for request in postgres_requests(reader):
            requests.append(request)
            yield request

    proxy.split = noted
    async with AsyncExitStack() as stack:
        sources = [
            await stack.enter_async_context(listening(through, chain_id=chain_id))
            for chain_id in range(1, 51)
        ]
        requests.clear()
        proxy.reset()
        for chain_id, source in enumerate(sources, 1):
            await until_heard(source, database, chain_id)
        assert len([request for request in requests if b"LISTEN" in request]) == 1


async def test_chain_whose_last_receiver_has_gone_is_listened_to_no_more(
    postgres_server: PostgresServer, database: str, role_dsn: RoleDsn
) -> None:
    dsn = role_dsn(GAP_READER)
    async with listening(dsn) as stays:
        async with listening(dsn, chain_id=2) as goes:
            await until_heard(goes, database, 2)
        line = stays._listener._line
        assert line is not None

        async def channels() -> list[str]:
            await stays.records(0.01)
            return [row[0] for row in await line.session.fetch("SELECT pg_listening_channels()")]

        async def is_left() -> bool:
            return await channels() == [notice_channel(1)]

        await until(is_left)


async def test_what_was_heard_is_handed_on_whatever_becomes_of_the_server(
    proxy: Proxy, through: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_CHECK_SECONDS", 0.0)  # each call asks
    async with listening(through) as source, connected(database) as admin:
        await admin.execute("SELECT pg_notify($1, $2)", notice_channel(1), "0 AAAA")
        await until(lambda: source._heard)
        proxy.drops_answers = True
        assert await source.records(0.2) == [b"\0\0\0"]


async def test_an_answer_that_came_long_ago_is_asked_for_again(
    proxy: Proxy, through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver whose caller takes minutes for a run comes back to what a check found before."""
    monkeypatch.setattr(listener, "_CHECK_SECONDS", 0.1)
    loop = asyncio.get_running_loop()
    async with listening(through, within=0.5) as source:
        proxy.drops_answers = True
        with pytest.raises(RetryError):
            await until(lambda: source.records(0.01))
        over = loop.time() + 1.0
        await until(lambda: loop.time() > over)  # by then the question has failed

        async def answer(*_: object) -> None:
            """Answer at once."""

        monkeypatch.setattr(Session, "run", answer)
        assert await source.records(0.01) == []


async def test_servers_that_are_silent_hold_up_no_receiver(proxy: Proxy, through: str) -> None:
    """It polls meanwhile, or hears nothing for as long as a connect may take."""
    async with listening(through, through, within=LONG_SECONDS) as source, deadline():
        proxy.drops_answers = True
        proxy.reset()
        for _ in range(3):
            with pytest.raises(RetryError):
                await until(lambda: source.records(0.2))


async def test_server_that_was_killed_and_started_is_listened_to_again(
    postgres_to_break: PostgresServer, database_to_break: str
) -> None:
    admin = postgres_to_break.dsn(SUPERUSER, database_to_break)
    async with listening(postgres_to_break.dsn(GAP_READER, database_to_break)) as source:
        await until_heard(source, admin)
        postgres_to_break.kill()
        postgres_to_break.start()
        await until_heard(source, admin)


@pytest.fixture
def pair_with_schema(server_pair: ServerPair) -> ServerPair:
    """A primary that waits for its standby, and a database of chains on both."""
    prepare(server_pair.primary)
    server_pair.wait_for_standby()
    server_pair.primary.execute("CREATE TABLE is_there ()", database=NAME)  # and all before it
    return server_pair


@pytest.mark.nightly
async def test_standby_that_was_promoted_is_listened_to(pair_with_schema: ServerPair) -> None:
    primary, standby = pair_with_schema
    before, after = (server.dsn(SUPERUSER, NAME) for server in (primary, standby))
    readers = [server.dsn(GAP_READER, NAME) for server in (standby, primary)]
    async with (
        listening(pair_with_schema.dsn(GAP_READER, NAME)) as of_two_hosts,
        listening(*readers) as of_two_databases,
    ):
        for source in (of_two_hosts, of_two_databases):
            await until_heard(source, before)
        primary.kill()
        pair_with_schema.promote()
        for source in (of_two_hosts, of_two_databases):
            await until_heard(source, after)


@pytest.mark.nightly
@pytest.mark.guarantee("G5", "G14")
async def test_standby_that_lags_holds_up_and_hides_no_order(pair_with_schema: ServerPair) -> None:
    primary, standby = pair_with_schema
    writer = pair_with_schema.dsn(SEQUENCER_WRITER, NAME)
    chain = await create_chain(primary.dsn(SUPERUSER, NAME), writer, "unused:9092", 1, copies=0)
    config = ReceiverConfig(
        chain_id=1,
        name="r",
        database=pair_with_schema.dsn(RECEIVER_WRITER, NAME),
        gap_databases=(standby.dsn(GAP_READER, NAME), primary.dsn(GAP_READER, NAME)),
        tuning=ReceiverTuning(poll_after_seconds=LONG_SECONDS),
    )
    async with (
        deadline(),
        open_sequencer(replace(chain.config, kafka=None)) as sequencer,
        open_receiver(config) as receiver,
    ):
        acks = []
        for number, change in enumerate(("pg_wal_replay_pause", "pg_wal_replay_resume")):
            standby.execute(f"SELECT {change}()")
            acks.append(await sequencer.submit(str(number), b""))
            run = await anext(receiver)
            await receiver.checkpoint(run)
            assert [event.id for event in run.events] == [acks[-1].id]
        assert receiver.stats().gaps == 0


async def test_idle_timeout_of_the_server_leaves_the_listener_alone(
    database: str, database_name: str, role_dsn: RoleDsn
) -> None:
    dsn = role_dsn(GAP_READER)
    login = f"ALTER ROLE {urlsplit(dsn).username} IN DATABASE {database_name}"
    async with connected(database) as admin:
        await admin.execute(f"{login} SET idle_session_timeout = '200ms'")
        async with listening(dsn) as source:
            await until_heard(source, database)
            (listener,) = await admin.fetch(LISTENER)
            later = await asyncpg.connect(dsn)
            await until(later.is_closed)
            await until_heard(source, database)
            assert await admin.fetch(LISTENER) == [listener]


@pytest.mark.parametrize(
    "ignored", ["extra_float_digits", ",".join(("extra_float_digits", *PINNED))],
    ids=["refusing", "ignoring"],
)  # fmt: skip
async def test_transaction_pooler_is_refused_in_one_line_that_says_what_to_take(
    database: str, role_dsn: RoleDsn, tmp_path: Path, ignored: str
) -> None:
    async with pgbouncer(role_dsn(GAP_READER), tmp_path, ignores=ignored) as dsn:
        with pytest.raises(ConnectError) as raised:
            async with listening(dsn):
                """It does not come so far."""
    said = str(raised.value)
    assert "a direct connection to PostgreSQL, at the server's own port" in said
    assert "a pooler" in said
    assert "\n" not in said


@pytest.fixture
def small_queue(server_folder: Path) -> Iterator[PostgresServer]:
    """A server whose queue of notifications is full at half a MiB."""
    config = PostgresServerConfig(
        directory=server_folder / "postgres",
        port=free_port(),
        passwords={role: secrets.token_hex(16) for role in (SUPERUSER, *LOGIN_ROLES)},
        settings={"max_notify_queue_pages": "64"},
        **SMALL,
    )
    server = PostgresServer(config)
    if server.installation.major < 17:
        pytest.skip("the queue of PostgreSQL before 17 is 8 GB")
    with server:
        server.prepare_roles()
        prepare(server)
        yield server


async def notify_without_end(connection: asyncpg.Connection) -> None:
    while True:
        await connection.execute("SELECT pg_notify('noise', repeat('x', 7900))")


@pytest.mark.nightly
@pytest.mark.guarantee("G14")
async def test_full_queue_of_notifications_holds_up_no_order_and_is_outlived(
    small_queue: PostgresServer,
) -> None:
    admin = small_queue.dsn(SUPERUSER, NAME)
    writer = small_queue.dsn(SEQUENCER_WRITER, NAME)
    chain = await create_chain(admin, writer, "unused:9092", 1, copies=0)
    config = ReceiverConfig(
        chain_id=1,
        name="r",
        database=small_queue.dsn(RECEIVER_WRITER, NAME),
        gap_databases=(small_queue.dsn(GAP_READER, NAME),),
        tuning=ReceiverTuning(poll_after_seconds=0.2),
    )
    async with connected(admin) as stuck, connected(admin) as noisy, deadline():
        await stuck.execute("LISTEN noise")
        await stuck.execute("BEGIN")  # until its end it takes nothing out of the queue
        with pytest.raises(asyncpg.ProgramLimitExceededError, match="NOTIFY queue"):
            await notify_without_end(noisy)
        async with (
            open_sequencer(replace(chain.config, kafka=None)) as sequencer,
            open_receiver(config) as receiver,
        ):
            ack = await sequencer.submit("full", b"")
            assert (await anext(receiver)).last_id == ack.id
            await until(lambda: "NOTIFY queue" in sequencer.stats().broker_refusal)
            await until(lambda: noisy.fetch(LEASE))
            lease = await noisy.fetchval(LEASE)
            failures = sequencer.stats().send_failures
            await until(lambda: sequencer.stats().send_failures > failures + 1)
            await stuck.execute("ROLLBACK")
            await until(lambda: not sequencer.stats().broker_refusal)
            assert await noisy.fetchval(LEASE) == lease, "beats go on over their session"
            heard = receiver.stats().heartbeats
            waiting = asyncio.ensure_future(anext(receiver))
            await until(lambda: receiver.stats().heartbeats > heard)
            ack = await sequencer.submit("empty", b"")
            assert (await waiting).last_id == ack.id
