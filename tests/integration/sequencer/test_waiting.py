"""Orders that may not wait, and orders that come as columns, over real servers."""

import asyncio
import gc
import sys
import time
from contextlib import suppress

import pytest

from chain_kernel.errors import Busy, KeyConflict, OrderError
from chain_kernel.limits import PAYLOAD_BYTES_MAX
from chain_kernel.model import is_linked
from sequencer import Order, Sequencer, open_sequencer
from tests.deadlines import deadline, until
from tests.lock_waits import WAITING

from .conftest import MakeChain


async def test_order_that_waits_too_long_is_refused_and_never_committed(
    make_chain: MakeChain,
) -> None:
    """One commit waits for a lock: later orders wait in the queue, each as long as it may."""
    chain = await make_chain(lease_seconds=60, commit_seconds=50, submit_within_seconds=0.05)
    async with deadline(), open_sequencer(chain.config) as sequencer:
        async with chain.admin.transaction():
            await chain.admin.execute("SELECT FROM chain_head FOR UPDATE")
            first = asyncio.create_task(sequencer.submit("first", b"x", within=60))
            await until(lambda: chain.admin.fetchval(WAITING))
            patient = asyncio.create_task(sequencer.submit("patient", b"x", within=60))
            with pytest.raises(Busy, match=r"within 0\.02 s"):
                await sequencer.submit("own bound", b"x", within=0.02)
            with pytest.raises(Busy, match=r"within 0\.05 s"):
                await sequencer.submit("default bound", b"x")
            with pytest.raises(Busy):
                await sequencer.submit_columns(["c1", "c2"], [b"", b""])
            with pytest.raises(Busy, match=r"within 0\.05 s"):
                await sequencer.submit_each([Order("each", b"x")])
            with pytest.raises(Busy, match=r"within 0\.02 s"):
                await sequencer.submit_each([Order("each", b"x")], within=0.02)
        acks = [await first, await patient]
        shown = {sample.name: sample.value for sample in sequencer.samples()}
        assert shown["orderchain_sequencer_busy_total"] == sequencer.stats().busy == 6
        assert (await sequencer.submit("own bound", b"x")).pid == acks[-1].id
        with pytest.raises(OrderError, match="within was 0, expected seconds above 0"):
            await sequencer.submit("no time", b"x", within=0)
    assert [row.key for row in await chain.rows()] == ["first", "patient", "own bound"]


@pytest.mark.parametrize("queued_bytes", [1, PAYLOAD_BYTES_MAX])
async def test_refused_orders_are_freed_without_a_pass_of_the_collector(
    make_chain: MakeChain, queued_bytes: int
) -> None:
    """Such passes are rare in a sequencer, and most is refused when it has the most to hold."""
    chain = await make_chain(lease_seconds=60, commit_seconds=50, queue_bytes_max=PAYLOAD_BYTES_MAX)
    gc.disable()
    try:
        async with deadline(), open_sequencer(chain.config) as sequencer:
            async with chain.admin.transaction():
                await chain.admin.execute("SELECT FROM chain_head FOR UPDATE")
                first = asyncio.create_task(sequencer.submit("first", b"x"))
                await until(lambda: chain.admin.fetchval(WAITING))
                queued = asyncio.create_task(sequencer.submit("queued", bytes(queued_bytes)))
                order = Order("refused", b"x")
                references = sys.getrefcount(order)
                with suppress(Busy):
                    await sequencer.submit_many([order], within=0.01)
                await asyncio.sleep(0)  # the loop holds what has woken this task
                assert sys.getrefcount(order) == references
            await asyncio.gather(first, queued)
    finally:
        gc.enable()


async def test_columns_become_rows_and_repeats_get_their_first_places(
    make_chain: MakeChain, implementation: str
) -> None:
    chain = await make_chain()
    keys = [f"client#{number}" for number in range(1, 1_500)] + ["free", "größer"]
    payloads = [key.encode() for key in keys]
    async with deadline(), open_sequencer(chain.config) as sequencer:
        acks = await sequencer.submit_columns(keys, payloads, range(len(keys)))
        assert await sequencer.submit_columns(keys[-3:], payloads[-3:]) == acks[-3:]
        with pytest.raises(KeyConflict):
            await sequencer.submit_columns(["new", "free"], [b"", b"other"])
        shown = {sample.name: sample.value for sample in sequencer.samples()}
        assert shown["orderchain_sequencer_native"] == (implementation == "native")
        assert sequencer.stats().implementation == implementation
        with pytest.raises(OrderError, match="keys was 0"):
            await sequencer.submit_columns([], [])
    rows = await chain.rows()
    assert [(row.key, row.payload, row.event_time_ns) for row in rows] == [
        (key, payload, at) for at, (key, payload) in enumerate(zip(keys, payloads, strict=True))
    ]
    assert is_linked(0, rows)
    assert [row.id for row in rows] == [ack.id for ack in acks]


def delay_of(sequencer: Sequencer) -> float:
    shown = {sample.name: sample.value for sample in sequencer.samples()}
    delay = shown["orderchain_sequencer_loop_delay_seconds"]
    assert isinstance(delay, float)
    return delay


@pytest.mark.merge
async def test_loop_that_is_late_is_shown_by_a_metric(make_chain: MakeChain) -> None:
    chain = await make_chain()
    async with deadline(), open_sequencer(chain.config) as sequencer:
        beat_seconds = sequencer._config.tuning.lease_seconds / 5
        time.sleep(beat_seconds * 1.5)  # noqa: ASYNC251 - for half of it a beat is due
        await until(lambda: delay_of(sequencer) >= beat_seconds * 0.5)
