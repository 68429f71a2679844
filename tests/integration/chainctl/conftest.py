"""The real `chainctl` against the real servers.

What concerns the process itself (signals, pipes, its start) runs as a process; all else is called
in the process of the tests, which need not start Python for it.
"""

import asyncio
import json
import os
import random
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

import chainctl as chainctl_package
from chain_kernel.sql import GAP_READER
from local_stack import KafkaServer, PostgresServer
from local_stack.postgres import SUPERUSER
from tests.builders.orders import order_file
from tests.command_call import Done, call_here
from tests.deadlines import deadline, until
from tests.integration.chainctl.runbooks import ARCHIVE, Runbook, World, settings_of
from tests.integration.chainctl.sizes import FILLED_ROWS
from tests.opened import connected

ROOT = Path(chainctl_package.__file__).parent.parent


class Call(Protocol):
    """Calls `chainctl` and waits for its end.

    It runs in this process, but as one of its own where `as_process` or options of `popen` ask for
    that, where a loop runs already, and outside the main thread, which alone handles signals.
    """

    def __call__(
        self,
        *arguments: object,
        settings: Mapping[str, str] | None = None,
        as_process: bool = False,
        **popen: Any,
    ) -> Done: ...


Start = Callable[..., "subprocess.Popen[str]"]
Refused = Callable[..., str]
Admin = Callable[[Callable[[AIOKafkaAdminClient], Any]], Any]


def clean_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment of this test run, with no settings in it but these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CHAINCTL_")}
    return {**kept, "PYTHONPATH": str(ROOT), **settings}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `chainctl` and returns the process; whatever is left of it is killed at the end.

    With `script` Python runs that instead, with the same arguments; `within` runs Python.
    """
    started: list[subprocess.Popen[str]] = []

    def run(
        *arguments: object, settings: Mapping[str, str] | None = None, **popen: Any
    ) -> subprocess.Popen[str]:
        options: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
            "text": True,
            "cwd": tmp_path,
            "env": clean_environment(settings or {}),
            **popen,
        }
        script = options.pop("script", None)
        how = ["-m", "chainctl"] if script is None else ["-c", script]
        command = [*options.pop("within", ()), sys.executable, *how, *map(str, arguments)]
        process = subprocess.Popen(command, **options)
        started.append(process)
        return process

    yield run
    for process in started:
        with process:  # waits, and closes its pipes
            process.kill()


@pytest.fixture
def call(start: Start, tmp_path: Path) -> Call:
    def run(
        *arguments: object, settings: Mapping[str, str] | None = None, as_process: bool = False,
        **popen: Any,
    ) -> Done:  # fmt: skip
        if not (as_process or popen) and may_run_here():
            return call_here(arguments, settings or {}, tmp_path)
        process = start(*arguments, settings=settings, **popen)
        out, err = process.communicate()
        return Done(process.returncode, out or "", err or "")

    return run


def may_run_here() -> bool:
    """Return whether a command can run in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return threading.current_thread() is threading.main_thread()
    return False


@pytest.fixture
def refused(call: Call) -> Refused:
    """Calls `chainctl`, which must refuse: exit code 2, one line on stderr, and nothing else.

    Returns the line. No password of `settings`, and none of `hidden`, may be in it.
    """

    def run(
        *arguments: object, settings: Mapping[str, str] | None = None, hidden: str = "",
        as_process: bool = False,
    ) -> str:  # fmt: skip
        done = call(*arguments, settings=settings, as_process=as_process)
        assert done.code == 2, done
        assert done.err.startswith("chainctl: "), done
        assert done.err.count("\n") == 1, done
        assert done.out == "", done
        passwords = {hidden, *(urlsplit(value).password for value in (settings or {}).values())}
        assert not [password for password in passwords if password and password in done.err]
        return done.err

    return run


class Ctl:
    """Calls `chainctl` with the settings of a test: `settings`, which a module may define."""

    def __init__(self, call: Call, refused: Refused, settings: Mapping[str, str]) -> None:
        self._call, self._refused, self._settings = call, refused, settings

    def __call__(self, *arguments: object, **options: Any) -> Done:
        return self._call(*arguments, settings=self._settings, **options)

    def done(self, *arguments: object) -> str:
        """Call it; it must succeed. Returns what it wrote to stdout."""
        done = self(*arguments)
        assert done.code == 0, done
        return done.out

    def json(self, *arguments: object) -> Any:
        """Call it with `--json`; it must succeed. Returns what it wrote."""
        return json.loads(self.done(*arguments, "--json"))

    def refused(self, *arguments: object, **options: Any) -> str:
        return self._refused(*arguments, settings=self._settings, **options)


@pytest.fixture
def ctl(call: Call, refused: Refused, settings: dict[str, str]) -> Ctl:
    return Ctl(call, refused, settings)


def must(*arguments: object, settings: Mapping[str, str]) -> str:
    """Call `chainctl` for what a whole module of tests needs; returns what it wrote to stdout."""
    done = call_here(arguments, settings, Path.cwd())
    assert done.code == 0, done
    return done.out


@pytest.fixture(scope="module")
def module_settings(
    postgres_server: PostgresServer, template: Callable[..., str], kafka_server: KafkaServer
) -> Iterator[dict[str, str]]:
    """The settings of a database with the schema, for tests that leave no traces in each other."""
    name = f"test_{secrets.token_hex(8)}"
    postgres_server.copy_database(template("chain"), name)
    # As a reader of changes sets one up by default: no command may depend on its absence.
    postgres_server.execute("CREATE PUBLICATION everything FOR ALL TABLES", database=name)
    settings = {
        "CHAINCTL_DATABASE": postgres_server.dsn(SUPERUSER, name),
        "CHAINCTL_GAP_DATABASE": postgres_server.dsn(GAP_READER, name),
        "CHAINCTL_KAFKA": kafka_server.bootstrap,
    }
    yield settings
    postgres_server.drop_database(name)


@pytest.fixture
def settings(module_settings: dict[str, str]) -> dict[str, str]:
    return module_settings


@pytest.fixture
def free_chain() -> int:
    """The id of a chain that no other test has: the broker is shared, and so are its topics."""
    return random.SystemRandom().randrange(1_000, 2**31)


@pytest.fixture
def chain(call: Call, module_settings: dict[str, str], free_chain: int) -> int:
    """A new chain with its topic."""
    done = call("chain", "create", free_chain, settings=module_settings)
    assert done.code == 0, done
    return free_chain


@pytest.fixture
def filled(module_settings: dict[str, str], chain: int, tmp_path: Path) -> int:
    """A chain of this test alone, with rows 1 to `FILLED_ROWS`."""
    fill_chain(module_settings, chain, tmp_path)
    return chain


@pytest.fixture(scope="module")
def filled_once(module_settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> int:
    """A chain with rows 1 to `FILLED_ROWS`, for tests that only read it."""
    chain_id = random.SystemRandom().randrange(1_000, 2**31)
    must("chain", "create", chain_id, settings=module_settings)
    fill_chain(module_settings, chain_id, tmp_path_factory.mktemp("filled"))
    return chain_id


def fill_chain(settings: Mapping[str, str], chain_id: int, folder: Path) -> None:
    """Put rows 1 to `FILLED_ROWS` into an empty chain."""
    path = order_file(folder / "o.csv", FILLED_ROWS)
    must("sequence", "--chain", chain_id, "--input", path, settings=settings)


@pytest.fixture
def head_moved(module_settings: dict[str, str], chain: int) -> Callable[[], None]:
    """Returns once the chain holds a row."""

    async def wait() -> None:
        async with connected(module_settings["CHAINCTL_DATABASE"]) as connection:
            query = "SELECT last_id FROM chain_head WHERE chain_id = $1"
            await until(lambda: connection.fetchval(query, chain))

    return lambda: asyncio.run(wait())


@pytest.fixture
def admin(kafka_server: KafkaServer) -> Admin:
    """Runs a coroutine with a client that may change the broker's topics."""

    async def run(act: Callable[[AIOKafkaAdminClient], Any]) -> Any:
        client = AIOKafkaAdminClient(bootstrap_servers=kafka_server.bootstrap)
        async with deadline():
            await client.start()
            try:
                return await act(client)
            finally:
                await client.close()

    return lambda act: asyncio.run(run(act))


@pytest.fixture
def make_topic(admin: Admin) -> Callable[..., None]:
    """Makes a topic as somebody else might have."""

    def make(name: str, partitions: int = 1, **settings: str) -> None:
        configs = {key.replace("_", "."): value for key, value in settings.items()}
        admin(lambda client: client.create_topics(
            [NewTopic(name, partitions, 1, topic_configs=configs)]
        ))  # fmt: skip

    return make


# ------------------------------------------------------------------------------ states of runbooks


@pytest.fixture
def suffix() -> str:
    """The end of names that outlive the test, such as topics."""
    return secrets.token_hex(4)


@pytest.fixture
def state_settings(
    postgres_server: PostgresServer, database_name: str, kafka_server: KafkaServer
) -> dict[str, str]:
    """The settings over a database of this test alone."""
    return settings_of(postgres_server, database_name, kafka_server)


@pytest.fixture
def world(call: Call, state_settings: dict[str, str], suffix: str, tmp_path: Path) -> World:
    """The chain 1 of this test, not yet created."""
    return World(call, state_settings, suffix, tmp_path)


@pytest.fixture
def page(call: Call, world: World) -> Callable[..., Runbook]:
    """Opens a runbook over the world of this test."""

    def open_page(name: str, more: Mapping[str, object] | None = None) -> Runbook:
        samples = {"orders": world.orders, ARCHIVE: world.folder / "archive", **(more or {})}
        return Runbook(name, call, world.settings, samples)

    return open_page
