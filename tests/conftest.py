"""The real servers of the tests: started when a test first asks for one, stopped at the end.

They are the fixtures of `orderchain.pytest_plugin`, for embedders, too.

A test that uses `postgres_server`, a Kafka or `spark`, directly or through another fixture, gets
the marker `postgres`, `kafka` or `spark` by itself.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from chain_kernel import process, speed
from chainctl.schema.parts import PARTS
from local_stack import KafkaServer, KafkaServerConfig
from local_stack.folders import default_cache_directory
from local_stack.jars import fetch_kafka
from local_stack.postgres import SUPERUSER
from local_stack.process import free_port
from orderchain.pytest_plugin import make_server_folder
from tests.builders.listeners import with_proxy
from tests.hanging import (  # noqa: F401 - hooks
    pytest_runtest_call,
    pytest_runtest_setup,
    pytest_runtest_teardown,
    pytest_timeout_set_timer,
)
from tests.lanes import pytest_mark_nightly  # noqa: F401 - a hook
from tests.loops import pytest_asyncio_loop_factories  # noqa: F401 - a hook
from tests.shared_kafka import orderchain_kafka, pytest_configure_node, pytest_unconfigure  # noqa: F401 - hooks and a fixture

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession

    from local_stack import PostgresServer
    from tests.secured_kafka import SecuredKafka
    from tests.secured_postgres import SecuredPostgres

RoleDsn = Callable[[str], str]
Template = Callable[..., str]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background, as CI systems do, the tests would pass this on to every process
    # that they interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SPARK_SECONDS = 300
"""For one that hangs: on a loaded machine Spark alone may take a minute to start."""

_KAFKAS = frozenset({"kafka_server", "breakable_kafka", "secured_kafka"})

# No timing is asserted in tests, so a loaded machine fails none; a failure prints how to repeat it.
settings.register_profile(
    "orderchain", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("orderchain")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect the tests without the collector of garbage: there is none among so many tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        used = getattr(item, "fixturenames", ())
        if "postgres_server" in used:
            item.add_marker(pytest.mark.postgres)
        if not _KAFKAS.isdisjoint(used):
            item.add_marker(pytest.mark.kafka)
        if "spark" in used:
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SPARK_SECONDS))
            # PySpark leaves the socket of every `collect` to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))


# A server that few tests use is started by one of the processes alone: these modules come first
# in the part of the first process, and of the second.
_GROUPS: tuple[frozenset[str], ...] = (
    frozenset({"spark"}),
    frozenset({"breakable_kafka", "breakable_postgres", "secured_kafka", "secured_postgres"}),
)
_STARTS_SPARK = Path(__file__).parent / "integration/chainctl/commands/verifier"
"""Commands, in the process of the tests: what they start stays for the next."""
_DEMO = Path(__file__).parent / "integration/chainctl/commands/test_demo.py"
"""Takes minutes, with servers of its own: the first of its process, or all others wait for it."""
_SERVED = frozenset({"postgres_server", "server_folder"}) | _KAFKAS
_WEIGHTS = {"group": 4, "served": 2}
"""What a module costs by each of its tests, roughly; one without a server costs next to nothing."""


@pytest.hookimpl(specname="pytest_collection_modifyitems", trylast=True)
def pytest_share_servers(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests into an order by which few servers are started, without a wait at the end.

    `--dist worksteal` gives each process an equal part of the list, and what one has left at the
    end of its part to one that has none. So the tests without a server are at the end of each.
    """
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    if processes > 1:
        items[:] = _shared(items, processes)


def _shared(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    parts: list[list[pytest.Item]] = [[] for _ in range(processes)]
    costs = [0] * processes
    served: list[list[pytest.Item]] = []
    plain: list[pytest.Item] = []
    for module in modules.values():
        used = {name for item in module for name in getattr(item, "fixturenames", ())}
        if module[0].path.is_relative_to(_STARTS_SPARK):
            used.add("spark")
        group = next((n for n, names in enumerate(_GROUPS) if not names.isdisjoint(used)), None)
        if module[0].path == _DEMO:
            group = 2
        if group is not None:
            parts[group % processes] += module
            costs[group % processes] += _WEIGHTS["group"] * len(module)
        elif not _SERVED.isdisjoint(used):
            served.append(module)
        else:
            plain += module
    for module in served:
        cheapest = costs.index(min(costs))
        parts[cheapest] += module
        costs[cheapest] += _WEIGHTS["served"] * len(module)
    for number, part in enumerate(parts):
        # As the scheduler divides: among those that are left.
        size = (len(items) - sum(map(len, parts[:number]))) // (processes - number)
        count = max(0, size - len(part))
        part += plain[:count]
        del plain[:count]
    return [item for part in parts for item in part] + plain


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch Kafka before the first test: the fetch may take longer than a test is given.

    And have the collector pass over the thousands of tests no more.
    """
    gc.collect()
    gc.freeze()
    process._is_calm = True  # tests see the collector as Python has it
    needed = any(
        not _KAFKAS.isdisjoint(getattr(item, "fixturenames", ())) for item in session.items
    )
    if needed and not session.config.option.collectonly:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        tell = reporter.write_line if reporter is not None else print
        fetch_kafka(default_cache_directory(os.environ), environ=os.environ, progress=tell)


@pytest.hookimpl(specname="pytest_runtest_teardown", wrapper=True)
def pytest_leave_nothing_of_spark(item: pytest.Item) -> Generator[None, Any, Any]:
    """Collect what a test of Spark has left: a socket of a result that an error cut off.

    Collected during a later test it would fail that one.
    """
    try:
        return (yield)
    finally:
        if item.get_closest_marker("spark") is not None:
            gc.collect()


@pytest.fixture(params=["python", "native"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test runs twice: with the hottest functions in Python, and compiled."""
    name: str = request.param
    native = speed.load(name) if name == "python" else speed.load(None)
    if name == "native" and native is None:
        pytest.skip("orderchain-speed is not built here, or ORDERCHAIN_IMPL leaves it out")
    monkeypatch.setattr(speed, "native", native)
    return name


@pytest.fixture
def server_folder() -> Iterator[Path]:
    """A temporary folder for the servers of one test; the test stops what it starts there."""
    folder = make_server_folder()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def session_folder(orderchain_folder: Path) -> Path:
    """A temporary folder for the servers of the whole run."""
    return orderchain_folder


@pytest.fixture(scope="session")
def postgres_server(orderchain_postgres: PostgresServer) -> PostgresServer:
    """PostgreSQL for the whole run, with every login role. Tests do not break or stop this one."""
    return orderchain_postgres


@pytest.fixture(scope="session")
def kafka_server(orderchain_kafka: KafkaServer) -> KafkaServer:  # noqa: F811 - the fixture
    """Kafka for the whole run. Tests do not break or stop this one."""
    return orderchain_kafka


@pytest.fixture(scope="session")
def breakable_kafka(session_folder: Path) -> Iterator[KafkaServer]:
    """A Kafka of the tests that break one, with a listener for a proxy; see `kafka_to_break`."""
    ports: list[int] = []
    for _ in range(4):
        ports.append(free_port(ports))
    config = KafkaServerConfig(
        directory=session_folder / "breakable-kafka",
        port=ports[0],
        controller_port=ports[1],
        is_long_run=False,
        settings={
            "auto.create.topics.enable": "true",  # which is the default of brokers
            "log.retention.bytes": str(32 * 2**20),
            "log.segment.bytes": str(8 * 2**20),
            "log.retention.check.interval.ms": "5000",
            "log.segment.delete.delay.ms": "1000",
        },
    )
    with KafkaServer(with_proxy(config, ports[2], ports[3])) as server:
        yield server


@pytest.fixture
def kafka_to_break(breakable_kafka: KafkaServer) -> Iterator[KafkaServer]:
    """A Kafka to stop, kill and freeze; whole again for the next test."""
    yield breakable_kafka
    breakable_kafka.thaw()
    breakable_kafka.start()


@pytest.fixture(scope="session")
def secured_kafka(session_folder: Path) -> Iterator[SecuredKafka]:
    """A Kafka with TLS, logins and access control. Tests do not break or stop it."""
    from tests.secured_kafka import secured_kafka_in

    with secured_kafka_in(session_folder) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def secured_postgres(session_folder: Path) -> Iterator[SecuredPostgres]:
    """A PostgreSQL with TLS and logins by password and certificate. Tests do not stop it."""
    from tests.certificates import Authority
    from tests.secured_postgres import secured_postgres_in

    folder = session_folder / "secured-postgres-certificates"
    folder.mkdir(mode=0o755)
    authority = Authority(folder)
    files = authority.server()
    with secured_postgres_in(session_folder / "secured-postgres", authority, files) as server:
        yield server


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for the whole run, which commands called in this process use too."""
    from chain_verifier.spark.session import open_session

    with open_session(None) as session, pytest.MonkeyPatch.context() as patch:
        # A few rows per test: more partitions would only be more tasks to start.
        session.conf.set("spark.sql.shuffle.partitions", "1")
        patch.setattr("chain_verifier.spark.keys._PARTITIONS_MAX", 2)
        # Every check has a key of its own, so every plan would be compiled again, for a few rows.
        # The follower, the cluster and the demo are tested with compiled plans.
        session.conf.set("spark.sql.codegen.wholeStage", "false")
        session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        gc.collect()
        gc.freeze()  # PySpark's modules: the collector runs after each test
        yield session


@pytest.fixture
def empty_database_name(
    postgres_server: PostgresServer, orderchain_empty_database_name: str
) -> str:
    """A fresh database of this test alone, dropped afterwards with its connections."""
    return orderchain_empty_database_name


@pytest.fixture
def empty_database(postgres_server: PostgresServer, empty_database_name: str) -> str:
    """The superuser's DSN of a fresh database without a schema."""
    return postgres_server.dsn(SUPERUSER, empty_database_name)


@pytest.fixture
def database_name(postgres_server: PostgresServer, orderchain_database_name: str) -> str:
    """A fresh database with the engine's schema."""
    return orderchain_database_name


@pytest.fixture
def database(postgres_server: PostgresServer, orderchain_database: str) -> str:
    """The superuser's DSN of a fresh database with the engine's schema."""
    return orderchain_database


@pytest.fixture(scope="session")
def template(postgres_server: PostgresServer, orderchain_template: str) -> Template:
    """Gives the name of a database with these parts of the schema, each made once, to be copied.

    Tests that install a schema do not use it.
    """
    made: dict[tuple[str, ...], str] = {("chain",): orderchain_template}

    def with_parts(*parts: str) -> str:
        if parts not in made:
            name = "_".join(("template", *parts))
            postgres_server.create_database(name)
            for part in parts:
                text = PARTS[part].text()
                postgres_server.execute(f"BEGIN;\n{text}\nCOMMIT;\n", database=name)
            made[parts] = name
        return made[parts]

    return with_parts


@pytest.fixture
def database_with(
    postgres_server: PostgresServer, template: Template, orderchain_fresh_name: str
) -> Callable[..., str]:
    """Makes the database of this test, with these parts of the schema, and returns its name."""

    def make(*parts: str) -> str:
        postgres_server.copy_database(template(*parts), orderchain_fresh_name)
        return orderchain_fresh_name

    return make


@pytest.fixture
def role_dsn(postgres_server: PostgresServer, orderchain_role_dsn: RoleDsn) -> RoleDsn:
    """Gives the DSN of the same fresh database as `database` for a login role."""
    return orderchain_role_dsn


@pytest.fixture
def stack_environment(
    postgres_server: PostgresServer,
    kafka_server: KafkaServer,
    orderchain_environment: dict[str, str],
) -> dict[str, str]:
    """The settings of a whole stack, as `chainctl stack env` gives them, with a fresh database."""
    return orderchain_environment
