"""Two servers that both say that they are the primary: the old one, and the promoted standby."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from chain_kernel.clock import SystemClock
from chain_kernel.errors import RetryError, SettingError
from chain_kernel.model import ClientNumber, KeyPage, Term
from chain_kernel.sql import SEQUENCER_WRITER
from local_stack import PostgresServer, PostgresServerConfig
from local_stack.postgres import SUPERUSER
from local_stack.process import free_port
from sequencer import Order, SequencerConfig, open_sequencer
from sequencer.core import SequencerCore
from sequencer.leadership import PostgresLease
from sequencer.stores.keys import PostgresKeyStore
from sequencer.stores.postgres import PostgresChainStore
from sequencer.stores.session import CommitLine, NewestServer
from tests.builders.created_chain import Chain
from tests.builders.standbys import SMALL, standby_of
from tests.deadlines import in_time
from tests.integration.sequencer.conftest import MakeChain
from tests.opened import connected

PAGE = KeyPage(after_id=0, until_id=3, spans=bytes(16), hashes=bytes(24))


class Split(NamedTuple):
    """A chain on two servers that can both be written to."""

    chain: Chain
    old: PostgresServer
    new: PostgresServer
    database: str

    def config(self, *servers: PostgresServer) -> SequencerConfig:
        """The config with these hosts, in this order."""
        places = ",".join(f"127.0.0.1:{server.config.port}" for server in servers)
        address = servers[0].dsn(SEQUENCER_WRITER, self.database)
        own = f"127.0.0.1:{servers[0].config.port}"
        dsn = address.replace(own, places) + "?target_session_attrs=primary"
        return msgspec.structs.replace(self.chain.config, database=dsn)

    async def value(self, server: PostgresServer, query: str) -> object:
        async with connected(server.dsn(SUPERUSER, self.database)) as look:
            return await look.fetchval(query)


@pytest.fixture
async def split(
    make_chain: MakeChain,
    postgres_server: PostgresServer,
    server_folder: Path,
    database_name: str,
) -> AsyncIterator[Split]:
    chain = await make_chain(copies=0)
    with standby_of(postgres_server, server_folder / "standby") as standby:
        both = Split(chain, postgres_server, standby, database_name)
        await both.value(standby, "SELECT pg_promote()")
        yield both


async def led(config: SequencerConfig) -> Term:
    """Take over, and leave the chain as a leader that was killed does."""
    store = PostgresChainStore(config)
    try:
        return await store.take_over("me", await store.look())
    finally:
        await store.close()


@pytest.mark.parametrize("order", ["the old first", "the new first"])
async def test_take_over_goes_to_the_newest_of_two_primaries(split: Split, order: str) -> None:
    servers = [split.old, split.new] if order == "the old first" else [split.new, split.old]
    term = await led(split.config(*servers))
    assert term.server.timeline == 2
    epoch = "SELECT epoch FROM chain_head"
    assert await split.value(split.old, epoch) == 0
    assert await split.value(split.new, epoch) == 1


@pytest.mark.parametrize("order", ["the old first", "the new first"])
@pytest.mark.parametrize("leads", ["on the old", "on the new"])
async def test_lease_and_keys_are_on_the_server_of_the_term(
    split: Split, order: str, leads: str
) -> None:
    home = split.old if leads == "on the old" else split.new
    other = split.new if home is split.old else split.old
    term = await led(split.config(home))
    await led(split.config(other))  # epoch 1 there as well: only its nonce differs
    config = split.config(*((home, other) if order == "the old first" else (other, home)))
    keys, lease = PostgresKeyStore(config), PostgresLease(config)
    try:
        await keys.save(term, PAGE, [ClientNumber("a", 1, 1, 0, 0)])
        assert await keys.outline(term) == [(0, 3, 3)]
        assert not await lease.renew(term, 0)
        await lease.release(term, 0)
    finally:
        await keys.close()
        await lease.close()
    saved = "SELECT (SELECT count(*) FROM chain_key_page) + (SELECT count(*) FROM chain_client)"
    released = "SELECT released FROM chain_lease"
    assert (await split.value(home, saved), await split.value(other, saved)) == (2, 0)
    assert (await split.value(home, released), await split.value(other, released)) == (True, False)


@pytest.mark.merge
async def test_term_is_proven_again_on_each_connection(
    make_chain: MakeChain, postgres_server: PostgresServer, database_name: str
) -> None:
    """The next one may lead to a server that was put back since."""
    chain = await make_chain(copies=0)
    term = await led(chain.config)
    keys = PostgresKeyStore(chain.config)
    async with (
        AsyncExitStack() as stack,
        connected(postgres_server.dsn(SUPERUSER, database_name)) as admin,
    ):
        stack.push_async_callback(keys.close)
        assert await keys.outline(term) == []
        assert await admin.execute("UPDATE chain_term SET nonce = $1", bytes(16)) == "UPDATE 1"
        assert await keys.outline(term) == []  # proven once for this connection
        backends = "pg_stat_activity WHERE datname = current_database() AND application_name = $1"
        ended = f"SELECT pg_terminate_backend(pid) FROM {backends}"  # noqa: S608 - ours
        assert await admin.fetch(ended, "orderchain keys 1") == [(True,)]
        with pytest.raises(RetryError):  # lost
            await keys.outline(term)
        with pytest.raises(RetryError, match="not the server of the term"):
            await keys.outline(term)


async def test_old_primary_that_refuses_our_login_hides_no_server_of_a_term(split: Split) -> None:
    """Somebody has closed it to us after the fail-over: what it refuses, the new one allows."""
    closed = f"REVOKE CONNECT ON DATABASE {split.database} FROM PUBLIC, {SEQUENCER_WRITER}"
    await split.value(split.old, closed)
    config = split.config(split.old, split.new)
    term = await led(config)
    keys, lease = PostgresKeyStore(config), PostgresLease(config)
    assert await keys.outline(term) == []
    assert not await lease.renew(term, 0)
    await keys.close()
    await lease.release(term, 0)
    await lease.close()
    async with open_sequencer(config) as sequencer:
        assert (await sequencer.submit("a", b"")).pid == 0


async def test_keys_wait_where_the_server_of_the_term_is_gone(split: Split) -> None:
    term = await led(split.config(split.new))
    keys = PostgresKeyStore(split.config(split.old, split.new))
    split.new.stop()
    try:
        with pytest.raises(
            RetryError, match=r"not the server of the term .*timeline 2.*timeline 1"
        ):
            await keys.outline(term)
    finally:
        await keys.close()


async def test_leader_does_not_go_back_to_a_server_that_was_replaced(split: Split) -> None:
    line = CommitLine(split.config(split.old, split.new), SystemClock())
    assert (await line.session()).server.timeline == 2
    await line.close()
    split.new.stop()
    with pytest.raises(RetryError, match="on timeline 1, which timeline 2 has replaced"):
        await line.session()
    anew = CommitLine(split.config(split.old, split.new), SystemClock())
    assert (await anew.session()).server.timeline == 1
    await anew.close()


async def test_shared_line_that_rests_leaves_a_server_that_another_one_saw_replaced(
    split: Split,
) -> None:
    """Else its compare-and-set finds no row there, and its chains are never led again."""
    old, both, clock = split.config(split.old), split.config(split.old, split.new), SystemClock()
    newest = NewestServer(both, clock)
    rested, other = (CommitLine(each, clock, "1-2", newest=newest) for each in (both, both))
    # As if it had been opened before the promotion.
    rested._config = old
    assert (await rested.session()).server.timeline == 1
    rested._config = both
    assert (await other.session()).server.timeline == 2
    assert (await rested.session()).server.timeline == 2
    await rested.close()
    await other.close()


async def test_take_over_over_a_resting_connection_asks_which_server_is_the_newest(
    split: Split,
) -> None:
    """Its look was at a primary that goes on without its standby, which was promoted."""
    both, clock = split.config(split.old, split.new), SystemClock()
    line = CommitLine(both, clock, "1-2")
    line._config = split.config(split.old)
    store = PostgresChainStore(both, clock, line)
    sight = await store.look()
    line._config = both
    term = await store.take_over("me", sight)
    assert term.server.timeline == 2
    await line.close()


async def test_commit_is_not_sent_ahead_on_a_server_that_another_chain_saw_replaced(
    split: Split,
) -> None:
    """Nor does it end the leader: what is under way settles, and the next begins again."""
    old, clock = split.config(split.old), SystemClock()
    line = CommitLine(old, clock, "1-2")
    store = PostgresChainStore(old, clock, line)
    term = await store.take_over("me", await store.look())
    core = SequencerCore(term, takeover_skip_ids=0)
    first, second = (core.assemble([Order(key, b"")], 10**18) for key in ("a", "b"))
    pending = await store.begin(first, published_id=0)
    line.newest.see(msgspec.structs.replace(term.server, timeline=2))
    assert pending.follow(second, published_id=0) is None
    await pending.outcome()
    with pytest.raises(RetryError, match="which timeline 2 has replaced"):
        await store.begin(second, published_id=0)
    await line.close()


async def test_one_host_means_its_primary_and_a_standby_there_is_not_looked_at(
    make_chain: MakeChain, postgres_server: PostgresServer, server_folder: Path, database_name: str
) -> None:
    """It lags: a look there is no ground for a take-over on what it becomes."""
    chain = await make_chain(copies=0)
    with standby_of(postgres_server, server_folder / "standby") as standby:
        there = Split(chain, postgres_server, standby, database_name)
        config = there.config(standby)
        assert isinstance(config.database, str)
        anyone = config.database.replace("?target_session_attrs=primary", "")
        config = msgspec.structs.replace(config, database=anyone)
        store, keys = PostgresChainStore(config), PostgresKeyStore(config)
        with pytest.raises(RetryError, match="not primary now"):
            await store.look()
        await there.value(standby, "SELECT pg_promote()")
        term = await store.take_over("me", await store.look())
        assert term.server.timeline == 2
        assert await keys.outline(term) == []
        await store.close()
        await keys.close()


async def test_keys_are_not_read_on_a_standby_while_the_login_has_no_connection_left(
    make_chain: MakeChain, postgres_server: PostgresServer, server_folder: Path, database_name: str
) -> None:
    """It would answer at once, and may lag: a leader that starts waits for its own server."""
    chain = await make_chain(copies=0)
    limit = f"ALTER ROLE {SEQUENCER_WRITER} CONNECTION LIMIT"
    with standby_of(postgres_server, server_folder / "standby") as standby:
        config = Split(chain, postgres_server, standby, database_name).config(
            postgres_server, standby
        )
        term = await led(config)
        keys = PostgresKeyStore(config)
        standby.execute("SELECT pg_wal_replay_pause()")
        postgres_server.execute(f"{limit} 0")
        try:
            with pytest.raises(RetryError, match="too many connections"):
                await keys.outline(term)
            postgres_server.execute(f"{limit} -1")
            assert await keys.outline(term) == []
        finally:
            postgres_server.execute(f"{limit} -1")
            await keys.close()


async def test_two_standbys_that_were_promoted_are_named_and_neither_is_led(
    make_chain: MakeChain, postgres_server: PostgresServer, server_folder: Path, database_name: str
) -> None:
    """Both are on timeline 2: neither has replaced the other, and each may lack what the other has.

    A second name of one server is no second server.
    """
    chain = await make_chain(copies=0)
    with (
        standby_of(postgres_server, server_folder / "one") as one,
        standby_of(postgres_server, server_folder / "two") as two,
    ):
        for server in (one, two):
            await Split(chain, one, two, database_name).value(server, "SELECT pg_promote()")
        both = Split(chain, one, two, database_name).config(one, two)
        assert isinstance(both.database, str)
        with pytest.raises(RetryError, match=r"2 servers of .* the same timeline, 2: end all but"):
            await led(both)
        doctor = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "chainctl", "doctor", "--database", both.database,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        shown = (await in_time(doctor.communicate()))[0].decode()
        assert doctor.returncode == 1, shown
        assert "2 say that they are the primary" in shown
        assert "end the one that lacks orders (two were promoted)" in shown
        other_name = f"127.0.0.1:{two.config.port}", f"localhost:{one.config.port}"
        twice = msgspec.structs.replace(both, database=both.database.replace(*other_name))
        assert (await led(twice)).server.timeline == 2


async def test_primaries_of_two_clusters_are_named_and_neither_is_taken(
    make_chain: MakeChain, postgres_server: PostgresServer, server_folder: Path, database_name: str
) -> None:
    """As after an upgrade, whose new cluster is on timeline 1: the higher one says nothing."""
    chain = await make_chain(copies=0)
    other = PostgresServerConfig(
        directory=server_folder / "other", port=free_port(),
        passwords=postgres_server.config.passwords, **SMALL,
    )  # fmt: skip
    with PostgresServer(other) as strange:
        strange.prepare_roles()
        strange.create_database(database_name)
        both = Split(chain, postgres_server, strange, database_name)
        with pytest.raises(RetryError, match=r"of different clusters, .* \d+ and \d+: end all"):
            await led(both.config(postgres_server, strange))


@pytest.mark.parametrize("target", ["", "any", "standby", "prefer-standby", "read-only"])
def test_several_hosts_without_a_primary_among_them_are_refused(target: str) -> None:
    wanted = f"?target_session_attrs={target}" if target else ""
    config = SequencerConfig(
        chain_id=1, database=f"postgresql://w@127.0.0.1:1,127.0.0.1:2/d{wanted}", kafka="unused:1"
    )
    with pytest.raises(SettingError, match=r"target_session_attrs .*expected primary"):
        open_sequencer(config)
