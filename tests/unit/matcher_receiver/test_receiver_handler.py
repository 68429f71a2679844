"""The callback form, and cancellation at every place where a receiver waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from chain_kernel.errors import CheckpointLost, RetryError
from chain_kernel.handlers import NotAsync

from .memory import MemoryRecords
from .rig import Rig, take, virtual
from .virtual_time import run_virtual, virtual_clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator

    from chain_kernel.model import Run


def with_records(sizes: list[int]) -> tuple[Rig, MemoryRecords]:
    rig = Rig(sizes)
    rig.checkpoints = records = MemoryRecords(rig.chain.chain_id, rig.chain.database_id)
    return rig, records


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
async def test_run_with_a_handler_that_stores_the_place_itself_leaves_it_alone() -> None:
    rig, records = with_records([12])
    saves: list[tuple[int, object | None]] = []
    save = records.save

    async def counted(first_pid: int, end: Any, connection: object | None = None) -> None:
        saves.append((end.id, connection))
        await save(first_pid, end, connection)

    records.save = counted  # type: ignore[method-assign]
    transaction = object()
    async with rig.receiver(until="head") as receiver:

        async def handler(run: Run) -> None:
            await receiver.checkpoint(run, connection=transaction)

        await receiver.run(handler)
    assert [connection for _, connection in saves[1:]] == [transaction] * 3
    assert len({end_id for end_id, _ in saves}) == len(saves)


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
async def test_run_with_another_receiver_of_the_name_at_work_stops() -> None:
    rig, records = with_records([12])

    async def handler(_: Run) -> None:
        records.stored = rig.chain.mark()

    async with rig.receiver() as receiver:
        with pytest.raises(CheckpointLost):
            await receiver.run(handler)


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


# -- cancellation ----------------------------------------------------------------------------------


class CancelAt:
    """Runs a coroutine, and cancels its task at the given suspension, counted from 0."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], at: int) -> None:
        self._coroutine = coroutine
        self._at = at

    def __await__(self) -> Generator[Any, Any, bool]:
        task = asyncio.current_task()
        assert task is not None
        suspensions = 0
        step: Callable[[Any], Any] = self._coroutine.send
        value: Any = None
        try:
            while True:
                waited = step(value)
                if suspensions == self._at:
                    task.cancel()
                suspensions += 1
                try:
                    step, value = self._coroutine.send, (yield waited)
                except BaseException as error:  # noqa: BLE001 - a task throws what its future raised
                    step, value = self._coroutine.throw, error
        except StopIteration:
            assert suspensions <= self._at, f"the cancellation at {self._at} was swallowed"
            return False
        except asyncio.CancelledError:
            task.uncancel()
            return True


def scene() -> tuple[Rig, Callable[[list[int]], Awaitable[None]], Callable[[], None]]:
    """Catch-up, live frames, a gap, an unknown leader, silence, broker away, a database away."""
    rig, _ = with_records([11])
    rig.source.read_seconds = 0.01
    failures = iter([None, None, None, RetryError("away"), None, None, RetryError("away")])

    def flicker() -> None:
        if (error := next(failures, None)) is not None:
            raise error

    async def play(ids: list[int]) -> None:
        async with rig.receiver(idle_seconds=4.0) as receiver:

            async def handler(run: Run) -> None:
                await asyncio.sleep(0.001)
                ids.extend(event.id for event in run.events)
                await receiver.checkpoint(run)

            await receiver.run(handler)

    def write() -> None:
        rig.source.before_read = flicker
        rig.commit_and_publish(3)
        rig.chain.add(7)
        rig.commit_and_publish(3)
        rig.chain.take_over()
        rig.commit_and_publish(4, slice_rows=2)
        rig.chain.add(2)

    return rig, play, write


async def play_with_a_cancellation(at: int) -> bool:
    """Play the scene, cancelled once at `at`, and to its end; say whether it was cancelled."""
    rig, play, write = scene()
    ids: list[int] = []
    virtual_clock().call_later(0.1, write)
    was_cancelled = await CancelAt(play(ids), at)  # type: ignore[arg-type]
    for _ in range(3):
        rig.frames.__init__()  # type: ignore[misc]
        try:
            await play(ids)
        except RetryError:
            continue
        break
    # A run whose checkpoint was not stored may come twice; nothing is left out or out of order.
    seen: list[int] = []
    for row_id in ids:
        if row_id in seen:
            assert seen.index(row_id) >= len(seen) - 5, "more than a page was repeated"
            seen = seen[: seen.index(row_id)]
        seen.append(row_id)
    assert seen == rig.chain.ids
    assert rig.frames.is_closed
    assert rig.source.is_closed
    return was_cancelled


def test_cancellation_at_each_suspension_of_a_whole_life_loses_nothing() -> None:
    at = 0
    while run_virtual(play_with_a_cancellation(at)):
        at += 1
    assert at > 50, f"only {at} places: the scene has become too short"


@virtual
async def test_cancellation_that_a_port_swallowed_still_ends_the_wait() -> None:
    rig, _ = with_records([4])

    async def swallow(timeout_seconds: float) -> list[bytes | None]:
        try:
            await asyncio.sleep(timeout_seconds)
        except asyncio.CancelledError:
            return []  # as asyncio.wait_for did when what it waited for was done just then
        return []

    async with rig.receiver(poll_after_seconds=600.0) as receiver:
        await take(receiver, rig.chain.mark().id)
        rig.frames.records = swallow  # type: ignore[method-assign]
        waiting = asyncio.ensure_future(anext(receiver))
        virtual_clock().call_later(1.0, waiting.cancel)
        await asyncio.wait([waiting])
        assert waiting.cancelled()
