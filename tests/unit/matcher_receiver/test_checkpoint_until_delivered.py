"""Waiting until a receiver's caller has worked an order off: a service reads its own writes."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from chain_kernel.errors import HaltError
from chain_kernel.model import Run
from matcher_receiver.checkpoint import WorkedOff
from tests.builders.chains import make_chain
from tests.virtual import virtual

from .rig import Rig, take


def begun(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.ensure_future(work)


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def rig_with_pages() -> Rig:
    """Two batches, each handed on as a run of its own."""
    rig = Rig([4, 4])
    rig.source.page_rows = 4
    return rig


@virtual
async def test_without_a_store_a_run_is_worked_off_when_the_next_one_is_asked_for() -> None:
    rig = rig_with_pages()
    rig.has_checkpoints = False
    async with rig.receiver() as receiver:
        first = await anext(receiver)
        waiting = begun(receiver.until_delivered(first.last_id))
        await settle()
        assert not waiting.done()  # it was handed over, and is being worked on
        second = await anext(receiver)
        await waiting
        later = begun(receiver.until_delivered(second.events[0].id))
        await settle()
        assert not later.done()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await anext(receiver)
        await later


@virtual
async def test_with_a_store_a_run_is_worked_off_when_its_checkpoint_is_stored() -> None:
    rig = rig_with_pages()
    async with rig.receiver() as receiver:
        first, second = await anext(receiver), await anext(receiver)  # collected: one checkpoint
        waiting = begun(receiver.until_delivered(first.last_id))
        await settle()
        assert not waiting.done()
        await receiver.checkpoint(second)
        await waiting
        await receiver.until_delivered(second.last_id)


@virtual
async def test_handler_that_returned_has_worked_its_run_off() -> None:
    for has_store in (False, True):
        rig = rig_with_pages()
        rig.has_checkpoints = has_store
        done: list[int] = []

        async def handler(run: Run, done: list[int] = done) -> None:
            await asyncio.sleep(1)
            done.append(run.last_id)

        async with rig.receiver() as receiver:
            working = begun(receiver.run(handler))
            await receiver.until_delivered(rig.chain.ids[-1])
            assert done == [batch.last_id for batch in rig.chain.batches]
            receiver.stop()
            await working


@virtual
async def test_wait_ends_with_the_error_that_halts_the_receiver() -> None:
    rig = Rig([4, 4])
    async with rig.receiver() as receiver:
        await take(receiver, rig.chain.ids[-1])
        waiting = begun(receiver.until_delivered(rig.chain.ids[-1] + 1_000))
        rig.source.chain = make_chain([2])  # the primary has lost rows
        with pytest.raises(HaltError) as halted:
            await anext(receiver)
        with pytest.raises(HaltError) as caught:
            await waiting
        assert caught.value is halted.value
        with pytest.raises(HaltError):
            await receiver.until_delivered(rig.chain.ids[-1] + 1)


@virtual
async def test_wait_that_is_cancelled_leaves_nothing_behind() -> None:
    worked_off = WorkedOff(5)
    waits = [begun(worked_off.until(row_id)) for row_id in (9, 7, 8, 7)]
    await settle()
    waits[0].cancel()
    waits[1].cancel()
    await settle()
    assert len(worked_off._waiting) == 2
    worked_off.rise(7)
    await waits[3]
    assert not waits[2].done()
    worked_off.rise(6)  # it never falls
    assert worked_off.id == 7
    worked_off.rise(100)
    await waits[2]
    assert not worked_off._waiting
