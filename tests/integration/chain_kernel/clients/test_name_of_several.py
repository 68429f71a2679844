"""One name that leads to several servers, as of a headless service, or to another one tomorrow."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from chain_kernel.clients import postgres
from chain_kernel.clients import session as sessions
from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.postgres_errors import is_too_many_connections
from chain_kernel.clients.session import Connections, Session, SessionConfig
from chain_kernel.errors import RetryError
from chainctl.commands.doctor import look_at_hosts
from chainctl.schema.parts import PARTS
from chainctl.settings import Settings
from local_stack.postgres import SUPERUSER
from outbox import InboxLog
from outbox.roles import OUTBOX_OPERATOR
from tests.builders.standbys import ServerPair, pair_in
from tests.faults.proxy import Proxy, postgres_requests

pytestmark = [pytest.mark.postgres, pytest.mark.merge]

NAME = "orders.example"
TIMELINE = "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int"
PLACE = "SELECT inet_server_port()"


class Named(NamedTuple):
    """A pair of servers, each at an address of its own, and what the name leads to now."""

    pair: ServerPair
    addresses: list[str]
    dsn: str

    def config(self, target: str = "") -> SessionConfig:
        asked = f"&target_session_attrs={target}" if target else ""
        return SessionConfig(
            database=DatabaseConfig.of(self.dsn + asked),
            application_name="test",
            role=OUTBOX_OPERATOR,
            tables=(),
            watches_standby=True,
        )


OLD, NEW = "127.0.0.2", "127.0.0.3"


@pytest.fixture
async def named(server_folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Named]:
    with pair_in(server_folder) as pair:
        async with AsyncExitStack() as stack:
            old = Proxy(pair.primary.config.port, postgres_requests, host=OLD)
            await stack.enter_async_context(old)
            new = Proxy(pair.standby.config.port, postgres_requests, host=NEW, port=old.port)
            await stack.enter_async_context(new)
            addresses: list[str] = []

            async def resolve(host: str, port: int) -> list[Any]:
                assert host == NAME
                stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
                return [(*stream, (address, port)) for address in addresses]

            monkeypatch.setattr(postgres, "_resolve", resolve)
            password = pair.primary.config.passwords[SUPERUSER]
            dsn = f"postgresql://{SUPERUSER}:{password}@{NAME}:{old.port}/postgres?sslmode=disable"
            yield Named(pair, addresses, dsn)


@pytest.mark.parametrize("order", [(OLD, NEW), (NEW, OLD)])
@pytest.mark.parametrize("target", ["", "any", "primary"])
async def test_session_that_writes_goes_to_the_newest_primary_behind_a_name(
    named: Named, order: tuple[str, str], target: str
) -> None:
    named.addresses[:] = order
    session = Session(named.config(target))
    try:
        assert await session.fetch(PLACE) == [(named.pair.primary.config.port,)]
        named.pair.promote()
        await session.close()
        # Both say that they are the primary now.
        assert await session.fetch(TIMELINE) == [(2,)]
    finally:
        await session.close()


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
    named.addresses.clear()  # the name is its own address then, which leads nowhere
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


async def test_log_of_an_inbox_may_be_that_of_a_standby(named: Named) -> None:
    named.pair.primary.execute(f"BEGIN;\n{PARTS['inbox'].text()}\nCOMMIT;", database="postgres")
    named.addresses[:] = [NEW]
    log = InboxLog(f"{named.dsn}&target_session_attrs=standby", "books")
    caught_up = "SELECT bool_and(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication"
    while named.pair.primary.execute(caught_up) != "t":
        pass
    assert await log.applied([]) == set()
    await log.close()


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
