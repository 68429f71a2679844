"""What is reported of a receiver: halts that outlive it, the gap ledger, the lag."""

import asyncio
from collections.abc import Callable

import pytest

from chain_kernel.errors import (
    HaltError,
    NotYetReadable,
    OrderchainError,
    RetryError,
    RowsArchived,
    RowsMissing,
)
from matcher_receiver.reading import Lag
from tests.virtual import virtual

from .rig import take, with_records


@virtual
async def test_halt_that_could_not_be_stored_says_so_and_is_stored_at_the_next_call() -> None:
    rig, records = with_records([4, 4])
    async with rig.live() as receiver:
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
async def test_halt_whose_caller_left_while_it_was_being_stored_is_stored_at_the_end() -> None:
    rig, records = with_records([4, 4])
    began = asyncio.Event()
    record_halt = records.record_halt

    async def record_slowly(error: HaltError, at_id: int) -> None:
        if not began.is_set():
            began.set()
            await asyncio.sleep(600.0)
        await record_halt(error, at_id)

    records.record_halt = record_slowly  # type: ignore[method-assign]
    async with rig.live() as receiver:
        rig.chain.batches.pop()
        waits = asyncio.ensure_future(anext(receiver))
        await began.wait()
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert records.halts == []
    assert len(records.halts) == 1


@pytest.mark.parametrize("stops", [False, True])
@virtual
async def test_halt_found_while_no_caller_waited_is_raised_and_stored(*, stops: bool) -> None:
    rig, records = with_records([4, 4])
    async with rig.live() as receiver:
        rig.chain.batches.pop()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(receiver), 0.1)
        await asyncio.sleep(60.0)  # a look at the head finds that the last batch is gone
        if stops:
            receiver.stop()
            with pytest.raises(HaltError):
                await anext(receiver)
    assert len(records.halts) == 1


@virtual
async def test_halt_that_the_store_refuses_is_raised_all_the_same_and_everything_closed() -> None:
    rig, records = with_records([4, 4])

    async def refuse(error: HaltError, at_id: int) -> None:
        raise OrderchainError(f"a trigger refuses {error} at {at_id}")

    records.record_halt = refuse  # type: ignore[method-assign]
    async with rig.live() as receiver:
        rig.chain.batches.pop()
        with pytest.raises(HaltError) as caught:
            await anext(receiver)
        assert any("a trigger refuses" in note for note in caught.value.__notes__)
    assert records.is_closed
    assert rig.frames.is_closed
    assert rig.source.is_closed


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RowsMissing(7, 5, 9), "missing"),
        (RowsArchived(7, 5, 9), "archived"),
        (NotYetReadable(5, 9), "not yet readable"),
    ],
)
@virtual
async def test_gap_not_filled_is_reported_by_its_kind(error: Exception, outcome: str) -> None:
    rig, records = with_records([4])
    async with rig.live(standby_wait_seconds=2.0) as receiver:
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


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@virtual
async def test_stats_report_the_lag_while_a_fill_is_under_way_and_where_rows_came_from() -> None:
    rig, _ = with_records([4])
    async with rig.live() as receiver:
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
