"""A frame that is wrong about a seal halts no receiver: not now, and not the next start."""

import asyncpg
import msgspec
import pytest

from chain_kernel.errors import BatchDamaged, SealMismatch, StillHalted
from chain_kernel.seal import Batch
from matcher_receiver import Receiver
from tests.builders.chains import signed
from tests.builders.stored_chain import StoredChain
from tests.deadlines import deadline
from tests.stored_pages import LET_TAMPER

from .conftest import MakeReceiver, Publish

WRONG_SEAL = b"\2" * 32


async def work_off(receiver: Receiver, until_id: int) -> list[int]:
    """Hand on and store the checkpoint up to a row."""
    ids: list[int] = []
    async with deadline():
        while not ids or ids[-1] < until_id:
            run = await anext(receiver)
            ids += [event.id for event in run.events]
            await receiver.checkpoint(run)
    return ids


async def committed_with_a_wrong_seal(stored: StoredChain, rows: int) -> bytes:
    """Commit a batch; return its frame, whose rows are right."""
    ((header, events),) = stored.chain.headers(await stored.commit(rows))
    return signed(msgspec.structs.replace(header, seal_after=WRONG_SEAL), events)


async def test_receiver_restarted_after_a_wrong_seal_in_the_last_frame_goes_on(
    stored: StoredChain, make_receiver: MakeReceiver, publish: Publish
) -> None:
    async with make_receiver(poll_after_seconds=600.0) as receiver:
        await publish(stored.chain.frames(await stored.commit(5)))
        ids = await work_off(receiver, stored.chain.mark().id)
        await publish([await committed_with_a_wrong_seal(stored, 5)])
        ids += await work_off(receiver, stored.chain.mark().id)
        assert receiver.stats().rows_live == 10
    for _ in range(2):
        async with make_receiver(poll_after_seconds=600.0) as receiver:
            await publish(stored.chain.frames(await stored.commit(3)))
            ids += await work_off(receiver, stored.chain.mark().id)
            assert receiver.stats().dropped == {}
    assert ids == stored.chain.ids


async def test_receiver_whose_halt_was_lifted_goes_on_where_the_database_holds_what_is_proven(
    stored: StoredChain, make_receiver: MakeReceiver, publish: Publish, admin: asyncpg.Connection
) -> None:
    """Rows never committed halt it; the database is right, so that is where it leads out."""
    async with make_receiver(poll_after_seconds=600.0) as receiver:
        await publish(stored.chain.frames(await stored.commit(3)))
        await work_off(receiver, stored.chain.mark().id)
        ((header, events),) = stored.chain.headers(await stored.commit(3))
        other = msgspec.structs.replace(events[1], payload=b"nobody committed this")
        lying = msgspec.structs.replace(header, seal_after=WRONG_SEAL)
        await publish([signed(lying, [events[0], other, events[2]])])
        await work_off(receiver, stored.chain.mark().id)
        await publish(stored.chain.frames(await stored.commit(3)))
        async with deadline():
            with pytest.raises(SealMismatch):
                await anext(receiver)
    with pytest.raises(StillHalted):
        await make_receiver().__aenter__()
    await admin.execute("DELETE FROM receiver_halt")  # as `chainctl unhalt` does
    async with make_receiver(poll_after_seconds=600.0) as receiver:
        assert await work_off(receiver, stored.chain.mark().id) == [
            event.id for event in stored.chain.batches[2].events
        ]


async def test_history_that_was_rewritten_behind_the_proven_seal_halts_the_next_start(
    stored: StoredChain, make_receiver: MakeReceiver, admin: asyncpg.Connection
) -> None:
    """A halt that is expected: the row is there, the seal that was shown once is not."""
    await stored.commit(5)
    async with make_receiver(poll_after_seconds=600.0) as receiver:
        await work_off(receiver, stored.chain.mark().id)
    await admin.execute("UPDATE chain_batch SET seal = sha256('') WHERE first_id > 0")
    receiver = make_receiver()
    with pytest.raises(SealMismatch):
        await receiver.__aenter__()


@pytest.mark.parametrize("is_gap", [False, True], ids=["at the start", "in a gap"])
async def test_receiver_halts_before_a_batch_whose_rows_were_changed(
    stored: StoredChain,
    make_receiver: MakeReceiver,
    publish: Publish,
    admin: asyncpg.Connection,
    *,
    is_gap: bool,
) -> None:
    """Their links are whole; only the seal differs."""

    async def commit_and_change() -> Batch:
        batch = await stored.commit(5)
        await admin.execute(LET_TAMPER)
        await admin.execute(
            "UPDATE chain_event SET payload = 'other' WHERE id = $1", batch.events[2].id
        )
        return batch

    whole = await stored.commit(5)
    batch = None if is_gap else await commit_and_change()
    async with make_receiver(poll_after_seconds=600.0) as receiver:
        assert (await anext(receiver)).events == whole.events
        if batch is None:
            batch = await commit_and_change()
            await publish([stored.chain.heartbeat()])
        with pytest.raises(BatchDamaged) as caught:
            await anext(receiver)
    assert (caught.value.first_id, caught.value.last_id) == (batch.first_id, batch.last_id)
    with pytest.raises(StillHalted, match=f"batch of ids {batch.first_id} to {batch.last_id}"):
        await make_receiver().__aenter__()
