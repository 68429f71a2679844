"""One name that leads to several servers, as of a headless service, or to another one tomorrow."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import msgspec
import pytest

import chainctl.locks
from chain_kernel.clients import postgres
from chain_kernel.clients import session as sessions
from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.postgres_errors import (
    PoolerFound,
    SeveralPrimaries,
    is_too_many_connections,
)
from chain_kernel.clients.session import Connections, Session, SessionConfig
from chain_kernel.errors import (
    ConnectError,
    DurabilityError,
    OrderchainError,
    RetryError,
    SchemaError,
    SettingError,
)
from chain_kernel.model import ServerIdentity
from chain_kernel.sql import AUDITOR, GAP_READER, schema_sql
from chain_verifier.verified_mark import set_mark
from chainctl.commands.doctor import look_at_hosts
from chainctl.database import SQL, acting_on
from chainctl.settings import Settings
from local_stack.postgres import SUPERUSER
from outbox.roles import OUTBOX_OPERATOR
from tests.builders.standbys import ServerPair, pair_in
from tests.builders.stored_chain import StoredChain
from tests.faults.proxy import Proxy, postgres_requests

pytestmark = [pytest.mark.postgres, pytest.mark.merge]

NAME = "orders.example"
TIMELINE = "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int"
PLACE = "SELECT inet_server_port()"


class Named(NamedTuple):
    """A pair of servers, each at an address of its own, and what the name leads to now."""

    pair: ServerPair
    addresses: list[str]
    lost: list[OSError]
    """What the next look-ups of the name raise, before it leads there."""
    dsn: str

    def config(
        self, target: str = "", role: str = OUTBOX_OPERATOR, call_seconds: float | None = None
    ) -> SessionConfig:
        asked = f"&target_session_attrs={target}" if target else ""
        return SessionConfig(
            database=DatabaseConfig.of(self.dsn + asked),
            application_name="test",
            role=role,
            tables=(),
            watches_standby=role == OUTBOX_OPERATOR,
            call_seconds=call_seconds,
        )

    async def caught_up(self) -> None:
        """Wait until the standby has what is committed."""
        behind = "SELECT bool_and(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication"
        while self.pair.primary.execute(behind) != "t":
            pass


OLD, NEW = "127.0.0.2", "127.0.0.3"
NOT_RESOLVED = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


@pytest.fixture
async def named(server_folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Named]:
    with pair_in(server_folder) as pair:
        async with AsyncExitStack() as stack:
            old = Proxy(pair.primary.config.port, postgres_requests, host=OLD)
            await stack.enter_async_context(old)
            new = Proxy(pair.standby.config.port, postgres_requests, host=NEW, port=old.port)
            await stack.enter_async_context(new)
            addresses: list[str] = []
            lost: list[OSError] = []

            async def resolve(host: str, port: int, **_: object) -> list[Any]:
                assert host == NAME
                if lost or not addresses:
                    raise lost.pop() if lost else NOT_RESOLVED
                stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
                return [(*stream, (address, port)) for address in addresses]

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
            password = pair.primary.config.passwords[SUPERUSER]
            dsn = f"postgresql://{SUPERUSER}:{password}@{NAME}:{old.port}/postgres?sslmode=disable"
            yield Named(pair, addresses, lost, dsn)


async def ask(config: DatabaseConfig, statement: str) -> Any:
    connection = await postgres.connect(config, application_name="test", within_seconds=10.0)
    try:
        return await connection.fetchval(statement)
    finally:
        connection.terminate()


@pytest.mark.parametrize("order", [(OLD, NEW), (NEW, OLD)])
async def test_session_goes_to_the_newest_primary_behind_a_name(
    named: Named, order: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that only read, too: a receiver halts where its only source is behind it."""
    named.addresses[:] = order
    sessions_of = [
        Session(named.config(target, role))
        for role in (OUTBOX_OPERATOR, GAP_READER, AUDITOR)
        for target in ("", "any", "primary")
    ]
    for session in sessions_of:
        assert await session.fetch(PLACE) == [(named.pair.primary.config.port,)]
    named.pair.promote()
    # Both say that they are the primary now, and each session is looked at again.
    monkeypatch.setattr(sessions, "_LIFE_SECONDS", -1.0)
    for session in sessions_of:
        assert await session.fetch(TIMELINE) == [(2,)]
        await session.close()


async def test_reader_goes_to_a_standby_where_only_a_primary_that_was_replaced_is_there(
    named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    named.addresses[:] = [OLD, NEW]
    its = await ask(named.config().database, "SELECT system_identifier FROM pg_control_system()")
    monkeypatch.setitem(sessions._NEWEST, its, ServerIdentity(its, 2))
    session = Session(named.config(role=GAP_READER))
    assert await session.fetch(PLACE) == [(named.pair.standby.config.port,)]
    await session.close()
    named.addresses[:] = [OLD, OLD]
    with pytest.raises(RetryError, match="a primary that was replaced"):
        await session.fetch(PLACE)


@pytest.mark.parametrize("order", [(OLD, NEW), (NEW, OLD)])
async def test_command_acts_on_the_newest_primary_behind_a_name(
    named: Named, order: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, standby = named.pair
    admin = await asyncpg.connect(primary.dsn(SUPERUSER, "postgres"))
    async with admin.transaction():
        await admin.execute(schema_sql())
    await StoredChain.create(admin, 1)

    async def act(moves_to: tuple[str, ...] = ()) -> None:
        async with acting_on(Settings(database=named.dsn), 1, is_dry_run=False) as connection:
            named.addresses[:] = moves_to or named.addresses
            given = (1, None, "step-down", "a person", "a drill", "epoch 1")
            await connection.fetchval(SQL["record_act"], *given)

    acts = "SELECT count(*) FROM chain_act"
    named.addresses[:] = order
    await act()  # the standby that the name leads to as well may not
    await named.caught_up()
    named.addresses[:] = [NEW]
    with pytest.raises(ConnectError, match=r"a login that may write \(on the primary\)"):
        await act()
    named.addresses[:] = order
    named.pair.promote()
    await act()
    assert await admin.fetchval(acts) == 1
    assert standby.execute(acts) == "2"
    # Who waits for a lock is looked for on its own server.
    monkeypatch.setattr(chainctl.locks, "LOCK_SECONDS", 0.2)
    named.addresses[:] = [OLD]
    await admin.execute("BEGIN; LOCK TABLE chain_act")
    with pytest.raises(RetryError, match="chain_act is locked"):
        await act(moves_to=order)
    admin.terminate()


async def test_mark_is_stored_on_the_newest_primary_of_several(named: Named) -> None:
    """Whichever host is named first: an old primary that came back takes nothing of an auditor."""
    primary, standby = named.pair
    admin = await asyncpg.connect(primary.dsn(SUPERUSER, "postgres"))
    async with admin.transaction():
        await admin.execute(schema_sql())
    batch = await (await StoredChain.create(admin, 1)).commit(3)
    await named.caught_up()
    named.pair.promote()
    any_of, newest = (named.pair.dsn(SUPERUSER, "postgres", target) for target in ("", "primary"))
    given: dict[str, Any] = {"after_id": 0, "until_id": batch.last_id, "seal": batch.seal}

    async def mark(reads: str, writes: str) -> bool:
        return await asyncio.to_thread(set_mark, reads, writes, 1, verified_by="eve", **given)

    assert await mark(any_of, newest)
    marks = "SELECT count(*) FROM chain_verified"
    assert (primary.execute(marks), standby.execute(marks)) == ("0", "1")
    with pytest.raises(SettingError, match="target_session_attrs"):
        await mark(any_of, any_of)
    admin.terminate()


async def test_name_that_is_not_resolved_leads_to_no_server(named: Named) -> None:
    """A second look-up, by whom a connection is opened, would give its first address alone."""
    named.pair.promote()
    named.addresses[:] = [OLD, NEW]
    database = named.config("primary").database
    several = msgspec.structs.replace(database, host=f"{NAME},{NEW}")
    for error, why in (
        (NOT_RESOLVED, NOT_RESOLVED.strerror),
        (TimeoutError(), "no answer in time"),
    ):
        named.lost.append(error)
        with pytest.raises(ConnectError, match=rf"a host name that can be resolved \({why}\)"):
            await ask(database, TIMELINE)
        named.lost.append(error)
        assert await ask(several, TIMELINE) == 2
        assert await ask(database, TIMELINE) == 2


async def test_servers_without_a_connection_left_are_known_as_such_behind_a_name(
    named: Named,
) -> None:
    """Who knows it waits for a turn, and says how many connections are missing."""
    named.addresses[:] = [OLD, NEW]
    named.pair.primary.execute("CREATE ROLE crowd LOGIN PASSWORD 'crowd' CONNECTION LIMIT 0")
    config = named.config()
    of_crowd = msgspec.structs.replace(config.database, user="crowd", password="crowd")
    session = Session(msgspec.structs.replace(config, database=of_crowd))
    with pytest.raises(RetryError) as raised:
        await session.fetch(PLACE)
    assert is_too_many_connections(raised.value), raised.value


async def test_work_on_a_server_that_a_name_has_left_is_not_committed(
    named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name leads to one server at a time, and the old one still answers who is connected."""
    named.addresses[:] = [OLD]
    connections = Connections(named.config())
    idle = await connections.take()
    connections.give_back(idle)
    with pytest.raises(RetryError, match="another host has become the primary"):  # noqa: PT012
        async with connections.transaction() as working:
            assert working is idle
            named.pair.promote()
            named.addresses[:] = [NEW]
            fresh = await connections.take()
            assert await fresh.fetchval(TIMELINE) == 2
    connections.give_back(fresh)
    # Nobody else has seen the new one: a session that is old looks again.
    monkeypatch.setattr(sessions, "_LIFE_SECONDS", 0.0)
    async with connections.transaction() as working:
        assert working is not fresh
    await connections.close()


async def test_session_that_is_old_goes_on_where_no_other_is_to_be_had(
    named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its names are not resolved for a while, or others have all connections: it works, though."""
    named.addresses[:] = [OLD]
    session, connections = Session(named.config()), Connections(named.config())
    await session.fetch(PLACE)
    first = session.last
    idle = await connections.take()
    connections.give_back(idle)
    monkeypatch.setattr(sessions, "_LIFE_SECONDS", -1.0)
    named.addresses.clear()
    await session.fetch(PLACE)
    assert session.last is first
    assert await connections.take() is idle
    connections.give_back(idle)
    named.addresses[:] = [OLD]
    await session.fetch(PLACE)
    assert session.last is not first
    other = await connections.take()
    assert other is not idle
    connections.give_back(other)
    await session.close()
    await connections.close()


async def test_session_that_is_old_ends_where_no_other_may_be_used(
    named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What keeps a new one from being used may be true of the server of the old one."""
    named.addresses[:] = [OLD]
    finds: list[OrderchainError] = []

    async def prepare(connection: asyncpg.Connection) -> None:
        if finds == [replaced]:
            its = await postgres.server_identity(connection)
            sessions.require_newest(msgspec.structs.replace(its, timeline=its.timeline + 1))
        if finds:
            raise finds[0]

    monkeypatch.setattr(sessions, "_LIFE_SECONDS", -1.0)
    replaced = RetryError("away, while a newer primary is seen")
    for barred in (
        DurabilityError("fsync", "off", "on"),
        SchemaError("schema", "none", "ours"),
        PoolerFound("database", "it", "a direct connection"),
        SeveralPrimaries("two were promoted"),
        replaced,
    ):
        finds.clear()
        session = Session(named.config(), prepare=prepare)
        connections = Connections(named.config(), prepare=prepare)
        await session.fetch(PLACE)
        old = [session.last, await connections.take()]
        connections.give_back(old[1])
        finds.append(barred)
        with pytest.raises(type(barred)):
            await session.fetch(PLACE)
        with pytest.raises(type(barred)):
            await connections.take()
        assert all(each is not None and each.is_closed() for each in old), barred


async def test_session_that_is_old_goes_on_where_another_does_not_begin_in_time(
    named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short the deadline of a call is."""
    named.addresses[:] = [OLD]
    has_begun = asyncio.Event()

    async def prepare(_: asyncpg.Connection) -> None:
        if has_begun.is_set():
            await asyncio.Future()
        has_begun.set()

    session = Session(named.config(call_seconds=2.0), prepare=prepare)
    await session.fetch(PLACE)
    monkeypatch.setattr(sessions, "_LIFE_SECONDS", -1.0)
    first = session.last
    await session.fetch(PLACE)
    assert session.last is first
    await session.close()


async def test_doctor_names_two_primaries_behind_a_name(named: Named) -> None:
    named.addresses[:] = [OLD, NEW]
    settings = Settings(database=named.dsn)
    (before,) = await look_at_hosts(settings)
    assert (before.state, before.found.partition(":")[0]) == ("ok", "one primary of 2")
    named.pair.promote()
    (after,) = await look_at_hosts(settings)
    assert (after.state, after.found.partition(":")[0]) == (
        "failed",
        "2 say that they are the primary",
    )
    assert f"at {OLD} (timeline 1)" in after.found
    assert f"at {NEW} (timeline 2)" in after.found
