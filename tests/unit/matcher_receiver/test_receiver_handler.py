"""The callback form, and calls from where none may come."""

import asyncio
from typing import Any

import pytest

from chain_kernel.errors import RetryError
from chain_kernel.handlers import NotAsync
from chain_kernel.model import Run
from chain_kernel.tasks import SelfCancelled
from chain_kernel.testing.virtual_loop import virtual_clock
from tests.virtual import virtual

from .rig import with_records


@virtual
async def test_run_hands_each_run_to_the_handler_and_stores_the_place_behind_it() -> None:
    rig, records = with_records([4, 8])
    ids: list[int] = []

    async def handler(run: Run) -> None:
        assert records.stored is not None
        assert records.stored.id == run.first_pid
        ids.extend(event.id for event in run.events)

    async with rig.receiver(until="head") as receiver:
        await receiver.run(handler)
    assert ids == rig.chain.ids
    assert records.stored == rig.chain.mark()


@virtual
async def test_handler_that_cancels_itself_is_a_failure_and_its_run_comes_again() -> None:
    rig, records = with_records([4, 8])
    calls: list[Run] = []

    async def handler(run: Run) -> None:
        calls.append(run)
        if len(calls) == 1:
            raise asyncio.CancelledError

    async with rig.receiver(until="head") as receiver:
        with pytest.raises(SelfCancelled, match="the handler raised CancelledError, though"):
            await receiver.run(handler)
        assert records.stored is not None
        assert records.stored.id == 0
        await receiver.run(handler)
    assert calls[0] == calls[1]
    assert records.stored == rig.chain.mark()


@virtual
async def test_run_with_a_handler_that_is_no_async_function_says_so() -> None:
    rig, records = with_records([4])

    async def handler(run: Run) -> None:
        raise AssertionError

    called: Any = handler(None)  # type: ignore[arg-type]
    async with rig.receiver(until="head") as receiver:
        returns: Any = lambda run: 1  # noqa: E731
        for wrong, found in ((called, "a coroutine"), (returns, "one that returned int")):
            with pytest.raises(NotAsync, match=f"handler was '{found}', expected "):
                await receiver.run(wrong)
    assert records.stored is not None
    assert records.stored.id == 0


@virtual
async def test_run_with_a_handler_that_failed_begins_with_the_same_run_again() -> None:
    rig, records = with_records([12])
    ids: list[int] = []
    failures = [ValueError("no"), ValueError("still no")]

    async def handler(run: Run) -> None:
        if run.first_pid == rig.chain.ids[4] and failures:
            raise failures.pop()
        ids.extend(event.id for event in run.events)

    async with rig.receiver(until="head") as receiver:
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                await receiver.run(handler)
            assert records.stored is not None
            assert records.stored.id == rig.chain.ids[4]
        await receiver.run(handler)
    assert ids == rig.chain.ids


@virtual
async def test_run_with_the_checkpoints_database_away_waits_and_hands_nothing_over_twice() -> None:
    rig, records = with_records([12])
    ids: list[int] = []

    async def handler(run: Run) -> None:
        ids.extend(event.id for event in run.events)
        records.failures = [RetryError("away"), RetryError("away")]

    async with rig.receiver(until="head") as receiver:
        await receiver.run(handler)
    assert ids == rig.chain.ids
    assert records.stored == rig.chain.mark()


@virtual
async def test_stop_during_a_handler_lets_it_end_and_stores_the_place() -> None:
    rig, records = with_records([12])
    done: list[int] = []
    async with rig.receiver() as receiver:

        async def handler(run: Run) -> None:
            receiver.stop()
            await asyncio.sleep(5.0)
            done.append(run.last_id)

        began = virtual_clock().time()
        await receiver.run(handler)
        assert virtual_clock().time() - began == 5.0
    assert records.stored is not None
    assert [records.stored.id] == done


@virtual
async def test_cancellation_that_a_port_swallowed_still_ends_the_wait() -> None:
    rig, _ = with_records([4])

    async def swallow(timeout_seconds: float) -> list[bytes | None]:
        try:
            await asyncio.sleep(timeout_seconds)
        except asyncio.CancelledError:
            return []  # as asyncio.wait_for did when what it waited for was done just then
        return []

    async with rig.live(poll_after_seconds=600.0) as receiver:
        rig.frames.records = swallow  # type: ignore[method-assign]
        waiting = asyncio.ensure_future(anext(receiver))
        virtual_clock().call_later(1.0, waiting.cancel)
        await asyncio.wait([waiting])
        assert waiting.cancelled()
