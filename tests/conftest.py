"""The real servers of the tests: started when a test first asks for one, stopped at the end.

A test that uses `postgres_server` or `kafka_server`, directly or through another fixture, gets the
marker `postgres` or `kafka` by itself.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local_stack import KafkaConfig, KafkaServer, PostgresConfig, PostgresServer
from local_stack.folders import default_cache_directory
from local_stack.jars import fetch_kafka
from local_stack.ports import free_port
from local_stack.postgres import SUPERUSER
from orderchain.roles import AUDITOR, GAP_READER, LOGIN_ROLES
from orderchain.schema import schema_sql

RoleDsn = Callable[[str], str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        used = getattr(item, "fixturenames", ())
        if "postgres_server" in used:
            item.add_marker(pytest.mark.postgres)
        if "kafka_server" in used:
            item.add_marker(pytest.mark.kafka)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch Kafka before the first test: the fetch may take longer than a test is given."""
    needed = any("kafka_server" in getattr(item, "fixturenames", ()) for item in session.items)
    if needed and not session.config.option.collectonly:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        tell = reporter.write_line if reporter is not None else print
        fetch_kafka(default_cache_directory(os.environ), environ=os.environ, progress=tell)


def apply_schema(server: PostgresServer, database: str) -> None:
    """Bring the schema into a fresh database, in one transaction, as a DBA would."""
    server.execute(f"BEGIN;\n{schema_sql()}\nCOMMIT;\n", database=database)


def make_server_folder() -> Path:
    """A temporary folder that the servers' own account can pass through, even when root made it.

    pytest's `tmp_path` lies below a folder that is closed to all but its owner.
    """
    folder = Path(tempfile.mkdtemp(prefix="orderchain-test-"))
    folder.chmod(0o755)
    return folder


@pytest.fixture
def server_folder() -> Iterator[Path]:
    """A temporary folder for the servers of one test; the test stops what it starts there."""
    folder = make_server_folder()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def session_folder() -> Iterator[Path]:
    """A temporary folder for the servers of the whole run."""
    folder = make_server_folder()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres_server(session_folder: Path) -> Iterator[PostgresServer]:
    """PostgreSQL for the whole run, with every login role. Tests do not break or stop this one."""
    roles = (SUPERUSER, *LOGIN_ROLES)
    config = PostgresConfig(
        directory=session_folder / "postgres",
        port=free_port(),
        passwords={role: secrets.token_hex(16) for role in roles},
        max_wal_size_mb=512,
    )
    server = PostgresServer(config)
    try:
        server.start()
        server.prepare_roles()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def kafka_server(session_folder: Path) -> Iterator[KafkaServer]:
    """Kafka for the whole run. Tests do not break or stop this one."""
    port = free_port()
    config = KafkaConfig(
        directory=session_folder / "kafka", port=port, controller_port=free_port([port])
    )
    server = KafkaServer(config)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def empty_database_name(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh database of this test alone, dropped afterwards with whoever is still connected."""
    name = f"test_{secrets.token_hex(8)}"
    postgres_server.create_database(name)
    try:
        yield name
    finally:
        postgres_server.drop_database(name)


@pytest.fixture
def empty_database(postgres_server: PostgresServer, empty_database_name: str) -> str:
    """The superuser's DSN of a fresh database without a schema."""
    return postgres_server.dsn(SUPERUSER, empty_database_name)


@pytest.fixture
def database_name(postgres_server: PostgresServer, empty_database_name: str) -> str:
    """A fresh database with the engine's schema."""
    apply_schema(postgres_server, empty_database_name)
    return empty_database_name


@pytest.fixture
def database(postgres_server: PostgresServer, database_name: str) -> str:
    """The superuser's DSN of a fresh database with the engine's schema."""
    return postgres_server.dsn(SUPERUSER, database_name)


@pytest.fixture
def role_dsn(postgres_server: PostgresServer, database_name: str) -> RoleDsn:
    """Gives the DSN of the same fresh database as `database` for a login role."""
    return lambda role: postgres_server.dsn(role, database_name)


@pytest.fixture
def stack_environment(
    kafka_server: KafkaServer, database: str, role_dsn: RoleDsn
) -> dict[str, str]:
    """The settings of a whole stack, as `chainctl stack env` gives them, with a fresh database."""
    return {
        "CHAINCTL_DATABASE": database,
        "CHAINCTL_GAP_DATABASE": role_dsn(GAP_READER),
        "CHAINCTL_AUDIT_DATABASE": role_dsn(AUDITOR),
        "CHAINCTL_KAFKA": kafka_server.bootstrap,
    }
