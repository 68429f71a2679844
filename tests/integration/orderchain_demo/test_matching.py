import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from chain_kernel.errors import CheckpointLost
from chain_kernel.model import Event, Mark, Run
from chain_kernel.sql import GAP_READER, RECEIVER_WRITER
from chain_kernel.testing.memory_chain import LinkDial
from chainctl.commands.chain.journal import Journal
from orderchain_demo.book import Exchange
from orderchain_demo.matching import SQL, MatchingJob, MatchingService
from tests.opened import connected

CHAIN_ID = 5


def run_of(row_id: int) -> Run:
    event = Event(row_id, row_id - 1, f"k{row_id}", 0, b"payload")
    end = Mark(id=row_id, batch_last_id=row_id, seal=bytes(32), epoch=1)
    return Run(chain_id=CHAIN_ID, events=[event], end=end)


class Receiver:
    """Hands on two runs; the checkpoint of the second one is refused if `error` is given."""

    gaps = ()
    live = asyncio.Event()

    def __init__(self, error: Exception | None = None) -> None:
        self._runs = [run_of(1), run_of(2)]
        self._error = error
        self.stored: list[int] = []

    async def __anext__(self) -> Run:
        return self._runs.pop(0)

    async def checkpoint(
        self,
        run: Run,
        connection: asyncpg.Connection,
        *,
        states: Callable[[], Mapping[str, bytes]],
    ) -> None:
        assert connection.is_in_transaction()
        assert isinstance(states(), dict)
        self.stored.append(run.last_id)
        if run.last_id == 2 and self._error is not None:
            raise self._error

    def stats(self) -> SimpleNamespace:
        names = "frames_live", "duplicates_dropped", "rows_live", "rows_filled", "rows_caught_up"
        return SimpleNamespace(dropped={}, gaps=0, **dict.fromkeys(names, 0))


@pytest.fixture
async def writer(database: str, role_dsn: Callable[[str], str]) -> Any:
    """A connection of the service's role; the demo's table is made twice, as by two demos."""
    async with connected(database) as owner:
        await owner.execute(SQL["make_table"])
        await owner.execute(SQL["make_table"])
    async with connected(role_dsn(RECEIVER_WRITER)) as connection:
        yield connection


async def serve(connection: asyncpg.Connection, receiver: Any, path: Path) -> None:
    job = MatchingJob(
        database="", gap_database="", kafka="", topic="", chain_id=CHAIN_ID, receiver="r",
        rows=2, journal=str(path), save_rows=1, dial=LinkDial(), seed="", last_key="", http=None,
    )  # fmt: skip
    link: Any = SimpleNamespace(counters=dict)
    with Journal(path, CHAIN_ID) as journal:
        journal.start()
        service = MatchingService(job, connection, receiver, link, journal, Exchange(), 0)
        await service.run()


async def stored(connection: asyncpg.Connection) -> tuple[int, int, int] | None:
    """Head, length of the journal, and rows in the state, as stored."""
    row = await connection.fetchrow(SQL["load_state"], CHAIN_ID, "r")
    return None if row is None else (row[0], row[1], Exchange(row[2]).events)


async def test_state_is_stored_with_each_checkpoint_and_the_journal_that_belongs_to_it(
    writer: asyncpg.Connection, tmp_path: Path
) -> None:
    path, receiver = tmp_path / "journal.jsonl", Receiver()
    assert await stored(writer) is None
    await serve(writer, receiver, path)
    assert receiver.stored == [1, 2]
    assert await stored(writer) == (2, path.stat().st_size, 2)
    assert len(path.read_bytes().splitlines()) == 2


async def test_refused_checkpoint_takes_its_state_back(
    writer: asyncpg.Connection, tmp_path: Path
) -> None:
    path, receiver = tmp_path / "journal.jsonl", Receiver(CheckpointLost(CHAIN_ID, "r", 1, 2))
    with pytest.raises(CheckpointLost):
        await serve(writer, receiver, path)
    before = path.read_bytes().splitlines(keepends=True)[0]
    assert await stored(writer) == (1, len(before), 1)


@pytest.mark.usefixtures("writer")
async def test_table_is_closed_to_the_gap_reader(role_dsn: Callable[[str], str]) -> None:
    async with connected(role_dsn(GAP_READER)) as reader:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await stored(reader)
