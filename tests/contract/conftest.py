"""One database in memory, the same at the end of wires, and as a real PostgreSQL, with a chain 1.

And a log in memory beside a topic of the real Kafka.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random

import asyncpg
import pytest
from aiokafka import AIOKafkaProducer
from msgspec.structs import replace

from chain_kernel.ports import ChainStore, CheckpointStore, FrameSource, GapSource, KeyStore, Lease
from chain_kernel.seal import genesis_seal
from chain_kernel.sql import GAP_READER, RECEIVER_WRITER, SEQUENCER_WRITER
from chain_kernel.testing.memory_log import MemoryFrameSource, MemoryLog
from chain_kernel.testing.memory_receiver import (
    MemoryCheckpointStore,
    MemoryGapSource,
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
from local_stack import KafkaServer
from matcher_receiver import (
    CheckpointConfig,
    KafkaFrameSource,
    KafkaSourceConfig,
    PostgresCheckpointStore,
)
from sequencer.config import SequencerConfig
from sequencer.leadership import PostgresLease
from sequencer.stores.keys import PostgresKeyStore
from sequencer.stores.postgres import PostgresChainStore
from tests.builders.topics import make_topics
from tests.deadlines import deadline
from tests.doubles.wire import Dial, Wire, WiredServer
from tests.doubles.wired import WiredChainStore, WiredKeyStore, WiredLease, asking_over
from tests.stored_pages import LET_TAMPER

OpenStore = Callable[..., "ChainStore"]
OpenLease = Callable[[], "Lease"]
AskToStepDown = Callable[[], Awaitable[None]]
HoldCommits = Callable[[], AbstractAsyncContextManager[None]]
UntilWaiting = Callable[[int], Awaitable[None]]
OpenKeys = Callable[[], "KeyStore"]
OpenGaps = Callable[..., "GapSource"]
ChangeRow = Callable[[int, str, object], Awaitable[None]]
OpenCheckpoints = Callable[..., "CheckpointStore"]
OpenTransaction = Callable[[], AbstractAsyncContextManager[object]]
Publish = Callable[[Sequence[bytes]], Awaitable[None]]


async def make_chain_in_postgres(database: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        database_id = await connection.fetchval("SELECT database_id FROM schema_version")
        await connection.execute(
            "SELECT chain_create(1, $1, 'orders', 0, 1000000)", genesis_seal(database_id, 1)
        )
    finally:
        await connection.close()


def config_for(dsn: str, chain_id: int = 1) -> SequencerConfig:
    return SequencerConfig(chain_id=chain_id, database=dsn, kafka="unused:9092")


def sound_wire(server: WiredServer | None = None) -> Wire:
    """A wire that takes a little time and loses nothing."""
    return Wire(server or WiredServer("database"), Dial(), Random(1))


@pytest.fixture
def wired_server() -> WiredServer:
    """What the stores at the end of wires lead to."""
    return WiredServer("database")


@pytest.fixture(params=["memory", "wired", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def memory() -> MemoryDatabase:
    database = MemoryDatabase()
    database.create(1)
    return database


@pytest.fixture
async def writer_dsn(request: pytest.FixtureRequest, kind: str) -> str:
    """The sequencer's DSN of a database with chain 1; none for the one in memory."""
    if kind != "postgres":
        return ""
    await make_chain_in_postgres(request.getfixturevalue("database"))
    dsn: str = request.getfixturevalue("role_dsn")(SEQUENCER_WRITER)
    return dsn


@pytest.fixture
async def open_store(
    kind: str, memory: MemoryDatabase, writer_dsn: str, wired_server: WiredServer
) -> AsyncIterator[OpenStore]:
    """Open stores of one database, each as a process of its own would."""
    opened: list[ChainStore] = []

    def open_one(chain_id: int = 1) -> ChainStore:
        store: ChainStore
        if kind == "memory":
            store = MemoryChainStore(memory, chain_id)
        elif kind == "wired":
            store = WiredChainStore(memory, chain_id, sound_wire(wired_server))
        else:
            store = PostgresChainStore(config_for(writer_dsn, chain_id))
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
def hold_commits(
    request: pytest.FixtureRequest, kind: str, writer_dsn: str, wired_server: WiredServer
) -> HoldCommits:
    """Keeps commits and take-overs of chain 1 from being answered while its block runs.

    In memory an outcome is never there before it is awaited; a real server may have answered by
    then.
    """

    @asynccontextmanager
    async def hold() -> AsyncIterator[None]:
        if kind != "postgres":
            wired_server.hold()
            yield
            wired_server.let_go()
            return
        connection = await asyncpg.connect(request.getfixturevalue("database"))
        try:
            async with connection.transaction():
                await connection.execute("SELECT FROM chain_head WHERE chain_id = 1 FOR UPDATE")
                yield
        finally:
            await connection.close()

    return hold


@pytest.fixture
def until_waiting(
    request: pytest.FixtureRequest, kind: str, writer_dsn: str, wired_server: WiredServer
) -> UntilWaiting:
    """Wait until so many questions wait for what `hold_commits` holds; in memory none does."""
    statement = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

    async def waiting() -> int:
        if kind == "postgres":
            connection = await asyncpg.connect(request.getfixturevalue("database"))
            try:
                return int(await connection.fetchval(statement))
            finally:
                await connection.close()
        return len(wired_server._held)

    async def until(count: int) -> None:
        async with deadline():
            while kind != "memory" and await waiting() < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    return until


@pytest.fixture
async def ask_to_step_down(
    request: pytest.FixtureRequest, kind: str, memory: MemoryDatabase, writer_dsn: str
) -> AskToStepDown:
    """What `chainctl step-down` does."""

    async def ask() -> None:
        if kind != "postgres":
            memory.chains[1].step_down = True
            return
        connection = await asyncpg.connect(request.getfixturevalue("database"))
        await connection.execute("UPDATE chain_lease SET step_down = true WHERE chain_id = 1")
        await connection.close()

    return ask


@pytest.fixture
async def open_lease(
    kind: str, memory: MemoryDatabase, writer_dsn: str
) -> AsyncIterator[OpenLease]:
    """The lease of the same database."""
    lease: Lease
    if kind == "memory":
        lease = MemoryLease(memory, 1)
    elif kind == "wired":
        lease = WiredLease(memory, 1, sound_wire())
    else:
        lease = PostgresLease(config_for(writer_dsn))
    yield lambda: lease
    await lease.close()


@pytest.fixture
async def open_keys(kind: str, memory: MemoryDatabase, writer_dsn: str) -> AsyncIterator[OpenKeys]:
    """The keys of the same database."""
    keys: KeyStore
    if kind == "memory":
        keys = MemoryKeyStore(memory, 1)
    elif kind == "wired":
        keys = WiredKeyStore(memory, 1, sound_wire())
    else:
        keys = PostgresKeyStore(config_for(writer_dsn))
    yield lambda: keys
    await keys.close()


@pytest.fixture
async def open_gaps(
    request: pytest.FixtureRequest, kind: str, memory: MemoryDatabase, writer_dsn: str
) -> AsyncIterator[OpenGaps]:
    """Open readers of the same database."""
    del writer_dsn  # made the chain
    opened: list[GapSource] = []

    def open_one(page_rows: int = 1_000, chain_id: int = 1) -> GapSource:
        source: GapSource
        if kind == "postgres":
            dsn: str = request.getfixturevalue("role_dsn")(GAP_READER)
            source = GapReader(
                GapReaderConfig(database=dsn, chain_id=chain_id, page_rows=page_rows)
            )
        else:
            ask = asking_over(sound_wire()) if kind == "wired" else ask_at_once
            source = MemoryGapSource.of_database(memory, chain_id, page_rows=page_rows, ask=ask)
        opened.append(source)
        return source

    yield open_one
    for source in opened:
        await source.close()


@pytest.fixture
def change_row(
    request: pytest.FixtureRequest, kind: str, memory: MemoryDatabase, writer_dsn: str
) -> ChangeRow:
    """Change one field of a stored row, as an owner of the database could."""
    del writer_dsn

    async def in_memory(row_id: int, field: str, value: object) -> None:
        for batch in memory.chains[1].batches:
            for at, event in enumerate(batch.events):
                if event.id == row_id:
                    batch.events[at] = replace(event, **{field: value})

    async def in_postgres(row_id: int, field: str, value: object) -> None:
        connection = await asyncpg.connect(request.getfixturevalue("database"))
        try:
            await connection.execute(LET_TAMPER)
            change = f"UPDATE chain_event SET {field} = $2 WHERE id = $1"  # noqa: S608 - of a list
            await connection.execute(change, row_id, value)
        finally:
            await connection.close()

    return in_postgres if kind == "postgres" else in_memory


@pytest.fixture
async def open_checkpoints(
    request: pytest.FixtureRequest, kind: str, memory: MemoryDatabase, writer_dsn: str
) -> AsyncIterator[OpenCheckpoints]:
    """Open checkpoint stores of the same database, each as a receiver of its own would."""
    del writer_dsn
    opened: list[CheckpointStore] = []

    def open_one(receiver: str = "r") -> CheckpointStore:
        store: CheckpointStore
        if kind == "postgres":
            dsn: str = request.getfixturevalue("role_dsn")(RECEIVER_WRITER)
            store = PostgresCheckpointStore(
                CheckpointConfig(database=dsn, chain_id=1, name=receiver)
            )
        else:
            ask = asking_over(sound_wire()) if kind == "wired" else ask_at_once
            store = MemoryCheckpointStore(memory, 1, receiver, ask)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
def open_transaction(request: pytest.FixtureRequest, kind: str, writer_dsn: str) -> OpenTransaction:
    """A caller's own transaction: committed at the end of its block, else rolled back."""
    del writer_dsn

    tables = SqlDatabase(Random(0))

    @asynccontextmanager
    async def by_statements() -> AsyncIterator[object]:
        connection = tables.connect()
        async with connection.transaction():
            yield connection

    @asynccontextmanager
    async def in_memory() -> AsyncIterator[object]:
        transaction = MemoryTransaction()
        yield transaction
        await transaction.commit()

    @asynccontextmanager
    async def in_postgres() -> AsyncIterator[object]:
        connection = await asyncpg.connect(request.getfixturevalue("role_dsn")(RECEIVER_WRITER))
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()

    return {"postgres": in_postgres, "wired": in_memory, "memory": by_statements}[kind]


@pytest.fixture(params=["memory", "kafka"])
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
    server: KafkaServer = request.getfixturevalue("kafka_server")
    name = f"contract-{secrets.token_hex(4)}"
    await make_topics(server.bootstrap, name)
    producer = AIOKafkaProducer(bootstrap_servers=server.bootstrap)
    await producer.start()

    async def send(values: Sequence[bytes]) -> None:
        for value in values:
            await producer.send_and_wait(name, value, partition=0)

    config = KafkaSourceConfig(kafka=server.bootstrap, topic=name)
    yield lambda: KafkaFrameSource(config), send
    await producer.stop()
