"""One database in memory, the same at the end of wires, and as a real PostgreSQL, with a chain 1.

And a log in memory beside a topic of the real Kafka.
"""

import secrets
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from chain_kernel.frame import notice_channel
from chain_kernel.model import Mark
from chain_kernel.ports import (
    ChainStore,
    CheckpointStore,
    FrameSource,
    GapSource,
    KeyStore,
    Lease,
    ShadowStore,
)
from chain_kernel.seal import genesis_seal
from chain_kernel.sql import GAP_READER, RECEIVER_WRITER, SEQUENCER_WRITER
from chain_kernel.testing.memory_log import MemoryFrameSource, MemoryLog
from chain_kernel.testing.memory_receiver import (
    MemoryCheckpointStore,
    MemoryGapSource,
    MemoryShadowStore,
    MemoryTransaction,
    ask_at_once,
)
from chain_kernel.testing.memory_sql import SqlDatabase
from chain_kernel.testing.memory_store import (
    MemoryChainStore,
    MemoryDatabase,
    MemoryKeyStore,
    MemoryLease,
)
from gapfill import GapReader, GapReaderConfig
from matcher_receiver import (
    CheckpointConfig,
    KafkaFrameSource,
    KafkaSourceConfig,
    PostgresCheckpointStore,
    PostgresShadowStore,
    ReceiverConfig,
)
from matcher_receiver.stores.notified import NotifiedFrames, listened_to
from sequencer.config import SequencerConfig
from sequencer.leadership import PostgresLease
from sequencer.stores.keys import PostgresKeyStore
from sequencer.stores.postgres import PostgresChainStore
from tests.builders.topics import make_topics, send_records
from tests.deadlines import until
from tests.doubles.hosts import Host, Hosts
from tests.doubles.wire import Dial, Wire, WiredServer
from tests.doubles.wired import WiredChainStore, WiredKeyStore, WiredLease, asking_over
from tests.opened import connected
from tests.simulation.notices import HeardNotices
from tests.stored_pages import LET_TAMPER

OpenStore = Callable[..., ChainStore]
OpenLease = Callable[[], Lease]
AskToStepDown = Callable[[], Awaitable[None]]
Skips = Callable[[], Awaitable[list[tuple[int, int]]]]
HoldCommits = Callable[[], AbstractAsyncContextManager[None]]
UntilWaiting = Callable[[int], Awaitable[None]]
OpenKeys = Callable[[], KeyStore]
OpenGaps = Callable[..., GapSource]
ChangeRow = Callable[[int, str, object], Awaitable[None]]
OpenCheckpoints = Callable[..., CheckpointStore]
OpenShadow = Callable[..., ShadowStore]
OpenTransaction = Callable[[], AbstractAsyncContextManager[object]]
Publish = Callable[[Sequence[bytes]], Awaitable[None]]


def mark_at(at_id: int) -> Mark:
    return Mark(id=at_id, batch_last_id=at_id - at_id % 10, seal=b"\7" * 32, epoch=3)


def sound_wire(server: WiredServer | None = None) -> Wire:
    """A wire that takes a little time and loses nothing."""
    return Wire(server or WiredServer("database"), Dial(), Random(1))


class MemoryPlace:
    """A database in memory."""

    def __init__(self) -> None:
        self._database = MemoryDatabase()
        self._database.create(1)
        self._server = WiredServer("database")
        self._tables = SqlDatabase(Random(0))

    def store(self, chain_id: int = 1) -> ChainStore:
        return MemoryChainStore(self._database, chain_id)

    def lease(self) -> Lease:
        return MemoryLease(self._database, 1)

    def notices(self) -> FrameSource:
        return MemoryFrameSource(self._database.notices[1], has_rows=False)

    def keys(self) -> KeyStore:
        return MemoryKeyStore(self._database, 1)

    def _ask(self) -> Any:
        return ask_at_once

    def gaps(self, page_rows: int = 1_000, chain_id: int = 1) -> GapSource:
        return MemoryGapSource.of_database(
            self._database, chain_id, page_rows=page_rows, ask=self._ask()
        )

    def checkpoints(self, receiver: str = "r") -> CheckpointStore:
        return MemoryCheckpointStore(self._database, 1, receiver, self._ask())

    def shadow(self, receiver: str = "s", shadow_of: str = "r") -> ShadowStore:
        return MemoryShadowStore(self._database, 1, receiver, shadow_of, self._ask())

    @asynccontextmanager
    async def hold_commits(self) -> AsyncIterator[None]:
        self._server.hold()
        yield
        self._server.let_go()

    async def until_waiting(self, count: int) -> None:
        """None waits: an outcome is never there before it is awaited."""

    async def ask_to_step_down(self) -> None:
        self._database.chains[1].step_down = True

    async def skips(self) -> list[tuple[int, int]]:
        return self._database.chains[1].skips

    async def change_row(self, row_id: int, field: str, value: object) -> None:
        for batch in self._database.chains[1].batches:
            for at, event in enumerate(batch.events):
                if event.id == row_id:
                    batch.events[at] = replace(event, **{field: value})

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[object]:
        connection = self._tables.connect()
        async with connection.transaction():
            yield connection


class WiredPlace(MemoryPlace):
    """The same at the end of wires."""

    def __init__(self) -> None:
        super().__init__()
        self._hosts = Hosts(Host(self._database, self._server), Random(2))

    def store(self, chain_id: int = 1) -> ChainStore:
        return WiredChainStore(self._hosts, chain_id, sound_wire(self._server))

    def lease(self) -> Lease:
        return WiredLease(self._hosts, 1, sound_wire())

    def notices(self) -> FrameSource:
        return HeardNotices(self._hosts, list)

    def keys(self) -> KeyStore:
        return WiredKeyStore(self._hosts, 1, sound_wire())

    def _ask(self) -> Any:
        return asking_over(sound_wire())

    async def until_waiting(self, count: int) -> None:
        await until(lambda: len(self._server._held) >= count)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[object]:
        transaction = MemoryTransaction()
        yield transaction
        await transaction.commit()


class PostgresPlace:
    """A database of the real server."""

    def __init__(self, admin: asyncpg.Connection, role_dsn: Callable[[str], str]) -> None:
        self._admin = admin
        self._role_dsn = role_dsn

    def _config(self, chain_id: int = 1) -> SequencerConfig:
        dsn = self._role_dsn(SEQUENCER_WRITER)
        return SequencerConfig(chain_id=chain_id, database=dsn, kafka="unused:9092")

    def store(self, chain_id: int = 1) -> ChainStore:
        return PostgresChainStore(self._config(chain_id))

    def lease(self) -> Lease:
        return PostgresLease(self._config())

    def notices(self) -> FrameSource:
        return notified(self._role_dsn(GAP_READER))

    def keys(self) -> KeyStore:
        return PostgresKeyStore(self._config())

    def gaps(self, page_rows: int = 1_000, chain_id: int = 1) -> GapSource:
        dsn = self._role_dsn(GAP_READER)
        return GapReader(GapReaderConfig(database=dsn, chain_id=chain_id, page_rows=page_rows))

    def checkpoints(self, receiver: str = "r") -> CheckpointStore:
        dsn = self._role_dsn(RECEIVER_WRITER)
        return PostgresCheckpointStore(CheckpointConfig(database=dsn, chain_id=1, name=receiver))

    def shadow(self, receiver: str = "s", shadow_of: str = "r") -> ShadowStore:
        dsn = self._role_dsn(RECEIVER_WRITER)
        config = CheckpointConfig(database=dsn, chain_id=1, name=receiver)
        return PostgresShadowStore(config, shadow_of)

    @asynccontextmanager
    async def hold_commits(self) -> AsyncIterator[None]:
        async with self._admin.transaction():
            await self._admin.execute("SELECT FROM chain_head WHERE chain_id = 1 FOR UPDATE")
            yield

    async def until_waiting(self, count: int) -> None:
        # The view of activities would stay the same within the transaction of `hold_commits`.
        waiting = "SELECT count(*) >= $1 FROM pg_locks WHERE NOT granted"
        await until(lambda: self._admin.fetchval(waiting, count))

    async def ask_to_step_down(self) -> None:
        await self._admin.execute("UPDATE chain_lease SET step_down = true WHERE chain_id = 1")

    async def skips(self) -> list[tuple[int, int]]:
        recorded = "SELECT after_id, until_id FROM chain_skip WHERE chain_id = 1 ORDER BY after_id"
        return [(row[0], row[1]) for row in await self._admin.fetch(recorded)]

    async def change_row(self, row_id: int, field: str, value: object) -> None:
        await self._admin.execute(LET_TAMPER)
        change = f"UPDATE chain_event SET {field} = $2 WHERE id = $1"  # noqa: S608 - of a list
        await self._admin.execute(change, row_id, value)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[object]:
        dsn = self._role_dsn(RECEIVER_WRITER)
        async with connected(dsn) as connection, connection.transaction():
            yield connection


def notified(database: str) -> FrameSource:
    """Return what listens to chain 1 in a database of the real server."""
    config = ReceiverConfig(chain_id=1, name="listens", gap_databases=(database,))
    return NotifiedFrames(config, listened_to(config))


Place = MemoryPlace | PostgresPlace


@pytest.fixture(params=["memory", "wired", "postgres"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    if request.param != "postgres":
        yield WiredPlace() if request.param == "wired" else MemoryPlace()
        return
    admin = await asyncpg.connect(request.getfixturevalue("database"))
    seal = genesis_seal(await admin.fetchval("SELECT database_id FROM schema_version"), 1)
    await admin.execute("SELECT chain_create(1, $1, 'orders', 0, 1000000)", seal)
    yield PostgresPlace(admin, request.getfixturevalue("role_dsn"))
    await admin.close()


Opener = Callable[[Callable[..., Any]], Callable[..., Any]]


@pytest.fixture
async def opener(place: Place) -> AsyncIterator[Opener]:
    """Has all that is opened closed at the end of the test."""
    async with AsyncExitStack() as closing:

        def opening(make: Callable[..., Any]) -> Callable[..., Any]:
            def open_one(*values: Any, **settings: Any) -> Any:
                made = make(*values, **settings)
                closing.push_async_callback(made.close)
                return made

            return open_one

        yield opening


@pytest.fixture
def open_store(place: Place, opener: Opener) -> OpenStore:
    """Open stores of one database, each as a process of its own would."""
    return opener(place.store)


@pytest.fixture
def open_lease(place: Place, opener: Opener) -> OpenLease:
    return opener(place.lease)


@pytest.fixture
def open_keys(place: Place, opener: Opener) -> OpenKeys:
    return opener(place.keys)


@pytest.fixture
def open_gaps(place: Place, opener: Opener) -> OpenGaps:
    return opener(place.gaps)


@pytest.fixture
def open_checkpoints(place: Place, opener: Opener) -> OpenCheckpoints:
    return opener(place.checkpoints)


@pytest.fixture
def open_shadow(place: Place, opener: Opener) -> OpenShadow:
    return opener(place.shadow)


@pytest.fixture
def hold_commits(place: Place) -> HoldCommits:
    """Keeps commits and take-overs of chain 1 from being answered while its block runs.

    In memory an outcome is never there before it is awaited; a real server may have answered by
    then.
    """
    return place.hold_commits


@pytest.fixture
def until_waiting(place: Place) -> UntilWaiting:
    """Wait until so many questions wait for what `hold_commits` holds; in memory none does."""
    return place.until_waiting


@pytest.fixture
def ask_to_step_down(place: Place) -> AskToStepDown:
    """What `chainctl step-down` does."""
    return place.ask_to_step_down


@pytest.fixture
def skips(place: Place) -> Skips:
    """Return the ranges that are recorded as never published."""
    return place.skips


@pytest.fixture
def change_row(place: Place) -> ChangeRow:
    """Change one field of a stored row, as an owner of the database could."""
    return place.change_row


@pytest.fixture
def open_transaction(place: Place) -> OpenTransaction:
    """A caller's own transaction: committed at the end of its block, else rolled back."""
    return place.transaction


@pytest.fixture
def open_notices(place: Place, opener: Opener) -> Callable[[], FrameSource]:
    """Open sources of what leaders of chain 1 notify."""
    return opener(place.notices)


@pytest.fixture(params=["memory", "kafka", "postgres"])
async def topic(
    request: pytest.FixtureRequest,
) -> AsyncIterator[tuple[Callable[[], FrameSource], Publish]]:
    """How to open a source of a fresh topic, and how to publish to it."""
    if request.param == "memory":
        log = MemoryLog()

        async def append(values: Sequence[bytes]) -> None:
            log.append(values)

        yield lambda: MemoryFrameSource(log), append
        return
    if request.param == "postgres":
        database = request.getfixturevalue("database")
        async with connected(database) as connection:

            async def notify(values: Sequence[bytes]) -> None:
                for value in values:
                    notice = f"0 {b64encode(value).decode()}"
                    await connection.execute("SELECT pg_notify($1, $2)", notice_channel(1), notice)

            yield lambda: notified(database), notify
        return
    kafka = request.getfixturevalue("kafka_server").bootstrap
    name = f"contract-{secrets.token_hex(4)}"
    await make_topics(kafka, name)
    config = KafkaSourceConfig(kafka=kafka, topic=name)
    yield lambda: KafkaFrameSource(config), lambda values: send_records(kafka, name, *values)
