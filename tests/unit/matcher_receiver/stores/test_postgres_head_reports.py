"""A receiver whose place is kept elsewhere reports its place to the chain's database."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.session import Session, SessionConfig
from chain_kernel.errors import ConnectError, PrimaryBehind, RetryError
from chain_kernel.model import Gap, Mark
from matcher_receiver import CheckpointConfig, PostgresHeadReports
from matcher_receiver.stores.postgres import GapRecorder
from tests.builders.chains import ids_of
from tests.unit.matcher_receiver.memory import MemoryRecords
from tests.unit.matcher_receiver.rig import Rig, take, virtual

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matcher_receiver import Receiver

CONFIG = CheckpointConfig(database="postgresql://nowhere/none", chain_id=7, name="r")


class MemoryReports(MemoryRecords):
    """A store that keeps no place, and what was reported to it."""

    keeps_place = False

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.chain.chain_id, rig.chain.database_id)
        self.shown: list[int] = []

    async def save(self, first_pid: int, end: Mark, connection: object | None = None) -> None:
        del first_pid
        assert connection is None
        self.shown.append(end.id)


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
async def test_receiver_does_not_begin_at_what_was_reported() -> None:
    rig = Rig([3, 3])
    reports = MemoryReports(rig)
    reports.stored = rig.chain.mark()
    async with reporting(reports, rig, until="head") as receiver:
        assert ids_of([run async for run in receiver]) == rig.chain.ids


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
async def test_callback_form_reports_what_the_handler_has_done() -> None:
    rig = Rig([3, 3])
    async with reporting(reports := MemoryReports(rig), rig, until="head") as receiver:

        async def handler(run: object) -> None:
            del run

        await receiver.run(handler)
    assert reports.shown[-1] == rig.chain.mark().id


@virtual
async def test_halt_and_gaps_of_a_receiver_that_reports_are_shown() -> None:
    rig = Rig([4, 4])
    async with reporting(reports := MemoryReports(rig), rig) as receiver:
        await take(receiver, rig.chain.mark().id)
        rig.frames.put(rig.chain.heartbeat())
        lost = rig.chain.add(4)
        rig.commit_and_publish(4)
        await take(receiver, rig.chain.mark().id)
        assert [(gap.after_id, gap.until_id) for gap in reports.gaps] == [(lost.pid, lost.last_id)]
        del rig.chain.batches[-1]
        with pytest.raises(PrimaryBehind):
            await anext(receiver)
    assert [name for name, _ in reports.halts] == ["PrimaryBehind"]


# -- behind the delivery ---------------------------------------------------------------------------


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
def test_report_with_the_database_away_is_made_again_and_reports_the_last_place(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    answers = Answers(monkeypatch, error, error)

    @virtual
    async def story() -> None:
        async with PostgresHeadReports(CONFIG) as reports:
            await reports.save(0, place(3))
            await asyncio.sleep(0.5)
            for row_id in range(4, 10):
                await reports.save(0, place(row_id))
            await asyncio.sleep(10)
            assert [asked[2] for asked in answers.asked] == [3, 9, 9]
            await reports.save(0, place(11))
        assert answers.asked[-1][2] == 11, "what waits at the end is written"

    story()


def test_reports_of_a_receiver_in_motion_are_one_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(monkeypatch)

    @virtual
    async def story() -> None:
        async with PostgresHeadReports(CONFIG) as reports:
            for row_id in range(1, 1_001):
                await reports.save(0, place(row_id))
                await asyncio.sleep(0.01)
        assert len(answers.asked) <= 12
        assert answers.asked[-1][2] == 1_000

    story()


def test_report_over_the_checkpoint_of_another_receiver_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = Answers(monkeypatch, [])

    @virtual
    async def story() -> None:
        async with PostgresHeadReports(CONFIG) as reports:
            for row_id in range(1, 4):
                await reports.save(0, place(row_id))
                await asyncio.sleep(5)

    story()
    assert len(answers.asked) == 1
    assert "no head report of chain 7: receiver's name was 'r'" in caplog.text


@pytest.mark.parametrize("error", AWAY, ids=["refused", "broken"])
def test_gap_ledger_with_the_database_away_is_written_once_it_is_back(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A server that restarts refuses connections: that ends no ledger."""
    answers = Answers(monkeypatch, error, error)

    @virtual
    async def story() -> None:
        session = Session(
            SessionConfig(database=DatabaseConfig(), application_name="ledger", role="none")
        )
        recorder = GapRecorder(CONFIG, session)
        recorder.record(
            Gap(chain_id=7, after_id=1, until_id=2, cause="frame", source="primary", rows=1,
                found_at_ns=1, duration_ns=1)
        )  # fmt: skip
        await asyncio.sleep(60)
        await recorder.close()

    story()
    assert len(answers.asked) == 4  # two that failed; the gap, and the trim behind it
