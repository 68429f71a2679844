"""Servers that may be broken, chains on them, and sequencers in processes of their own."""

import asyncio
import os
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from chain_kernel.sql import LOGIN_ROLES, schema_sql
from local_stack import KafkaServer, PostgresServer, PostgresServerConfig
from local_stack.postgres import SUPERUSER
from local_stack.process import free_port
from sequencer import SequencerConfig
from tests.builders.created_chain import Chain
from tests.builders.standbys import ServerPair, pair_in

from .brokers import Brokers, brokers_in
from .chains import create_chain, create_chain_on_pair
from .processes import Worker
from .rounds import Row, table
from .seen import watch_calls

MakeChain = Callable[..., Awaitable[Chain]]
StartWorker = Callable[..., Awaitable[Worker]]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the pairs of faults came to."""
    rows = [
        msgspec.json.decode(text, type=Row)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, text in report.user_properties
        if name == "pair"
    ]
    if rows:
        terminalreporter.section("pairs of faults")
        terminalreporter.write_line(table(rows))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long form out unless it was asked for."""
    if "long" in (config.option.markexpr or ""):
        return
    here = os.path.dirname(__file__)  # noqa: PTH120 - compared as text
    long = [
        item
        for item in items
        if str(item.path).startswith(here) and item.get_closest_marker("long")
    ]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture(autouse=True)
def seen_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `inspect` know what was asked for and answered in this process."""
    watch_calls(monkeypatch)


@pytest.fixture
def seeded(request: pytest.FixtureRequest) -> random.Random:
    """Randomness whose seed is printed when a test fails; FAULTS_SEED sets it."""
    seed = int(os.environ.get("FAULTS_SEED") or secrets.randbits(32))
    print(f"FAULTS_SEED={seed} {request.node.name}")  # noqa: T201 - pytest shows it on failure
    return random.Random(seed)


@pytest.fixture(scope="session")
def breakable_postgres(session_folder: Path) -> Iterator[PostgresServer]:
    """A PostgreSQL of the fault tests alone; see `postgres_to_break`."""
    roles = (SUPERUSER, *LOGIN_ROLES)
    config = PostgresServerConfig(
        directory=session_folder / "breakable-postgres",
        port=free_port(),
        passwords={role: secrets.token_hex(16) for role in roles},
        shared_buffers_mb=64,
        max_wal_size_mb=512,
        settings={"wal_level": "logical", "wal_retrieve_retry_interval": "100ms"},
    )
    with PostgresServer(config) as server:
        server.prepare_roles()
        yield server


@pytest.fixture
def postgres_to_break(breakable_postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A PostgreSQL to stop, kill and freeze; whole again for the next test."""
    yield breakable_postgres
    breakable_postgres.thaw()
    breakable_postgres.start()


@pytest.fixture
def make_chain(
    postgres_server: PostgresServer, database_name: str, kafka_server: KafkaServer
) -> MakeChain:
    """Make chains on the servers of the whole run, which are not to be broken."""
    return partial(create_chain, postgres_server, database_name, kafka_server)


@pytest.fixture
def server_pair(server_folder: Path) -> Iterator[ServerPair]:
    """A primary and its streaming standby, both to be broken."""
    with pair_in(server_folder) as pair:
        yield pair


@pytest.fixture
def chain_on_server_pair(server_pair: ServerPair, kafka_server: KafkaServer) -> MakeChain:
    """Make chains on a primary whose commits wait for its standby; sequencers know both hosts."""
    return partial(create_chain_on_pair, server_pair, kafka_server)


@pytest.fixture
def database_to_break(postgres_to_break: PostgresServer) -> Iterator[str]:
    """The name of a fresh database of the PostgreSQL that may be broken."""
    name = f"test_{secrets.token_hex(8)}"
    postgres_to_break.create_database(name)
    postgres_to_break.execute(f"BEGIN;\n{schema_sql()}\nCOMMIT;\n", database=name)
    yield name
    postgres_to_break.thaw()
    postgres_to_break.start()
    postgres_to_break.drop_database(name)


@pytest.fixture
def chain_on_breakable_postgres(
    postgres_to_break: PostgresServer, database_to_break: str, kafka_server: KafkaServer
) -> MakeChain:
    """Make chains in a fresh database of the PostgreSQL that may be broken."""
    return partial(create_chain, postgres_to_break, database_to_break, kafka_server)


@pytest.fixture
def chain_on_breakable_servers(
    postgres_to_break: PostgresServer, database_to_break: str, kafka_to_break: KafkaServer
) -> MakeChain:
    """Make chains on a PostgreSQL and a Kafka both of which may be broken."""
    return partial(create_chain, postgres_to_break, database_to_break, kafka_to_break)


@pytest.fixture
def three_brokers(server_folder: Path) -> Iterator[Brokers]:
    """Three brokers of one cluster, to be killed."""
    with brokers_in(server_folder) as brokers:
        yield brokers


@pytest.fixture
def chain_on_three_brokers(
    postgres_to_break: PostgresServer, database_to_break: str, three_brokers: Brokers
) -> MakeChain:
    """Make chains whose topic has a copy on each of three brokers."""
    return partial(create_chain, postgres_to_break, database_to_break, three_brokers)


@pytest.fixture
def chain_on_breakable_kafka(
    postgres_server: PostgresServer, database_name: str, kafka_to_break: KafkaServer
) -> MakeChain:
    """Make chains whose topic is on the Kafka that may be broken."""
    return partial(create_chain, postgres_server, database_name, kafka_to_break)


@pytest.fixture
async def start_worker() -> AsyncIterator[StartWorker]:
    """Start sequencers in processes of their own; whatever is left of them is killed."""
    workers: list[Worker] = []

    async def start(config: SequencerConfig, **options: int) -> Worker:
        worker = await Worker.start(config, **options)
        workers.append(worker)
        return worker

    yield start
    await asyncio.gather(*(worker.close() for worker in workers))
