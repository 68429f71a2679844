from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from chain_kernel.model import Event, Mark, Run
from chainctl.commands.chain.journal import Journal
from orderchain_demo.lossy_link import LinkFaults
from orderchain_demo.matching import Matching
from orderchain_demo.matching_service import MatchingService
from orderchain_demo.processes import FinishCommand, MatchingFinished, MatchingJob

if TYPE_CHECKING:
    from pathlib import Path

    from orderchain_demo.matching_service import StoredState

CHAIN_ID = 3

JOB = MatchingJob(
    database="", gap_database="", kafka="localhost:1", chain_id=CHAIN_ID, topic="t",
    receiver="r", journal="", last_key="k2", life=0, save_rows=1_000_000,
    faults=LinkFaults(loss=0, duplicate=0, reorder=0, delay=0, seed=1),
)  # fmt: skip


def run_of(row_id: int) -> Run:
    event = Event(row_id, row_id - 1, f"k{row_id}", 0, b"payload")
    end = Mark(id=row_id, batch_last_id=row_id, seal=bytes(32), epoch=1)
    return Run(chain_id=CHAIN_ID, events=[event], end=end)


class Receiver:
    """Hands on a first run at once, and a second one when it is released."""

    def __init__(self) -> None:
        self.head_delivered = 0
        self.live = asyncio.Event()
        self.gaps = ()
        self.second = asyncio.Event()
        self.handed_on = asyncio.Event()
        self._runs = [run_of(1), run_of(2)]

    async def __anext__(self) -> Run:
        run = self._runs.pop(0)
        if not self._runs:
            await self.second.wait()
        self.head_delivered = run.last_id
        if not self._runs:
            self.handed_on.set()
        return run

    def stats(self) -> SimpleNamespace:
        counted = (
            "frames_live", "duplicates_dropped", "rows_live", "rows_filled", "rows_caught_up",
            "gaps",
        )  # fmt: skip
        return SimpleNamespace(dropped={}, **dict.fromkeys(counted, 0))


class Pipe:
    def __init__(self) -> None:
        self.reports: list[Any] = []

    def report(self, message: object) -> None:
        self.reports.append(message)


class Store:
    """Stores slowly: the first save, begun since nothing came, lasts until the second run came."""

    def __init__(self, pipe: Pipe) -> None:
        self.heads: list[int] = []
        self.shown: list[int] = []
        self._pipe = pipe

    async def save(self, receiver: Receiver, run: Run, state: StoredState) -> None:
        self.shown.append(self._pipe.reports[-1].events)
        receiver.second.set()
        await receiver.handed_on.wait()
        assert run.last_id == state.head
        self.heads.append(state.head)


@pytest.mark.timeout(30)
async def test_run_handed_on_while_the_state_is_stored_is_worked_off_before_the_end(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.jsonl"
    job = msgspec.structs.replace(JOB, journal=str(path))
    receiver: Any = Receiver()
    pipe: Any = Pipe()
    store: Any = Store(pipe)
    shown: Any = asyncio.get_running_loop().create_future()
    shown.set_result(FinishCommand(2))
    with Journal(path, CHAIN_ID) as journal:
        journal.start()
        service = MatchingService(job, pipe, store, Matching(), journal)
        await service.work(receiver, shown)
    finished = pipe.reports[-1]
    assert isinstance(finished, MatchingFinished)
    assert finished.delivered.events == finished.delivered.head == 2
    assert finished.counters["events"] == 2
    assert store.heads == [1, 2]
    assert store.shown == [1, 2], "a killed service's last word is not behind what it has stored"
    assert len(path.read_text().splitlines()) == 2
