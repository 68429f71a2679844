"""What is reported of a receiver: halts that outlive it, the gap ledger, the lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from chain_kernel.errors import (
    ForeignDatabase,
    HaltError,
    NotYetReadable,
    PrimaryBehind,
    RetryError,
    RowsArchived,
    RowsMissing,
    SealMismatch,
    StillHalted,
)
from matcher_receiver.reading import SIGHTS_MAX, Lag
from tests.builders.chains import NEXT_NONCE

from .memory import MemoryRecords
from .rig import Rig, take, virtual
from .virtual_time import virtual_clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID


def with_records(sizes: list[int]) -> tuple[Rig, MemoryRecords]:
    rig = Rig(sizes)
    rig.checkpoints = records = MemoryRecords(rig.chain.chain_id, rig.chain.database_id)
    return rig, records


# -- halts -----------------------------------------------------------------------------------------


@virtual
async def test_halt_is_stored_with_its_reason_and_keeps_the_next_one_from_starting() -> None:
    rig, records = with_records([4, 4])
    async with rig.receiver() as receiver:
        await take(receiver, rig.chain.mark().id)
        head = receiver.head_delivered
        rig.chain.batches.pop()
        with pytest.raises(PrimaryBehind):
            await anext(receiver)
        assert records.halts == [("PrimaryBehind", head)]
        with pytest.raises(PrimaryBehind):
            await anext(receiver)
    with pytest.raises(StillHalted, match="chainctl unhalt --chain 7 --name memory"):
        async with rig.receiver():
            pass
    assert len(records.halts) == 1


@virtual
async def test_receiver_whose_halt_was_lifted_halts_again_while_the_primary_contradicts() -> None:
    """Lifting a halt skips nothing: it only lets the receiver look again."""
    rig, records = with_records([4, 4])
    records.stored = msgspec.structs.replace(rig.chain.mark(), seal=b"\1" * 32)
    for _ in range(2):
        with pytest.raises(SealMismatch):
            async with rig.receiver():
                pass
        assert [name for name, _ in records.halts] == ["SealMismatch"]
        records.halts.clear()  # as `chainctl unhalt` does
    records.stored = rig.chain.mark(rig.chain.ids[2])
    async with rig.receiver() as receiver:
        assert (await anext(receiver)).first_pid == rig.chain.ids[2]


@virtual
async def test_halt_that_could_not_be_stored_says_so_and_is_stored_at_the_next_call() -> None:
    rig, records = with_records([4, 4])
    async with rig.receiver() as receiver:
        await take(receiver, rig.chain.mark().id)
        rig.chain.batches.pop()
        records.failures = [RetryError("away") for _ in range(3)]
        with pytest.raises(HaltError) as caught:
            await anext(receiver)
        assert any("could not be stored" in note for note in caught.value.__notes__)
        assert records.halts == []
        with pytest.raises(HaltError):
            await anext(receiver)
        assert len(records.halts) == 1


@virtual
async def test_place_of_another_database_halts_before_anything_is_handed_on() -> None:
    rig, records = with_records([4, 4])
    records.database_id = make_other_id(rig.chain.database_id)
    with pytest.raises(ForeignDatabase):
        async with rig.receiver():
            pass
    assert records.halts == [("ForeignDatabase", 0)]


def make_other_id(database_id: UUID) -> UUID:
    return type(database_id)(int=database_id.int ^ 1)


@virtual
async def test_standby_of_any_kind_never_halts() -> None:
    rig, records = with_records([4, 4])
    rig.source.is_primary = False
    async with rig.receiver() as receiver:
        await take(receiver, rig.chain.mark().id)
        rig.chain.batches.pop()
        rig.chain.take_over(NEXT_NONCE)
        rig.frames.put(rig.chain.heartbeat())
        clock = virtual_clock()
        clock.call_later(20.0, receiver.stop)
        assert [run async for run in receiver] == []
    assert records.halts == []


# -- the ledger ------------------------------------------------------------------------------------


@virtual
async def test_gap_is_recorded_once_it_is_filled() -> None:
    rig, records = with_records([4])
    async with rig.receiver() as receiver:
        await take(receiver, rig.chain.mark().id)
        rig.chain.add(12)
        rig.commit_and_publish(3)
        await take(receiver, rig.chain.mark().id)
        assert records.gaps == list(receiver.gaps)
    (gap,) = records.gaps
    assert (gap.rows, gap.cause, gap.source, gap.outcome) == (12, "frame", "primary", "filled")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RowsMissing(7, 5, 9), "missing"),
        (RowsArchived(7, 5, 9), "archived"),
        (NotYetReadable(5, 9), "not yet readable"),
    ],
)
def test_gap_that_could_not_be_filled_is_reported_by_its_kind_and_then_as_filled(
    error: Exception, outcome: str
) -> None:
    @virtual
    async def test() -> None:
        rig, records = with_records([4])
        async with rig.receiver(standby_wait_seconds=2.0) as receiver:
            await take(receiver, rig.chain.mark().id)
            place = receiver.head_delivered
            rig.chain.add(3)
            rig.commit_and_publish(1)
            failing = raising(error)
            rig.source.before_page = failing
            for _ in range(2):
                with pytest.raises(type(error)):
                    await anext(receiver)
            (gap,) = receiver.gaps  # asked twice, reported once
            end = rig.chain.batches[-2].last_id
            until_id = end if isinstance(error, NotYetReadable) else 9
            assert until_id <= end
            assert (gap.after_id, gap.until_id, gap.outcome, gap.rows) == (
                place, until_id, outcome, 0
            )  # fmt: skip
            assert receiver.stats().gaps == 0
            assert receiver.stats().open_gap == (place, end)
            rig.source.before_page = lambda: None
            await take(receiver, rig.chain.mark().id)
            assert [gap.outcome for gap in receiver.gaps] == ["filled"]
            assert receiver.stats().open_gap is None
        assert records.gaps[-1].outcome == "filled"

    test()


@virtual
async def test_place_behind_the_archives_boundary_is_reported_in_the_ledger_too() -> None:
    """At the start, and when the archive overtakes a receiver that is at work."""
    rig, records = with_records([4, 4])
    place = records.stored = rig.chain.mark(rig.chain.ids[1])
    boundary = rig.chain.batches[0].last_id

    def archived() -> None:
        raise RowsArchived(7, place.id, boundary)

    rig.source.before_read = archived
    with pytest.raises(RowsArchived):
        async with rig.receiver():
            pass
    rig.source.before_read = lambda: None
    async with rig.receiver(poll_after_seconds=0.1) as receiver:
        await take(receiver, rig.chain.mark().id)
        rig.source.before_read = archived
        for _ in range(2):
            with pytest.raises(RowsArchived):
                await anext(receiver)
        assert receiver.stats().gaps == 0
    shown = [(gap.after_id, gap.until_id, gap.cause, gap.outcome) for gap in records.gaps]
    end = rig.chain.mark().id
    assert shown[0] == (place.id, boundary, "start", "archived")
    assert set(shown[1:]) == {(end, boundary, "poll", "archived")}


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


# -- stats -----------------------------------------------------------------------------------------


@virtual
async def test_stats_report_the_lag_while_a_fill_is_under_way_and_where_rows_came_from() -> None:
    rig, _ = with_records([4])
    async with rig.receiver() as receiver:
        await take(receiver, rig.chain.mark().id)
        assert receiver.stats().source == "primary"
        rig.commit_and_publish(2)
        await anext(receiver)
        stats = receiver.stats()
        assert (stats.source, stats.lag_ids, stats.lag_seconds) == ("kafka", 0, 0.0)

        rig.source.read_seconds = 0.5
        rig.chain.add(10)
        rig.commit_and_publish(1)
        await anext(receiver)
        stats = receiver.stats()
        assert stats.lag_ids == rig.chain.ids[-1] - stats.head_delivered > 0
        assert stats.lag_seconds >= 0.5
        assert stats.open_gap == (stats.head_delivered, rig.chain.batches[-2].last_id)
        assert stats.fill_seconds >= 0.5
        await take(receiver, rig.chain.mark().id)
        stats = receiver.stats()
        assert (stats.lag_ids, stats.lag_seconds, stats.open_gap) == (0, 0.0, None)
        rows = stats.rows_filled + stats.rows_caught_up
        assert stats.fill_rows_per_second == pytest.approx(rows / stats.fill_seconds)


@virtual
async def test_lag_in_rows_is_counted_at_the_start_and_in_a_fill_that_lasts() -> None:
    """Ids skip, so the lag in ids is above that in rows."""
    rig, _ = with_records([4, 3, 5, 6])
    async with rig.receiver(poll_after_seconds=600.0) as receiver:
        while True:
            stats = receiver.stats()
            left = [row_id for row_id in rig.chain.ids if row_id > stats.head_delivered]
            assert stats.lag_rows == len(left)
            if not left:
                break
            await anext(receiver)
        rig.chain.add(5, skip=2**31)  # after a take-over; all but the last are lost on their way
        for _ in range(3):
            rig.chain.add(5)
        rig.commit_and_publish(1)
        run = await anext(receiver)
        stats = receiver.stats()
        assert stats.lag_rows == stats.lag_ids  # a gap that was seen and not counted
        end = rig.chain.mark().id
        reads = stats.reads
        while run.last_id < end:
            run = await anext(receiver)
            stats = receiver.stats()
            left = [row_id for row_id in rig.chain.ids if row_id > stats.head_delivered]
            assert stats.lag_rows == len(left)
        assert stats.reads <= reads + 2


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 0

    def monotonic_ns(self) -> int:
        return self.seconds * 1_000_000_000

    def wall_ns(self) -> int:
        return self.monotonic_ns()


def test_lag_is_the_age_of_the_first_row_that_is_known_and_not_delivered() -> None:
    clock = Clock()
    lag = Lag(clock, 10)
    for seconds, head_id in ((1, 20), (2, 30), (5, 40)):
        clock.seconds = seconds
        lag.see(head_id)
    clock.seconds = 6
    assert (lag.ids, lag.seconds) == (30, 5.0)
    lag.deliver(25)
    assert (lag.ids, lag.seconds) == (15, 4.0)
    lag.deliver(40)
    assert (lag.ids, lag.seconds) == (0, 0.0)
    lag.see(40)
    assert lag.seconds == 0.0


def test_lag_in_rows_is_what_was_counted_less_what_was_delivered_and_never_above_the_ids() -> None:
    lag = Lag(Clock(), 10)
    assert (lag.rows, lag.must_count) == (0, False)
    lag.see(2_000_000_000)  # ids jump at a take-over
    assert (lag.rows, lag.must_count) == (lag.ids, True)
    lag.count(7)
    assert (lag.rows, lag.must_count) == (7, False)
    lag.deliver(1_999_999_990, 3)
    assert lag.rows == 4
    lag.deliver(1_999_999_997, 3)
    assert lag.rows == 1
    lag.deliver(1_999_999_999, 1)  # there were more than were counted
    assert (lag.rows, lag.must_count) == (1, True)
    lag.deliver(2_000_000_000, 1)
    assert (lag.rows, lag.must_count) == (0, False)


def test_lag_with_many_sights_stays_bounded_and_never_understates() -> None:
    clock = Clock()
    lag = Lag(clock, 0)
    for seconds in range(1, 5 * SIGHTS_MAX):
        clock.seconds = seconds
        lag.see(seconds)
        assert len(lag._sights) <= SIGHTS_MAX
    for delivered_id in range(1, clock.seconds, 7):
        lag.deliver(delivered_id)
        assert lag.seconds >= clock.seconds - (delivered_id + 1)
