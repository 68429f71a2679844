"""What an acknowledgement means: settings that change under a leader, standbys that are gone."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import pytest

from chain_kernel.errors import DurabilityError, OrderchainError, RetryError, UnknownOutcome
from chain_kernel.model import Mark
from chain_kernel.sql import RECEIVER_WRITER
from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER
from matcher_receiver import CheckpointConfig, PostgresCheckpointStore
from sequencer import Ack, Order, Sequencer, open_sequencer
from tests.builders.created_chain import Chain
from tests.builders.orders import make_orders
from tests.builders.standbys import standby_of
from tests.deadlines import deadline, in_time, until
from tests.opened import connected

from .conftest import MakeChain
from .inspector import inspect

CANCELLED = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
TERMINATED = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


class Settings:
    """Changes settings of a server that runs, as its DBA does."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    async def set(self, name: str, value: str) -> None:
        await self.connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        await self._reload(name, value)

    async def reset(self) -> None:
        await self.connection.execute("ALTER SYSTEM RESET ALL")
        await self.connection.execute("SELECT pg_reload_conf()")

    async def _reload(self, name: str, value: str) -> None:
        await self.connection.execute("SELECT pg_reload_conf()")
        query = "SELECT reset_val FROM pg_settings WHERE name = $1"
        async with deadline():
            while await self.connection.fetchval(query, name) != value:
                pass


@pytest.fixture
async def settings(postgres_to_break: PostgresServer) -> AsyncIterator[Settings]:
    async with connected(postgres_to_break.dsn(SUPERUSER)) as connection:
        # What changes settings must not wait for a standby that is gone.
        await connection.execute("SET synchronous_commit = 'local'")
        yield Settings(connection)
    # That one may be lost.
    async with connected(postgres_to_break.dsn(SUPERUSER)) as connection:
        await Settings(connection).reset()


async def until_a_commit_waits(settings: Settings) -> None:
    await until(lambda: settings.connection.fetchval(WAITING))


@asynccontextmanager
async def led(chain: Chain) -> AsyncIterator[Sequencer]:
    """A sequencer that ends by an error in most of these tests: its callers' errors count."""
    sequencer = await open_sequencer(chain.config).__aenter__()
    try:
        yield sequencer
    finally:
        async with deadline():
            with suppress(OrderchainError):
                await sequencer.__aexit__(None, None, None)


async def submit_until_one_waits(
    sequencer: Sequencer, settings: Settings, rows: int
) -> tuple[list[list[Order]], list[asyncio.Task[Sequence[Ack]]]]:
    """Submit until a commit waits for a standby: the setting takes effect a moment later."""
    calls: list[list[Order]] = []
    tasks: list[asyncio.Task[Sequence[Ack]]] = []
    async with deadline():
        while not await settings.connection.fetchval(WAITING):
            if not tasks or tasks[-1].done():
                orders = [Order(f"{len(calls)}.{n}", b"x") for n in range(rows)]
                calls.append(orders)
                tasks.append(asyncio.create_task(sequencer.submit_many(orders)))
            await asyncio.sleep(0)
    return calls, tasks


@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("ended", [CANCELLED, TERMINATED], ids=["cancelled", "terminated"])
async def test_commit_whose_wait_for_a_standby_is_ended_is_never_acknowledged(
    chain_on_breakable_postgres: MakeChain, settings: Settings, rows: int, ended: str
) -> None:
    """Nor when the waits of the take-overs behind it are ended, too."""
    chain = await chain_on_breakable_postgres(recover_seconds=3.0)
    async with led(chain) as sequencer:
        await sequencer.submit("before", b"")
        await settings.set("synchronous_standby_names", "gone")
        _, tasks = await submit_until_one_waits(sequencer, settings, rows)
        async with deadline():
            while not tasks[-1].done():
                await settings.connection.execute(ended)
        assert isinstance(tasks[-1].exception(), UnknownOutcome)
        assert all(task.exception() is None for task in tasks[:-1])


@pytest.fixture
async def standby(
    postgres_to_break: PostgresServer, server_folder: Path
) -> AsyncIterator[PostgresServer]:
    server = await asyncio.to_thread(standby_of, postgres_to_break, server_folder / "standby")
    with server:
        yield server


@pytest.mark.guarantee("G3")
async def test_commit_whose_wait_was_cancelled_is_acknowledged_once_the_standby_has_it(
    chain_on_breakable_postgres: MakeChain, settings: Settings, standby: PostgresServer
) -> None:
    """The take-over behind it waits for the same standby: that is the proof."""
    chain = await chain_on_breakable_postgres()
    database = chain.database.rpartition("/")[2]
    async with led(chain) as sequencer:
        await settings.set("synchronous_standby_names", "*")
        await in_time(sequencer.submit("before", b""))
        standby.freeze()
        calls, tasks = await submit_until_one_waits(sequencer, settings, 100)
        await settings.connection.execute(CANCELLED)
        await until(lambda: sequencer.stats().unknown_outcomes != 0)
        await until_a_commit_waits(settings)
        assert not tasks[-1].done()
        standby.thaw()
        acks = await in_time(tasks[-1])
        # What is acknowledged survives the loss of the primary at this very moment.
        await asyncio.to_thread(standby.execute, "SELECT pg_promote()")
        async with connected(standby.dsn(SUPERUSER, database)) as promoted:
            ids = {row[0] for row in await promoted.fetch("SELECT id FROM chain_event")}
    assert {ack.id for ack in acks} <= ids
    assert len(acks) == len(calls[-1])


async def test_take_over_that_was_given_up_and_lands_later_does_not_fence_the_one_that_made_it(
    chain_on_breakable_postgres: MakeChain, settings: Settings
) -> None:
    chain = await chain_on_breakable_postgres()
    async with led(chain) as sequencer:
        before = await sequencer.submit("before", b"")
        await settings.set("synchronous_standby_names", "gone")
        ended = "SELECT pg_terminate_backend(backend_pid, 5000) FROM chain_head"
        await chain.fetch(ended)
        submitted = asyncio.create_task(sequencer.submit("after", b""))
        # The first try waits in its COMMIT for the standby, the next one for the row it holds.
        await until_a_commit_waits(settings)
        await until(lambda: settings.connection.fetchval(BLOCKED))
        await settings.reset()
        after = await in_time(submitted)
    assert after.pid == before.id
    await inspect(chain)


async def test_synchronous_commit_that_is_switched_off_under_a_leader_loses_nothing(
    chain_on_breakable_postgres: MakeChain, settings: Settings, postgres_to_break: PostgresServer
) -> None:
    # The writer of the log sleeps for so long that a crash finds what was not flushed.
    await settings.set("wal_writer_delay", "10000")
    chain = await chain_on_breakable_postgres()
    orders = make_orders(50)
    async with led(chain) as sequencer:
        await sequencer.submit("before", b"")
        await settings.set("synchronous_commit", "off")
        for order in orders[:25]:
            await in_time(sequencer.submit(order.key, order.payload))
        await in_time(sequencer.submit_many(orders[25:]))
        postgres_to_break.kill()
    postgres_to_break.start()
    await inspect(chain)


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
async def test_leader_whose_database_becomes_unsafe_stops_and_says_so(
    chain_on_breakable_postgres: MakeChain, settings: Settings, setting: str
) -> None:
    chain = await chain_on_breakable_postgres()
    async with led(chain) as sequencer:
        await sequencer.submit("before", b"")
        await settings.set(setting, "off")
        with pytest.raises(DurabilityError, match=f"{setting} was 'off', expected on"):
            await in_time(sequencer.until_stopped())
        with pytest.raises(DurabilityError):
            await sequencer.submit("after", b"")
    with pytest.raises(DurabilityError):
        await open_sequencer(chain.config).__aenter__()


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("ended", [CANCELLED, TERMINATED], ids=["cancelled", "terminated"])
async def test_checkpoint_whose_wait_for_a_standby_is_ended_is_stored_only_once_it_has_it(
    chain_on_breakable_postgres: MakeChain,
    settings: Settings,
    postgres_to_break: PostgresServer,
    ended: str,
) -> None:
    chain = await chain_on_breakable_postgres()
    database = chain.database.rpartition("/")[2]
    config = CheckpointConfig(
        database=postgres_to_break.dsn(RECEIVER_WRITER, database),
        chain_id=chain.chain_id,
        name="matching",
    )
    start, end = (Mark(id=n, batch_last_id=n, seal=bytes(32), epoch=1) for n in (0, 7))
    async with PostgresCheckpointStore(config) as store:
        await store.save(0, start)
        await settings.set("synchronous_standby_names", "gone")
        await store.close()  # a new connection has the setting for sure
        # The second time the place is there already: that is no word of the standby's.
        for _ in range(2):
            saving = asyncio.create_task(store.save(0, end))
            async with deadline():
                while not saving.done():
                    await settings.connection.execute(ended)
            with pytest.raises(RetryError):
                await saving
        await settings.set("synchronous_standby_names", "")
        await in_time(store.save(0, end))
        assert await store.load() == end


async def test_leader_that_was_asked_to_accept_an_unsafe_database_goes_on(
    chain_on_breakable_postgres: MakeChain, settings: Settings
) -> None:
    chain = await chain_on_breakable_postgres(unsafe_durability=True)
    async with open_sequencer(chain.config) as sequencer:
        await settings.set("fsync", "off")
        counter = await chain.value("SELECT counter FROM chain_lease")
        async with deadline():
            while await chain.value("SELECT counter FROM chain_lease") < counter + 2:
                pass
        assert (await sequencer.submit("after", b"")).id > 0
