"""Where a receiver begins, and that nothing is lost or repeated on the way to the live frames."""

import asyncio
from typing import Any

import msgspec
import pytest

from chain_kernel.clock import time_of
from chain_kernel.errors import SealMismatch, StoppedError
from chain_kernel.limits import ID_MAX
from chain_kernel.model import Run, Snapshot
from matcher_receiver import StartAt
from tests.builders.chains import CHAIN_ID, FIRST_COMMIT_US, ids_of, make_chain
from tests.virtual import virtual

from .rig import Rig, take

SIZES = [4, 6, 5]


class Snapshots:
    """A service's snapshots."""

    chain_id = CHAIN_ID

    def __init__(self, snapshot: Snapshot | None) -> None:
        self.snapshot = snapshot

    async def newest(self, until_id: int = ID_MAX) -> Snapshot | None:
        return self.snapshot


async def received(rig: Rig, **settings: Any) -> list[int]:
    async with rig.receiver(until="head", **settings) as receiver:
        return ids_of([run async for run in receiver])


@virtual
async def test_start_at_the_end_hands_on_what_comes_after_and_stores_the_place() -> None:
    rig = Rig(SIZES)
    end = rig.chain.mark()
    async with rig.receiver(start_at=StartAt("end")) as receiver:
        assert rig.checkpoints.stored == end
        rig.commit_and_publish(3)
        assert ids_of(await take(receiver, rig.chain.mark().id)) == rig.chain.ids[15:]
        assert receiver.stats().rows_caught_up == 0


@virtual
async def test_receiver_that_was_entered_before_is_refused_and_harms_nothing() -> None:
    rig = Rig(SIZES)
    async with rig.receiver() as receiver:
        with pytest.raises(StoppedError, match="entered before"):
            await receiver.__aenter__()
        assert ids_of(await take(receiver, rig.chain.mark().id)) == rig.chain.ids
    with pytest.raises(StoppedError, match="entered before"):
        await receiver.__aenter__()


@virtual
async def test_start_after_an_id_that_is_no_row_begins_behind_the_row_before_it() -> None:
    rig = Rig([5])
    last_id = rig.chain.mark().id
    rig.chain.add(4, skip=100)
    for after_id in (last_id, last_id + 50):
        rig.checkpoints.stored = None
        start_at = StartAt(after_id=after_id)
        assert await received(rig, start_at=start_at) == rig.chain.ids[5:]
    rig.checkpoints.stored = None
    assert await received(rig, start_at=StartAt(after_id=0)) == rig.chain.ids


@virtual
async def test_start_at_a_time_begins_at_the_first_batch_committed_then() -> None:
    rig = Rig(SIZES)
    for later_us, rows_before in ((-5, 0), (0, 0), (1, 4), (2, 10), (3, 15)):
        rig.checkpoints.stored = None
        start_at = StartAt(time=time_of((FIRST_COMMIT_US + later_us) * 1_000))
        assert await received(rig, start_at=start_at) == rig.chain.ids[rows_before:]


@pytest.mark.parametrize("start_at", [StartAt("beginning"), StartAt("end"), StartAt(after_id=7)])
@pytest.mark.parametrize("rounds", range(4))
@virtual
async def test_start_beside_a_writer_has_no_hole(start_at: StartAt, rounds: int) -> None:
    rig = Rig(SIZES)
    rig.source.read_seconds = 0.03

    async def write() -> None:
        for _ in range(40):
            rig.commit_and_publish(3, slice_rows=2)
            await asyncio.sleep(0.011 * (rounds + 1))

    writer = asyncio.ensure_future(write())
    await asyncio.sleep(0.02 * rounds)
    async with rig.receiver(start_at=start_at, poll_after_seconds=600.0) as receiver:
        first_pid = receiver.head_delivered
        await writer
        runs = await take(receiver, rig.chain.mark().id)
    assert ids_of(runs) == [row_id for row_id in rig.chain.ids if row_id > first_pid]
    assert receiver.stats().dropped == {}


async def tail(rig: Rig) -> tuple[Snapshot | None, list[Run]]:
    async with rig.receiver(until="head") as receiver:
        return receiver.snapshot, [run async for run in receiver]


@virtual
async def test_snapshot_and_the_tail_behind_it_come_in_one_call() -> None:
    rig = Rig(SIZES)
    taken = Snapshot(mark=rig.chain.mark(rig.chain.ids[6]), state=b"seven")
    rig.snapshots = Snapshots(taken)
    snapshot, runs = await tail(rig)
    assert snapshot is taken
    assert ids_of(runs) == rig.chain.ids[7:]


@virtual
async def test_checkpoint_ahead_of_the_snapshot_stays_until_the_tail_has_passed_it() -> None:
    rig = Rig([4, 4, 4, 4])
    rig.source.page_rows = 4
    rig.snapshots = Snapshots(Snapshot(mark=rig.chain.mark(rig.chain.ids[3]), state=b""))
    rig.checkpoints.stored = stored = rig.chain.mark(rig.chain.ids[11])
    async with rig.receiver() as receiver:
        runs = await take(receiver, rig.chain.mark().id)
        await receiver.checkpoint(runs[0])
        assert rig.checkpoints.stored == stored
        await receiver.checkpoint(runs[-1])
    assert rig.checkpoints.stored == rig.chain.mark()


@virtual
async def test_snapshot_of_another_chain_halts_before_anything_is_handed_on() -> None:
    rig = Rig(SIZES)
    mark = msgspec.structs.replace(rig.chain.mark(), seal=make_chain(SIZES, seed=5).mark().seal)
    rig.snapshots = Snapshots(Snapshot(mark=mark, state=b""))
    with pytest.raises(SealMismatch):
        await tail(rig)
