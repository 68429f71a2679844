"""The receiver's shell over ports in memory, in virtual time."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import msgspec
import pytest

from chain_kernel.errors import (
    ConnectError,
    ForkFound,
    NotYetReadable,
    PrimaryBehind,
    RetryError,
    RowsMissing,
    SealMismatch,
    SettingError,
)
from chain_kernel.model import Run
from gapfill import PreferenceConfig, PreferredSources
from matcher_receiver import Receiver, State
from tests.builders.chains import Chain, ids_of, signed

from .memory import MemorySource
from .rig import Rig, take, virtual
from .virtual_time import virtual_clock

if TYPE_CHECKING:
    from chain_kernel.model import Mark
    from chain_kernel.seal import Batch


def lying_of_the_seal(chain: Chain, batch: Batch) -> bytes:
    """The frame of a batch, with true rows and a seal that no database has."""
    ((header, events),) = chain.headers(batch)
    return signed(msgspec.structs.replace(header, seal_after=b"\2" * 32), events)


def over(*servers: MemorySource, **settings: float) -> PreferredSources:
    return PreferredSources(servers, PreferenceConfig(**settings), random=Random(3))


# -- where it starts and ends ---------------------------------------------------------------------


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


@virtual
async def test_receiver_with_a_checkpoint_goes_on_behind_it() -> None:
    rig = Rig([4, 6])
    inside = rig.chain.batches[1].events[2].id
    rig.checkpoints.stored = rig.chain.mark(inside)
    async with rig.receiver() as receiver:
        runs = await take(receiver, rig.chain.mark().id)
    assert ids_of(runs) == [row_id for row_id in rig.chain.ids if row_id > inside]


@virtual
async def test_receiver_with_a_start_of_the_callers_begins_there() -> None:
    rig = Rig([4, 6])
    rig.has_checkpoints = False
    async with rig.receiver(start=rig.chain.mark(rig.chain.ids[3])) as receiver:
        runs = await take(receiver, rig.chain.mark().id)
        with pytest.raises(SettingError, match="checkpoints"):
            await receiver.checkpoint(runs[0])
    assert ids_of(runs) == rig.chain.ids[4:]


@virtual
async def test_receiver_to_head_at_start_ends_there_although_more_is_committed() -> None:
    rig = Rig([4, 6])
    ids = rig.chain.ids
    async with rig.receiver(until="head") as receiver:
        rig.commit_and_publish(5)
        assert ids_of([run async for run in receiver]) == ids


@pytest.mark.parametrize("is_live", [True, False], ids=["in a frame", "in a page"])
@pytest.mark.parametrize("rows", range(9))
def test_receiver_with_an_end_delivers_the_rows_up_to_it_wherever_it_cuts(
    rows: int, *, is_live: bool
) -> None:
    @virtual
    async def test() -> None:
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

    test()


@virtual
async def test_receiver_with_an_end_that_is_no_row_ends_before_it() -> None:
    rig = Rig([3])
    last_id = rig.chain.mark().id
    rig.chain.add(3, skip=100)
    async with rig.receiver(until=last_id + 50) as receiver:
        assert ids_of([run async for run in receiver]) == rig.chain.ids[:3]


@virtual
async def test_receiver_with_idle_seconds_ends_when_nothing_more_is_there() -> None:
    rig = Rig([4])
    async with rig.receiver(idle_seconds=5.0) as receiver:
        began = virtual_clock().time()
        runs = [run async for run in receiver]
        assert 5.0 <= virtual_clock().time() - began <= 6.5
    assert ids_of(runs) == rig.chain.ids


@virtual
async def test_receiver_with_idle_seconds_and_a_lost_tail_delivers_it_first() -> None:
    rig = Rig([4])
    async with rig.receiver(idle_seconds=5.0, poll_after_seconds=600.0) as receiver:
        await take(receiver, rig.chain.mark().id)
        lost = rig.chain.add(3)
        runs = [run async for run in receiver]
    assert ids_of(runs) == [event.id for event in lost.events]


@virtual
async def test_stop_while_waiting_ends_at_once() -> None:
    rig = Rig([4])
    async with rig.receiver(poll_after_seconds=600.0) as receiver:
        await take(receiver, rig.chain.mark().id)
        clock = virtual_clock()
        clock.call_later(1.0, receiver.stop)
        began = clock.time()
        assert [run async for run in receiver] == []
        assert clock.time() - began < 1.01


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


# -- live frames ----------------------------------------------------------------------------------


@virtual
async def test_live_frames_of_a_known_leader_cost_no_read() -> None:
    rig = Rig([4])
    async with rig.receiver() as receiver:
        await take(receiver, rig.chain.mark().id)
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
async def test_new_leader_costs_one_read_and_no_gap() -> None:
    rig = Rig([4])
    async with rig.receiver() as receiver:
        await take(receiver, rig.chain.mark().id)
        reads = rig.source.reads
        rig.chain.take_over()
        for _ in range(5):
            rig.commit_and_publish(5)
        await take(receiver, rig.chain.mark().id)
        assert rig.source.reads == reads + 1
        assert receiver.stats().gaps == 0


@virtual
async def test_gap_is_filled_and_the_frame_that_showed_it_delivered_behind_it() -> None:
    rig = Rig([4])
    async with rig.receiver() as receiver:
        await take(receiver, rig.chain.mark().id)
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
async def test_ledger_keeps_the_last_gaps_and_counts_all() -> None:
    rig = Rig([1])
    async with rig.receiver(gaps_kept=3) as receiver:
        await take(receiver, rig.chain.mark().id)
        for _ in range(5):
            rig.chain.add(2)
            rig.commit_and_publish(1)
            await take(receiver, rig.chain.mark().id)
        assert len(receiver.gaps) == 3
        assert receiver.stats().gaps == 5


@virtual
async def test_slow_caller_finds_its_frames_in_kafka_and_causes_no_reading() -> None:
    rig = Rig([4])
    async with rig.receiver(prove_seconds=3_600.0) as receiver:
        await take(receiver, rig.chain.mark().id)
        reads = rig.source.reads
        for _ in range(5):
            rig.commit_and_publish(3)
            await anext(receiver)
            rig.commit_and_publish(3)
            await asyncio.sleep(30.0)  # works on the run
            await anext(receiver)
        assert rig.source.reads == reads
        assert receiver.stats().rows_live == 30


# -- a database that is away, or behind -----------------------------------------------------------


@virtual
async def test_database_away_does_not_stop_live_frames() -> None:
    rig = Rig([4])

    def fail() -> None:
        raise RetryError("the database is down")

    async with rig.receiver() as receiver:
        await take(receiver, rig.chain.mark().id)
        rig.source.before_read = fail
        rig.commit_and_publish(3)
        (run,) = await asyncio.wait_for(take(receiver, rig.chain.mark().id), 1.0)
        assert len(run.events) == receiver.stats().rows_live == 3


@virtual
async def test_database_away_at_the_start_is_reported() -> None:
    rig = Rig([4])

    def fail() -> None:
        raise ConnectError("database", "db", "a server")

    rig.source.before_read = fail
    with pytest.raises(ConnectError):
        async with rig.receiver():
            pass
    assert rig.frames.is_closed


@virtual
async def test_standby_that_lags_is_waited_for_and_never_halts() -> None:
    rig = Rig([4, 4, 4])
    rig.source.is_primary = False
    rig.source.lag_batches = 1
    async with rig.receiver() as receiver:
        await take(receiver, rig.chain.batches[1].last_id)
        rig.commit_and_publish(2)
        virtual_clock().call_later(10.0, lambda: setattr(rig.source, "lag_batches", 0))
        await asyncio.wait_for(take(receiver, rig.chain.mark().id), 15.0)
        assert receiver.state is State.LIVE


@virtual
async def test_standby_that_never_gets_the_rows_ends_in_a_typed_error() -> None:
    rig = Rig([4])
    rig.source.is_primary = False
    async with rig.receiver(standby_wait_seconds=5.0) as receiver:
        await take(receiver, rig.chain.mark().id)
        rig.chain.add(6)
        lost = list(rig.chain.batches)
        await anext(receiver)

        def lag() -> None:
            rig.chain.batches[:] = lost[:1]
            raise NotYetReadable(rig.chain.ids[-1], lost[1].last_id)

        rig.source.before_read = lag
        with pytest.raises(NotYetReadable):
            await anext(receiver)


@virtual
async def test_rows_missing_in_the_database_are_reported_and_never_skipped() -> None:
    rig = Rig([4])
    async with rig.receiver() as receiver:
        await take(receiver, rig.chain.mark().id)
        rig.commit_and_publish(4)
        rig.chain.add(4)
        await take(receiver, rig.chain.batches[1].last_id)
        rig.chain.batches[2] = msgspec.structs.replace(rig.chain.batches[2], events=[])

        def missing() -> None:
            raise RowsMissing(rig.chain.chain_id, 1, 2)

        for _ in range(2):
            rig.source.before_read = missing
            with pytest.raises(RowsMissing):
                await anext(receiver)
        assert receiver.head_delivered == rig.chain.batches[1].last_id


# -- a gap, from the moment it is seen -------------------------------------------------------------


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
async def test_gap_that_shows_while_the_database_is_away_stays_in_the_ledger_at_a_stop() -> None:
    rig = Rig([4])
    async with rig.receiver() as receiver:
        gap = await stand_before_a_gap(rig, receiver, 60.0)
    (entry,) = receiver.gaps
    assert (entry.after_id, entry.until_id, entry.rows) == (*gap, 0)
    assert entry.outcome == "interrupted"
    assert entry.duration_ns >= 59_000_000_000


@virtual
async def test_fill_that_is_cut_by_a_stop_stays_in_the_ledger_with_what_was_read() -> None:
    rig = Rig([4])
    async with rig.receiver() as receiver:
        await take(receiver, rig.chain.mark().id)
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
async def test_catching_up_that_is_cut_is_no_gap() -> None:
    rig = Rig([20])
    async with rig.receiver() as receiver:
        await anext(receiver)
    assert list(receiver.gaps) == []


@virtual
async def test_gap_that_turns_out_to_be_none_leaves_no_trace() -> None:
    rig = Rig([4])
    async with rig.receiver() as receiver:
        await take(receiver, rig.chain.mark().id)
        phantoms = Chain(seed=3)
        phantoms.batches, phantoms.nonce = list(rig.chain.batches), rig.chain.nonce
        phantoms.add(5, skip=100)
        rig.frames.put(*phantoms.frames(phantoms.add(5)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(receiver), 0.5)
        stats = receiver.stats()
    assert rig.states[-2:] == [State.FILLING, State.LIVE]
    assert (stats.state, stats.open_gap, stats.lag_ids) == (State.LIVE, None, 0)
    assert stats.lag_seconds == 0.0
    assert stats.dropped == {"phantom": 1}
    assert list(receiver.gaps) == []


# -- proofs ---------------------------------------------------------------------------------------


@virtual
async def test_live_frames_alone_move_the_seal_of_the_checkpoint_by_a_reading_now_and_then() -> (
    None
):
    rig = Rig([4])
    async with rig.receiver(prove_seconds=10.0) as receiver:
        await take(receiver, rig.chain.mark().id)
        reads = rig.source.reads
        for _ in range(300):
            rig.commit_and_publish(5)
            await take(receiver, rig.chain.mark().id)
            await asyncio.sleep(0.1)
        rig.commit_and_publish(5)
        (run,) = await take(receiver, rig.chain.mark().id)
        assert 2 <= rig.source.reads - reads <= 3
        assert rig.chain.proves(run.end)
        assert run.end.batch_last_id >= rig.chain.batches[150].last_id
        assert receiver.stats().gaps == 0


@virtual
async def test_database_that_hangs_while_it_is_to_prove_does_not_hold_up_live_frames() -> None:
    rig = Rig([4])
    async with rig.receiver(prove_seconds=1.0) as receiver:
        await take(receiver, rig.chain.mark().id)
        rig.source.read_seconds = 600.0
        for _ in range(20):
            rig.commit_and_publish(5)
            await asyncio.wait_for(take(receiver, rig.chain.mark().id), 0.1)
            await asyncio.sleep(0.5)
        assert receiver.stats().rows_live == 100


@virtual
async def test_rows_that_the_database_denies_halt_although_frames_agree_among_themselves() -> None:
    rig = Rig([4])
    async with rig.receiver(prove_seconds=1.0) as receiver:
        await take(receiver, rig.chain.mark().id)
        mad = Chain(seed=9)
        mad.batches, mad.nonce = list(rig.chain.batches), rig.chain.nonce

        async def follow() -> None:
            for _ in range(20):
                rig.chain.add(3)
                rig.frames.put(*mad.frames(mad.add(3)))
                await anext(receiver)
                await asyncio.sleep(0.5)

        with pytest.raises((ForkFound, SealMismatch, PrimaryBehind)):
            await follow()
        assert receiver.state is State.HALTED


@virtual
async def test_database_that_denies_us_and_goes_away_is_asked_again_with_pauses() -> None:
    rig = Rig([4])
    async with rig.receiver(prove_seconds=1.0, retry_seconds_max=2.0) as receiver:
        await take(receiver, rig.chain.mark().id)
        await asyncio.sleep(1.5)
        rig.frames.put(lying_of_the_seal(rig.chain, rig.chain.add(3)))
        await take(receiver, rig.chain.mark().id)
        await asyncio.sleep(0.1)  # the proof: it is denied

        def away() -> None:
            raise RetryError("the database is away")

        rig.source.before_read = away
        reads = rig.source.reads
        waiting = asyncio.ensure_future(anext(receiver))
        await asyncio.sleep(20.0)
        assert 8 < rig.source.reads - reads < 40
        rig.source.before_read = lambda: None
        rig.commit_and_publish(3)
        assert ids_of([await waiting]) == rig.chain.ids[-3:]
        assert receiver.state is State.LIVE


# -- halting --------------------------------------------------------------------------------------


@virtual
async def test_fork_after_a_stale_standby_was_promoted_halts_at_the_new_leaders_frame() -> None:
    rig = Rig([4])
    async with rig.receiver() as receiver:
        await take(receiver, rig.chain.mark().id)
        rig.commit_and_publish(3)
        await take(receiver, rig.chain.mark().id)
        rig.chain.batches.pop()
        rig.chain.take_over()
        rig.commit_and_publish(3)
        rig.chain.add(2, skip=1_000)
        with pytest.raises((ForkFound, SealMismatch)):
            await anext(receiver)


@virtual
async def test_seal_of_a_frame_alone_wrong_is_read_again_and_does_not_halt() -> None:
    rig = Rig([4])
    async with rig.receiver() as receiver:
        await take(receiver, rig.chain.mark().id)
        rig.frames.put(lying_of_the_seal(rig.chain, rig.chain.add(3)))
        rig.commit_and_publish(3)
        await take(receiver, rig.chain.mark().id)
        assert receiver.stats().dropped == {"seal": 1}
        rig.commit_and_publish(3)
        runs = await take(receiver, rig.chain.mark().id)
        assert rig.chain.proves(runs[-1].end)


@virtual
async def test_wrong_seals_beside_a_standby_that_hangs_hold_up_nothing() -> None:
    """What only the primary can prove is asked of the primary, and at once."""
    rig = Rig([4])
    standby = MemorySource(rig.chain)
    standby.is_primary = False
    receiver = rig.receiver(source=over(standby, rig.source, standby_seconds=2.0))
    async with receiver:
        await take(receiver, rig.chain.mark().id)
        for lag in range(1, 21):
            standby.lag_batches = 2 * lag
            rig.frames.put(lying_of_the_seal(rig.chain, rig.chain.add(3)))
            rig.commit_and_publish(3)
        began = virtual_clock().time()
        assert ids_of(await take(receiver, rig.chain.mark().id)) == rig.chain.ids[4:]
        assert virtual_clock().time() - began < 5.0
        assert receiver.state is State.LIVE


@virtual
async def test_standby_of_another_history_halts_nobody_whose_seal_the_primary_denies() -> None:
    rig = Rig([4])
    standby = MemorySource(Chain())
    standby.is_primary = False
    standby.chain.batches = list(rig.chain.batches)
    receiver = rig.receiver(source=over(standby, rig.source))
    async with receiver:
        await take(receiver, rig.chain.mark().id)
        batch = rig.chain.add(3)
        rig.frames.put(lying_of_the_seal(rig.chain, batch))
        others = [msgspec.structs.replace(event, payload=b"stale") for event in batch.events]
        standby.chain.add_events(others)
        rig.commit_and_publish(3)
        await take(receiver, rig.chain.mark().id)
        assert receiver.state is State.LIVE


@virtual
async def test_rows_of_a_frame_that_were_never_committed_halt_when_the_seal_differs() -> None:
    """A leader that publishes other rows than it commits: the next batch's seal shows it."""
    rig = Rig([4])
    async with rig.receiver() as receiver:
        await take(receiver, rig.chain.mark().id)
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


# -- cancellation ---------------------------------------------------------------------------------


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

    async def slow_save(first_pid: int, end: Mark, connection: object | None = None) -> None:
        await asyncio.sleep(1.0)
        await save(first_pid, end, connection)

    async def handler(run: Run) -> None:
        handled.extend(event.id for event in run.events)

    async with rig.receiver(until="head") as receiver:
        rig.checkpoints.save = slow_save  # type: ignore[method-assign]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receiver.run(handler), 0.5)
        await receiver.run(handler)
    assert handled == rig.chain.ids
    assert rig.checkpoints.stored == rig.chain.mark()


# -- checkpoints ----------------------------------------------------------------------------------


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
async def test_checkpoint_before_the_run_was_handed_on_is_refused() -> None:
    rig = Rig([4])
    async with rig.receiver() as receiver:
        run = await anext(receiver)
        later = Run(
            chain_id=run.chain_id,
            events=run.events,
            end=msgspec.structs.replace(run.end, id=run.end.id + 1),
        )
        with pytest.raises(SettingError):
            await receiver.checkpoint(later)


@virtual
async def test_checkpoint_in_a_transaction_that_was_rolled_back_is_made_again() -> None:
    rig = Rig([20])
    async with rig.receiver() as receiver:
        run = await anext(receiver)
        before = rig.checkpoints.stored
        await receiver.checkpoint(run, connection=object())
        rig.checkpoints.stored = before  # the caller rolled back
        await receiver.checkpoint(run, connection=object())
        assert rig.checkpoints.stored == run.end
        after = await anext(receiver)
        await receiver.checkpoint(after, connection=object())
        assert rig.checkpoints.stored == after.end
