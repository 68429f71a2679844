"""Cancels a coroutine, or a task that is made meanwhile, at its n-th await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from types import CoroutineType
from typing import Any


class Counted:
    """Awaits a coroutine, and calls `reached` as it begins to wait for the n-th time."""

    def __init__(
        self, work: Coroutine[Any, Any, Any], at: int, reached: Callable[[], object]
    ) -> None:
        self._work = work
        self._at = at
        self._reached = reached
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        sent: Any = None
        failed: BaseException | None = None
        while True:
            try:
                awaited = self._work.send(sent) if failed is None else self._work.throw(failed)
            except StopIteration as ended:
                return ended.value
            self.waits += 1
            if self.waits == self._at:
                self._reached()
            sent = failed = None
            try:
                sent = yield awaited
            except BaseException as error:  # noqa: BLE001 - it is thrown in again
                failed = error


async def cut_at(at: int, work: Coroutine[Any, Any, Any]) -> bool:
    """Run `work`, cancelled at its await number `at`; False when it ended before that."""
    loop = asyncio.get_running_loop()
    counted = Counted(work, at, lambda: loop.call_soon(task.cancel))

    async def run() -> None:
        await counted

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return counted.waits >= at


@contextmanager
def cutting_tasks(qualified_name: str, at: int, then: Callable[[], object]) -> Iterator[list[int]]:
    """Cancel tasks of that coroutine function at their await number `at`, and call `then`.

    Yields a list that holds `at` once that has happened.
    """
    loop = asyncio.get_running_loop()
    reached: list[int] = []

    def factory(
        loop: asyncio.AbstractEventLoop, work: CoroutineType[Any, Any, Any], **named: Any
    ) -> asyncio.Task[Any]:
        if work.__qualname__ != qualified_name:
            return asyncio.Task(work, loop=loop, **named)

        def cut() -> None:
            task.cancel()
            then()

        def shown() -> None:
            reached.append(at)
            loop.call_soon(cut)

        async def run() -> Any:
            return await Counted(work, at, shown)

        task = asyncio.Task(run(), loop=loop, **named)
        return task

    before = loop.get_task_factory()
    loop.set_task_factory(factory)  # type: ignore[arg-type] # the protocol of typeshed is generic
    try:
        yield reached
    finally:
        loop.set_task_factory(before)
