"""Fixtures for those who embed the engine: real servers, a chain and an outbox in memory.

pytest loads this in every project of an environment where the engine is installed. So it imports
nothing but pytest until a fixture is used, has no hook but the one that makes its marker known, and
every name begins with `orderchain`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from local_stack.kafka import KafkaServer
    from local_stack.postgres import PostgresServer
    from matcher_receiver.testing import MemoryChain
    from outbox.testing import MemoryOutbox


MARKER = (
    "orderchain(chains=[N], parts=[NAME], kafka=True): what orderchain_environment makes in its "
    "database: chains with their topics, or without Kafka, and parts of the schema besides the "
    "chain's, such as outbox and inbox"
)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, also to --strict-markers."""
    config.addinivalue_line("markers", MARKER)


_MEMORY = Path("/dev/shm")  # noqa: S108 - below it, mkdtemp makes a folder of our own
_MEMORY_BYTES = 8 * 1024**3
"""Room for the databases and logs of two processes of tests; a container often has 64 MB."""


def make_server_folder() -> Path:
    """Make a temporary folder that the servers' account can pass through, even if root makes it.

    pytest's `tmp_path` is below a folder that only its owner can open.
    It is in memory where there is room, unless TMPDIR names another place: servers flush all that
    they write, and what is in memory survives every end of a process just the same.
    """
    parent = None if "TMPDIR" in os.environ or not _has_room(_MEMORY) else _MEMORY
    folder = Path(tempfile.mkdtemp(prefix="orderchain-test-", dir=parent))
    folder.chmod(0o755)
    return folder


def _has_room(folder: Path) -> bool:
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= _MEMORY_BYTES


@pytest.fixture(scope="session")
def orderchain_folder() -> Iterator[Path]:
    """A temporary folder for the servers of the whole run."""
    folder = make_server_folder()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def orderchain_postgres(orderchain_folder: Path) -> Iterator[PostgresServer]:
    """A real PostgreSQL for the whole run, with the engine's login roles."""
    from chain_kernel.sql import LOGIN_ROLES
    from local_stack.postgres import SUPERUSER, PostgresServer, PostgresServerConfig
    from local_stack.process import free_port

    config = PostgresServerConfig(
        directory=orderchain_folder / "postgres",
        port=free_port(),
        passwords={role: secrets.token_hex(16) for role in (SUPERUSER, *LOGIN_ROLES)},
        max_wal_size_mb=512,
        is_in_memory=orderchain_folder.parent == _MEMORY,
    )
    with PostgresServer(config) as server:
        server.prepare_roles()
        yield server


@pytest.fixture(scope="session")
def orderchain_kafka(orderchain_folder: Path) -> Iterator[KafkaServer]:
    """A real Kafka for the whole run; `bootstrap` is its address. The first use ever fetches it."""
    from local_stack.kafka import KafkaServer, KafkaServerConfig
    from local_stack.process import free_port

    port = free_port()
    config = KafkaServerConfig(
        directory=orderchain_folder / "kafka",
        port=port,
        controller_port=free_port([port]),
        is_long_run=False,
    )
    with KafkaServer(config) as server:
        yield server


@pytest.fixture(scope="session")
def orderchain_template(orderchain_postgres: PostgresServer) -> str:
    """The name of a database with the engine's schema, to be copied and not to be connected to."""
    from chain_kernel.sql import schema_sql

    name = "template_chain"
    orderchain_postgres.create_database(name)
    # In one transaction, as a DBA would.
    orderchain_postgres.execute(f"BEGIN;\n{schema_sql()}\nCOMMIT;\n", database=name)
    return name


@pytest.fixture
def orderchain_fresh_name(orderchain_postgres: PostgresServer) -> Iterator[str]:
    """The name of this test's database; the test ends with no such database and no connection."""
    name = f"test_{secrets.token_hex(8)}"
    try:
        yield name
    finally:
        orderchain_postgres.drop_database(name)


@pytest.fixture
def orderchain_empty_database_name(
    orderchain_postgres: PostgresServer, orderchain_fresh_name: str
) -> str:
    """The name of a fresh database without a schema, dropped afterwards with its connections."""
    orderchain_postgres.create_database(orderchain_fresh_name)
    return orderchain_fresh_name


@pytest.fixture
def orderchain_database_name(
    orderchain_postgres: PostgresServer, orderchain_template: str, orderchain_fresh_name: str
) -> str:
    """The name of a fresh database with the engine's schema, dropped as the empty one is."""
    orderchain_postgres.copy_database(orderchain_template, orderchain_fresh_name)
    return orderchain_fresh_name


@pytest.fixture
def orderchain_role_dsn(
    orderchain_postgres: PostgresServer, orderchain_database_name: str
) -> Callable[[str], str]:
    """Gives the DSN of the fresh database for a role, one of `chain_kernel.sql`."""
    return lambda role: orderchain_postgres.dsn(role, orderchain_database_name)


@pytest.fixture
def orderchain_database(orderchain_role_dsn: Callable[[str], str]) -> str:
    """The superuser's DSN of a fresh database with the engine's schema."""
    from local_stack.postgres import SUPERUSER

    return orderchain_role_dsn(SUPERUSER)


@pytest.fixture
def orderchain_environment(
    request: pytest.FixtureRequest,
    orderchain_fresh_name: str,
    orderchain_database: str,
    orderchain_role_dsn: Callable[[str], str],
) -> dict[str, str]:
    """The settings of a whole stack, as `chainctl stack env` gives them, with a fresh database.

    The marker `orderchain` says what else is made there: chains, each with an empty topic of a name
    of its own; parts of the schema. With its `kafka=False` no Kafka is started, and none set.
    """
    from chain_kernel.sql import AUDITOR, GAP_READER

    marker = request.node.get_closest_marker("orderchain")
    asked_for = dict(marker.kwargs) if marker is not None else {}
    has_kafka = asked_for.pop("kafka", True)
    kafka = request.getfixturevalue("orderchain_kafka").bootstrap if has_kafka else None
    if marker is not None:
        asked = _make(orderchain_database, kafka, orderchain_fresh_name, *marker.args, **asked_for)
        # A loop of its own, which leaves the one that the tests run on as it is.
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(asked)
    return {
        "CHAINCTL_DATABASE": orderchain_database,
        "CHAINCTL_GAP_DATABASE": orderchain_role_dsn(GAP_READER),
        "CHAINCTL_AUDIT_DATABASE": orderchain_role_dsn(AUDITOR),
        **({} if kafka is None else {"CHAINCTL_KAFKA": kafka}),
    }


async def _make(
    database: str,
    kafka: str | None,
    name: str,
    *,
    chains: Sequence[int] = (),
    parts: Sequence[str] = (),
) -> None:
    """Make what the marker asks for. The broker outlives the test: topics begin with `name`."""
    from chain_kernel.doors import needs_extra
    from chain_kernel.sql import OWNER

    with needs_extra("cli", "orderchain_environment"):
        from chainctl.admin import CONNECT_SECONDS, apply_schema, create_chain
        from chainctl.database import connected_to

    async with connected_to(database, CONNECT_SECONDS, OWNER) as connection:
        await apply_schema(connection, parts)
        for chain_id in chains:
            await create_chain(connection, kafka, chain_id, topic=f"{name}.{chain_id}")


@pytest.fixture
def orderchain_memory_chain() -> Iterator[MemoryChain]:
    """A chain in memory, which kills what receives it; see `matcher_receiver.testing`."""
    from matcher_receiver.testing import MemoryChain

    chain = MemoryChain()
    yield chain
    chain.close()


@pytest.fixture
def orderchain_outbox(request: pytest.FixtureRequest) -> Iterator[MemoryOutbox]:
    """The outbox in memory, with crashes, repeats and reordering; see `outbox.testing`.

    Its seed is the fixture's parameter, or else ORDERCHAIN_OUTBOX_SEED, or else 0.
    """
    from outbox.testing import MemoryOutbox

    seed = int(getattr(request, "param", os.environ.get("ORDERCHAIN_OUTBOX_SEED", "0")))
    print(f"outbox with ORDERCHAIN_OUTBOX_SEED={seed}")  # noqa: T201 - pytest shows it with a failure
    outbox = MemoryOutbox(seed)
    yield outbox
    outbox.close()
