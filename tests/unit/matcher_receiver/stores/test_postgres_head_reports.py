"""A receiver whose place is kept elsewhere reports its place to the chain's database."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from chain_kernel.clients.session import Session
from chain_kernel.errors import ConnectError, RetryError
from chain_kernel.model import Mark
from chain_kernel.ports import NO_STATES
from matcher_receiver import CheckpointConfig, PostgresHeadReports, Receiver
from tests.unit.matcher_receiver.memory import MemoryRecords
from tests.unit.matcher_receiver.rig import Rig, take
from tests.virtual import virtual

CONFIG = CheckpointConfig(database="postgresql://nowhere/none", chain_id=7, name="r")


class MemoryReports(MemoryRecords):
    """A store that keeps no place, and what was reported to it."""

    keeps_place = False

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.chain.chain_id, rig.chain.database_id)
        self.shown: list[int] = []
        self.states: dict[tuple[int, str], bytes] = {}

    async def save(
        self,
        first_pid: int,
        end: Mark,
        connection: object | None = None,
        states: Mapping[str, bytes] = NO_STATES,
    ) -> None:
        del first_pid
        assert connection is None
        self.shown.append(end.id)
        self.states |= {(end.id, group): digest for group, digest in states.items()}


def reporting(reports: MemoryReports, rig: Rig, **settings: Any) -> Receiver:
    rig.checkpoints = reports
    return rig.receiver(**settings)


@virtual
async def test_receiver_reports_its_start_and_what_was_worked_off() -> None:
    rig = Rig([3, 3, 3])
    start = rig.chain.mark(rig.chain.batches[0].last_id)
    async with reporting(reports := MemoryReports(rig), rig, start=start) as receiver:
        assert reports.shown == [start.id]
        (run,) = await take(receiver, start.id + 1)
        assert reports.shown == [start.id]  # handed on, but not worked off
        await receiver.checkpoint(run)
        assert reports.shown == [start.id, run.last_id]
        await receiver.checkpoint(run)
    assert reports.shown == [start.id, run.last_id]
    assert reports.is_closed


@virtual
async def test_report_of_a_place_in_the_callers_transaction_waits_for_the_next_one() -> None:
    rig = Rig([3, 3, 3])
    rig.source.page_rows = 3
    async with reporting(reports := MemoryReports(rig), rig) as receiver:
        one, two = await take(receiver, rig.chain.batches[1].last_id)
        transaction = object()
        await receiver.checkpoint(one, connection=transaction)
        await receiver.checkpoint(one, connection=transaction)  # it was rolled back
        assert one.last_id not in reports.shown, "it is not known whether that was committed"
        await receiver.checkpoint(two)
    assert reports.shown[-1] == two.last_id
    assert one.last_id not in reports.shown


@virtual
async def test_states_in_the_callers_transaction_wait_for_the_next_call_too() -> None:
    rig = Rig([3, 3, 3])
    rig.source.page_rows = 3
    async with reporting(reports := MemoryReports(rig), rig) as receiver:
        one, two, three = await take(receiver, rig.chain.batches[2].last_id)
        transaction = object()
        for digest in (b"rolled back", b"one"):
            await receiver.checkpoint(
                one, connection=transaction, states=lambda found=digest: {"A": found}
            )
        await receiver.checkpoint(two, connection=transaction, states=lambda: {"A": b"two"})
        assert reports.states == {(one.last_id, "A"): b"one"}
        await receiver.checkpoint(three, states=lambda: {"B": b"three"})
    assert reports.states == {
        (one.last_id, "A"): b"one",
        (two.last_id, "A"): b"two",
        (three.last_id, "B"): b"three",
    }


class Answers:
    """Stands in for the statements of a connection: answers, or errors, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: object) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.left = deque(answers)
        answer = self

        async def fetch(self: Session, statement: str, *values: object) -> Sequence[Any]:
            del self, statement
            answer.asked.append(values)
            await asyncio.sleep(0.01)
            found = answer.left.popleft() if answer.left else [1]
            if isinstance(found, Exception):
                raise found
            return found  # type: ignore[return-value]

        monkeypatch.setattr(Session, "fetch", fetch)


def place(row_id: int) -> Mark:
    return Mark(id=row_id, batch_last_id=row_id, seal=b"\1" * 32, epoch=1)


AWAY = (ConnectError("database", "nowhere", "a server that listens"), RetryError("cut off"))


@pytest.mark.parametrize("error", AWAY, ids=["refused", "broken"])
@virtual
async def test_report_is_made_again(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    answers = Answers(monkeypatch, error, error)
    async with PostgresHeadReports(CONFIG) as reports:
        await reports.save(0, place(3))
        await asyncio.sleep(0.5)
        for row_id in range(4, 10):
            await reports.save(0, place(row_id))
        await asyncio.sleep(10)
        assert [asked[2] for asked in answers.asked] == [3, 9, 9]
        await reports.save(0, place(11))
    assert answers.asked[-1][2] == 11, "what waits at the end is written"
