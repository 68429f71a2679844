"""A console in a process of its own, over a database with something in every part."""

import asyncio
import http.client
import json
import re
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

import outbox
from chain_kernel.errors import PrimaryBehind
from chain_kernel.model import Gap, Mark
from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER
from matcher_receiver import CheckpointConfig, PostgresCheckpointStore
from outbox import Destination, Message, draw_message_ids, save_destinations
from tests.builders.stored_chain import StoredChain
from tests.deadlines import LONG_SECONDS, Deadline
from tests.integration.chainctl.conftest import Start
from tests.opened import connected

CHAIN = 7
ROWS = 20


class Filled(NamedTuple):
    """A chain of two batches."""

    chain: int
    middle: int
    """The end of the first batch."""
    head: int


class Answer(NamedTuple):
    """What the console has answered."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RunningConsole:
    """A console that runs, as a browser sees it."""

    def __init__(self, process: subprocess.Popen[str], token: str | None) -> None:
        self.process = process
        self.address = self._said(r"the console is at http://((?:127\.0\.0\.1|0\.0\.0\.0):\d+)/")
        self.address = self.address.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        self.token = token or self._said(r"readers need this token: (\S+)")

    @property
    def url(self) -> str:
        return f"http://{self.address}/"

    def _said(self, pattern: str) -> str:
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.search(pattern, line)
        assert found, line + self.process.stderr.read()
        return found[1]

    @contextmanager
    def asked(self, path: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
        """Send one request; headers with `_` for `-`."""
        connection = http.client.HTTPConnection(self.address, timeout=LONG_SECONDS)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request("GET", path, headers=named)
            yield connection.getresponse()
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        with self.asked(path, **headers) as response:
            return _answer(response)

    def state(self) -> Any:
        answer = self.get("/api/state")
        assert answer.status == 200, answer
        return answer.json

    @contextmanager
    def events(self, **headers: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """The events of a viewer."""
        with self.asked("/events", **headers) as response:
            assert response.status == 200, response.read()
            yield _events(response)

    def end(self) -> str:
        """End it as a supervisor does; return what it has written."""
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate()
        assert self.process.returncode == 143, err
        return err


def _answer(response: http.client.HTTPResponse) -> Answer:
    return Answer(response.status, response.headers, response.read())


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    while kind := response.readline():
        data = response.readline()
        assert response.readline() == b"\n"
        yield (
            kind.decode().removeprefix("event: ").strip(),
            json.loads(data.decode().removeprefix("data: ")),
        )


def until(holds: Callable[[], Any]) -> Any:
    """Return what `holds` returns once it is true: nothing shows when another process did it."""
    bound = Deadline()
    while not (found := holds()):
        assert bound.left() > 0
        time.sleep(0.05)
    return found


@pytest.fixture
def parts() -> tuple[str, ...]:
    """The parts of the schema that the console's database has."""
    return ("chain", "outbox", "inbox")


@pytest.fixture
def database_name(database_with: Callable[..., str], parts: tuple[str, ...]) -> str:
    return database_with(*parts)


@pytest.fixture
def database(postgres_server: PostgresServer, database_name: str) -> str:
    return postgres_server.dsn(SUPERUSER, database_name)


@pytest.fixture
def settings(database: str) -> dict[str, str]:
    return {"CHAINCTL_DATABASE": database}


@pytest.fixture
def on_database(database: str) -> Callable[[Callable[[Any], Awaitable[Any]]], Any]:
    """Runs a coroutine with a superuser's connection to the console's database."""

    async def run(work: Callable[[Any], Awaitable[Any]]) -> Any:
        async with connected(database) as connection:
            return await work(connection)

    return lambda work: asyncio.run(run(work))


@pytest.fixture
def filled(database: str, on_database: Callable[[Callable[[Any], Awaitable[Any]]], Any]) -> Filled:
    """A chain whose leader is silent, with a receiver that has halted in a gap and one without a
    fault; three abnormal deliveries; a verified mark."""
    found: Filled = on_database(fill)
    asyncio.run(leave_receivers(database, found))
    return found


async def fill(admin: Any) -> Filled:
    chain = await StoredChain.create(admin, CHAIN)
    first, second = await chain.commit(ROWS), await chain.commit(ROWS)
    await admin.execute("UPDATE chain_head SET published_id = last_id")
    await admin.execute(
        "UPDATE chain_lease SET epoch = 1, released = false, lease_seconds = 5, "
        "beat_at = now() - interval '1 hour'"
    )
    await admin.execute(
        "INSERT INTO chain_verified (chain_id, after_id, until_id, seal, verified_by) "
        "SELECT chain_id, 0, last_id, seal, 'audit@test' FROM chain_batch "
        "WHERE prev_last_id > 0 AND chain_id = $1",
        CHAIN,
    )
    destination = Destination(name="clearing", topic="t", consumers=("books",), resend_filter=False)
    await save_destinations(admin, [destination])
    ids = draw_message_ids(5)
    async with admin.transaction():
        await outbox.add_many(admin, [Message(each, "clearing", b"x", "k", {}) for each in ids])
        await admin.execute(
            "UPDATE outbox_pending SET status = 3, send_count = 4, last_error = 'no account', "
            "next_send_at = 'infinity' WHERE message_id = ANY($1)",
            ids[:3],
        )
        await admin.execute(
            "UPDATE outbox_pending SET next_send_at = now() + interval '1 hour' WHERE status = 0"
        )
    return Filled(CHAIN, first.last_id, second.last_id)


LETTERS = {"0" * 8: "books", "1" * 8: "books", "2" * 8: "risk"}
"""The first digits of the dead letters, and their consumers; the oldest is the first."""


@pytest.fixture
def letters(on_database: Callable[[Callable[[Any], Awaitable[Any]]], Any]) -> list[str]:
    """Three dead letters of two consumers, and one that was abandoned."""
    found: list[str] = on_database(leave_letters)
    return found


async def leave_letters(admin: Any) -> list[str]:
    await admin.execute("INSERT INTO inbox_consumer (name) VALUES ('books'), ('risk')")
    ids = [f"{digits}-0000-7000-8000-000000000000" for digits in (*LETTERS, "3" * 8)]
    for age, (message_id, name) in enumerate(zip(ids, [*LETTERS.values(), "risk"], strict=True)):
        await admin.execute(
            "INSERT INTO inbox_dead (consumer_id, message_id, destination, topic, topic_partition, "
            "record_offset, received_at, key, headers, payload, failures, reason, last_error, "
            "dead_at) SELECT consumer_id, $1, 'clearing', 'trades', 0, 1, now(), 'acct-9', "
            "'\\x80', 'x', 4, 'tries used up', 'no such account', now() - $3 * interval '1 hour' "
            "FROM inbox_consumer WHERE name = $2",
            message_id, name, 9 - age,
        )  # fmt: skip
    await admin.execute("UPDATE inbox_dead SET abandoned_at = now() WHERE message_id = $1", ids[3])
    return ids[:3]


async def leave_receivers(database: str, filled: Filled) -> None:
    gap = Gap(
        chain_id=CHAIN, after_id=filled.middle, until_id=filled.head, cause="frame", rows=0,
        source="primary", found_at_ns=time.time_ns(), duration_ns=2_500_000, outcome="missing",
    )  # fmt: skip
    for name, last_id in (("matching", filled.middle), ("risk", filled.head)):
        config = CheckpointConfig(database=database, chain_id=CHAIN, name=name)
        async with PostgresCheckpointStore(config) as store:
            await store.save(0, await _mark(database, last_id))
            if name == "matching":
                await store.record_halt(PrimaryBehind(CHAIN, 40, 50), 50)
                store.record_gap(gap)


async def _mark(database: str, last_id: int) -> Mark:
    async with connected(database) as connection:
        query = "SELECT seal, epoch FROM chain_batch WHERE last_id = $1"
        seal, epoch = await connection.fetchrow(query, last_id)
    return Mark(id=last_id, batch_last_id=last_id, seal=seal, epoch=epoch)


@pytest.fixture
def run_console(start: Start, settings: dict[str, str]) -> Callable[..., RunningConsole]:
    """Starts a console on a free port, which looks five times per second."""

    def run(*arguments: object, token: str | None = None, **given: Any) -> RunningConsole:
        process = start(
            "console", "--port", 0, "--refresh", "200ms", *arguments,
            settings=given.pop("settings", settings), **given,
        )  # fmt: skip
        return RunningConsole(process, token)

    return run


@pytest.fixture
def console(run_console: Callable[..., RunningConsole], filled: Filled) -> RunningConsole:
    return run_console()
