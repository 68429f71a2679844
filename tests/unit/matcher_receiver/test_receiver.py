"""The receiver's shell over ports in memory, in virtual time."""

import asyncio
from typing import Any

import msgspec
import pytest

from chain_kernel.errors import HaltError, RetryError, SealMismatch
from chain_kernel.model import Mark, Run
from chain_kernel.testing.virtual_loop import virtual_clock
from matcher_receiver import Receiver, State
from matcher_receiver.listening import UNKNOWN_MAX
from tests.builders.chains import ids_of, signed
from tests.virtual import virtual

from .memory import MemoryRecords
from .rig import Rig, take


@virtual
async def test_receiver_with_no_checkpoint_begins_at_the_beginning_and_stores_its_place() -> None:
    rig = Rig([4, 6])
    async with rig.receiver() as receiver:
        assert rig.checkpoints.stored == rig.chain.mark(0)
        assert receiver.head_at_start == rig.chain.mark().id
        states = [receiver.state]
        assert ids_of(await take(receiver, rig.chain.mark().id)) == rig.chain.ids
        states.append(receiver.state)
        assert receiver.live.is_set()
    assert rig.states == states == [State.CATCHING_UP, State.LIVE]
    assert rig.frames.is_closed
    assert rig.source.is_closed
    assert rig.checkpoints.is_closed


@pytest.mark.parametrize("is_live", [True, False], ids=["in a frame", "in a page"])
@pytest.mark.parametrize("rows", range(9))
@virtual
async def test_rows_up_to_an_end_are_delivered(rows: int, *, is_live: bool) -> None:
    rig = Rig([] if is_live else [3, 5])
    until = [0, *Rig([3, 5]).chain.ids][rows]  # the same ids, also before they are committed
    rig.source.page_rows = 4
    async with rig.receiver(until=until) as receiver:
        if is_live:
            rig.commit_and_publish(3)
            rig.commit_and_publish(5)
        runs = [run async for run in receiver]
    assert ids_of(runs) == rig.chain.ids[:rows]
    assert not runs or (runs[-1].last_id == until and rig.chain.proves(runs[-1].end))


@virtual
async def test_end_within_a_run_that_the_primary_has_lost_halts() -> None:
    rig = Rig([4])
    async with rig.receiver(until=Rig([4, 5]).chain.ids[6]) as receiver:
        await take(receiver, rig.chain.mark().id)
        rig.commit_and_publish(5)
        rig.chain.batches.pop()
        with pytest.raises(HaltError):
            await asyncio.wait_for(anext(receiver), 60)


@virtual
async def test_receiver_that_a_late_standby_answered_at_the_start_is_live_with_the_next_frame() -> (
    None
):
    rig = Rig([4, 6])
    rig.checkpoints.stored = rig.chain.mark()
    rig.source.is_primary, rig.source.lag_batches = False, 1
    async with rig.receiver() as receiver:
        rig.source.is_primary, rig.source.lag_batches = True, 0
        rig.commit_and_publish(2)
        await anext(receiver)
        assert receiver.state is State.LIVE
        assert receiver.why_not_ready() is None


@virtual
async def test_stop_while_the_database_hangs_ends_at_once() -> None:
    rig = Rig([40])
    async with rig.receiver() as receiver:
        rig.source.read_seconds = 600.0
        clock = virtual_clock()
        clock.call_later(1.0, receiver.stop)
        began = clock.time()
        assert [run async for run in receiver] == []
        assert clock.time() - began < 1.01


@virtual
async def test_chain_that_stands_still_after_an_outage_is_polled_at_the_usual_pace() -> None:
    rig = Rig([4])
    async with rig.live(poll_after_seconds=1.0, outage_poll_seconds=0.1) as receiver:
        rig.chain.add(2)  # its leader ended before it said so
        await take(receiver, rig.chain.mark().id)
        idle = asyncio.ensure_future(anext(receiver))
        reads = rig.source.reads
        await asyncio.sleep(3.0)
        assert rig.source.reads - reads > 20, "more may come the same way"
        await asyncio.sleep(3.0)
        reads = rig.source.reads
        await asyncio.sleep(10.0)
        assert rig.source.reads - reads <= 10
        receiver.stop()
        with pytest.raises(StopAsyncIteration):
            await idle


@virtual
async def test_live_frames_of_a_known_leader_cost_no_read() -> None:
    rig = Rig([4])
    async with rig.live() as receiver:
        reads = rig.source.reads
        for _ in range(20):
            rig.commit_and_publish(5, slice_rows=2)
        await take(receiver, rig.chain.mark().id)
        assert rig.source.reads == reads
        stats = receiver.stats()
    assert stats.rows_live == 100
    assert stats.frames_live == 60
    assert stats.gaps == 0


@virtual
async def test_gap_is_filled_and_the_frame_that_showed_it_delivered_behind_it() -> None:
    rig = Rig([4])
    async with rig.live() as receiver:
        after_id = receiver.head_delivered
        lost = rig.chain.add(12)
        rig.commit_and_publish(3)
        runs = await take(receiver, rig.chain.mark().id)
        assert ids_of(runs) == rig.chain.ids[4:]
        (gap,) = receiver.gaps
        assert (gap.after_id, gap.until_id, gap.cause, gap.source, gap.rows) == (
            after_id,
            lost.last_id,
            "frame",
            "primary",
            12,
        )
        assert receiver.stats().rows_live == 3
    assert rig.states[-2:] == [State.FILLING, State.LIVE]


@virtual
async def test_database_away_does_not_stop_live_frames() -> None:
    rig = Rig([4])

    def fail() -> None:
        raise RetryError("the database is down")

    async with rig.live() as receiver:
        rig.source.before_read = fail
        rig.commit_and_publish(3)
        (run,) = await asyncio.wait_for(take(receiver, rig.chain.mark().id), 1.0)
        assert len(run.events) == receiver.stats().rows_live == 3


def away() -> None:
    raise RetryError("the database is down")


async def stand_before_a_gap(rig: Rig, receiver: Receiver, seconds: float) -> tuple[int, int]:
    """A frame shows a gap while the database is away; return the gap."""
    await take(receiver, rig.chain.mark().id)
    after_id = receiver.head_delivered
    rig.source.before_read = away
    lost = rig.chain.add(12)
    rig.commit_and_publish(3)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(receiver), seconds)
    return after_id, lost.last_id


@virtual
async def test_gap_that_shows_while_the_database_is_away_is_reported_from_then_on() -> None:
    rig = Rig([4])
    async with rig.receiver() as receiver:
        gap = await stand_before_a_gap(rig, receiver, 120.0)
        stats = receiver.stats()
        assert stats.state is rig.states[-1] is State.FILLING
        assert stats.open_gap == gap
        assert stats.lag_ids == gap[1] - gap[0]
        assert stats.lag_seconds == pytest.approx(120.0, abs=0.5)
        rig.source.before_read = lambda: None
        await take(receiver, rig.chain.mark().id)
        (entry,) = receiver.gaps
        assert (entry.after_id, entry.until_id, entry.outcome) == (*gap, "filled")
        assert entry.duration_ns >= 119_000_000_000
        stats = receiver.stats()
        assert (stats.state, stats.open_gap, stats.lag_ids) == (State.LIVE, None, 0)
        assert stats.lag_seconds == 0.0


@virtual
async def test_fill_that_is_cut_by_a_stop_stays_in_the_ledger_with_what_was_read() -> None:
    rig = Rig([4])
    async with rig.live() as receiver:
        after_id = receiver.head_delivered
        lost = rig.chain.add(12)
        rig.commit_and_publish(3)
        run = await anext(receiver)
        (entry,) = receiver.gaps
        assert (entry.after_id, entry.until_id, entry.outcome) == (after_id, lost.last_id, "open")
    (entry,) = receiver.gaps
    assert (entry.after_id, entry.until_id) == (after_id, lost.last_id)
    assert (entry.rows, entry.outcome) == (len(run.events), "interrupted")


@virtual
async def test_database_that_hangs_while_it_is_to_prove_does_not_hold_up_live_frames() -> None:
    rig = Rig([4])
    async with rig.live(prove_seconds=1.0) as receiver:
        rig.source.read_seconds = 600.0
        for _ in range(20):
            rig.commit_and_publish(5)
            await asyncio.wait_for(take(receiver, rig.chain.mark().id), 0.1)
            await asyncio.sleep(0.5)
        assert receiver.stats().rows_live == 100


def unknown_leader(rig: Rig) -> bytes:
    """A frame of a term that the database does not have, with the next row."""
    header = rig.chain.heartbeat_header()
    stranger = msgspec.structs.replace(header, publisher_nonce=b"of another story")
    return signed(stranger, [])


@virtual
async def test_frames_of_unknown_leaders_hold_up_no_live_ones_while_the_database_is_silent() -> (
    None
):
    rig = Rig([4])
    async with rig.live() as receiver:
        rig.source.read_seconds = 600.0
        for _ in range(30):
            rig.frames.put(unknown_leader(rig))
            rig.commit_and_publish(5)
            await asyncio.wait_for(take(receiver, rig.chain.mark().id), 0.2)
            await asyncio.sleep(1.0)
        assert receiver.stats().rows_live == 150
        assert receiver.stats().dropped == {}, "they wait for the answer"
    assert rig.source.reads <= 3


@virtual
async def test_frames_of_unknown_leaders_are_held_in_a_bounded_number() -> None:
    rig = Rig([4])
    async with rig.live() as receiver:
        rig.source.read_seconds = 600.0
        for _ in range(UNKNOWN_MAX + 10):
            rig.frames.put(unknown_leader(rig))
        rig.commit_and_publish(5)
        await asyncio.wait_for(take(receiver, rig.chain.mark().id), 0.2)
        assert receiver.stats().dropped == {"nonce": 10}


@pytest.mark.parametrize("read_seconds", [0.002, 0.5])
@virtual
async def test_next_leader_is_followed_from_its_first_frame_when_the_answer_is_there(
    read_seconds: float,
) -> None:
    rig = Rig([4])
    async with rig.live() as receiver:
        rig.source.read_seconds = read_seconds
        rig.chain.take_over(b"the next leader!")
        rig.commit_and_publish(5)
        rig.commit_and_publish(3)
        await take(receiver, rig.chain.mark().id)
        assert receiver.stats().rows_live == 8, "no row was read from the database"
        assert receiver.stats().dropped == {}
        assert not receiver.gaps


@virtual
async def test_rows_of_a_frame_that_were_never_committed_halt_when_the_seal_differs() -> None:
    """A leader that publishes other rows than it commits: the next batch's seal shows it."""
    rig = Rig([4])
    async with rig.live() as receiver:
        header, events = rig.chain.headers(rig.chain.add(3))[0]
        other = msgspec.structs.replace(events[1], payload=b"nobody committed this")
        lying = msgspec.structs.replace(header, seal_after=b"\2" * 32)
        rig.frames.put(signed(lying, [events[0], other, events[2]]))
        await take(receiver, header.last_id)
        rig.commit_and_publish(3)
        for _ in range(2):
            with pytest.raises(SealMismatch):
                await anext(receiver)
        assert receiver.state is State.HALTED
        assert receiver.head_delivered == header.last_id


@virtual
async def test_reads_that_take_longer_than_the_caller_waits_are_finished_all_the_same() -> None:
    """`wait_for(anext(receiver), 0.1)` with pages of 0.2 s."""
    rig = Rig([60])
    ids: list[int] = []
    pages = 0

    def count() -> None:
        nonlocal pages
        pages += 1

    rig.source.read_seconds, rig.source.before_page = 0.2, count
    async with rig.receiver() as receiver:
        began = virtual_clock().time()
        while len(ids) < 60:
            assert virtual_clock().time() - began < 30.0
            try:
                run = await asyncio.wait_for(anext(receiver), 0.1)
            except TimeoutError:
                continue
            ids += [event.id for event in run.events]
    assert ids == rig.chain.ids
    assert pages == 12, "each page is read once"


@virtual
async def test_stop_after_a_wait_was_cancelled_ends_what_goes_on() -> None:
    rig = Rig([40])
    async with rig.receiver() as receiver:
        rig.source.read_seconds = 600.0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(receiver), 0.1)
        began = virtual_clock().time()
        receiver.stop()
        assert [run async for run in receiver] == []
        assert virtual_clock().time() - began < 0.01


@virtual
async def test_handler_is_not_called_again_when_only_its_checkpoint_was_cancelled() -> None:
    rig = Rig([10])
    handled: list[int] = []
    save = rig.checkpoints.save

    async def slow_save(first_pid: int, end: Mark, *more: Any) -> None:
        await asyncio.sleep(1.0)
        await save(first_pid, end, *more)

    async def handler(run: Run) -> None:
        handled.extend(event.id for event in run.events)

    async with rig.receiver(until="head") as receiver:
        rig.checkpoints.save = slow_save  # type: ignore[method-assign]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receiver.run(handler), 0.5)
        await receiver.run(handler)
    assert handled == rig.chain.ids
    assert rig.checkpoints.stored == rig.chain.mark()


@virtual
async def test_checkpoint_may_cover_several_runs() -> None:
    rig = Rig([20])
    async with rig.receiver() as receiver:
        runs = await take(receiver, rig.chain.mark().id)
        assert len(runs) == 4
        await receiver.checkpoint(runs[1])
        await receiver.checkpoint(runs[3])
        await receiver.checkpoint(runs[2])  # covered already
    assert rig.checkpoints.stored == rig.chain.mark()


@virtual
async def test_no_frame_is_judged_while_a_denied_place_cannot_be_compared() -> None:
    """The database denies the place, and is away when the rows are to be compared."""
    rig = Rig([4])

    def put_lie(seal_before: bytes | None = None) -> int:
        header, events = rig.chain.headers(rig.chain.add(3))[0]
        other = msgspec.structs.replace(events[1], payload=b"committed by no leader")
        lying = msgspec.structs.replace(
            header, seal_before=seal_before or header.seal_before, seal_after=b"\2" * 32
        )
        rig.frames.put(signed(lying, [events[0], other, events[2]]))
        return header.last_id

    async with rig.live(prove_seconds=1.0) as receiver:
        await take(receiver, put_lie())
        await asyncio.sleep(1.0)
        head = put_lie(b"\2" * 32)
        await take(receiver, head)
        await asyncio.sleep(0.1)
        pages: list[int] = []

        def away_once() -> None:
            pages.append(1)
            if len(pages) == 1:
                put_lie(b"\2" * 32)
                raise RetryError("the database is down")

        rig.source.before_page = away_once
        with pytest.raises(SealMismatch):
            await anext(receiver)
        assert receiver.head_delivered == head
        assert len(pages) > 1


@virtual
async def test_callback_that_fails_costs_no_run_and_no_halt() -> None:
    rig = Rig([4])
    rig.checkpoints = records = MemoryRecords(rig.chain.chain_id, rig.chain.database_id)

    def fail(state: State) -> None:
        raise KeyError(state)

    rig.on_state = fail
    async with rig.live() as receiver:
        assert receiver.head_delivered == rig.chain.mark().id
        waiting = asyncio.create_task(receiver.until_delivered(10**6))
        rig.chain.batches.pop()
        with pytest.raises(HaltError):
            await anext(receiver)
        assert len(records.halts) == 1
        with pytest.raises(HaltError):
            await waiting
