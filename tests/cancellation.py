"""Cancels a coroutine at its n-th wait: for tests that leave no place out.

`CancelledAt` and `cut_at` count the waits of one coroutine; `CancelAt` those of every task
that works for a call; `cutting_tasks` those of tasks that are made meanwhile.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from types import CoroutineType
from typing import Any, TypeVar


class CancelledAt:
    """Runs a coroutine as a task, and cancels that when it waits for the `place`-th time (from 1).

    As a caller does whose patience ends just then: the wait has begun, and what is waited for may
    come in the same turn of the loop. `was_reached` says whether it waited so often.
    """

    def __init__(self, place: int, work: Coroutine[Any, Any, Any]) -> None:
        self._place = place
        self._waits = 0
        self._loop = asyncio.get_running_loop()
        self.task: asyncio.Task[Any] = asyncio.Task(Counted(work, self._note_wait))

    @property
    def was_reached(self) -> bool:
        return self._waits >= self._place

    async def outcome(self) -> Any:
        """Return what came of it: its result or its error, CancelledError among them."""
        outcomes = await asyncio.gather(self.task, return_exceptions=True)
        return outcomes[0]

    def _note_wait(self) -> None:
        self._waits += 1
        if self._waits == self._place:
            self._loop.call_soon(self.task.cancel)


async def cut_at(at: int, work: Coroutine[Any, Any, Any]) -> bool:
    """Run `work`, cancelled at its await number `at`; False when it ended before that."""
    cut = CancelledAt(at, work)
    if not isinstance(await cut.outcome(), asyncio.CancelledError):
        cut.task.result()
    return cut.was_reached


@contextmanager
def cutting_tasks(qualified_name: str, at: int, then: Callable[[], object]) -> Iterator[list[int]]:
    """Cancel tasks of that coroutine function at their await number `at`, and call `then`.

    Yields a list that holds `at` once that has happened.
    """
    loop = asyncio.get_running_loop()
    reached: list[int] = []

    def factory(
        loop: asyncio.AbstractEventLoop, work: "CoroutineType[Any, Any, Any]", **named: Any
    ) -> asyncio.Task[Any]:
        if work.__qualname__ != qualified_name:
            return asyncio.Task(work, loop=loop, **named)
        waits = 0

        def cut() -> None:
            task.cancel()
            then()

        def note() -> None:
            nonlocal waits
            waits += 1
            if waits == at:
                reached.append(at)
                loop.call_soon(cut)

        task = asyncio.Task(Counted(work, note), loop=loop, **named)
        return task

    before = loop.get_task_factory()
    loop.set_task_factory(factory)  # type: ignore[arg-type] # the protocol of typeshed is generic
    try:
        yield reached
    finally:
        loop.set_task_factory(before)


_T = TypeVar("_T")


class Cancelled(Exception):
    """The call was cancelled, as it was meant to be."""


class CancelAt:
    """Counts each suspension of each task that is made from now on; at the `at`-th of them the call
    that is under way is cancelled. From 1 on, until a whole story is over before that (`is_over`).
    """

    def __init__(self, at: int) -> None:
        self._at = at
        self._count = 0
        self._call: asyncio.Task[Any] | None = None
        self._loop = asyncio.get_running_loop()
        self.was_in = ""
        """The call that was cancelled."""

    @property
    def is_over(self) -> bool:
        """Whether the story had fewer awaits than `at`."""
        return self._count < self._at

    async def call(self, name: str, call: Coroutine[Any, Any, _T]) -> _T:
        """Await `call` in a task of its own. Raises Cancelled where it was cancelled."""
        before = self._loop.get_task_factory()
        self._loop.set_task_factory(self._make_task)
        try:
            self._call = task = self._loop.create_task(call, name=name)
            await asyncio.wait([task])
        finally:
            self._call = None
            self._loop.set_task_factory(before)
        if task.cancelled():
            raise Cancelled
        return task.result()

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **settings: Any
    ) -> asyncio.Task[Any]:
        return asyncio.Task(Counted(coroutine, self._note_await), loop=loop, **settings)

    def _note_await(self) -> None:
        self._count += 1
        if self._count == self._at and self._call is not None:
            self.was_in = self._call.get_name()
            self._loop.call_soon(self._call.cancel)


class Counted(Coroutine[Any, Any, Any]):
    """A coroutine that reports each of its suspensions."""

    def __init__(self, inner: Coroutine[Any, Any, Any], note: Callable[[], None]) -> None:
        self._inner = inner
        self._note = note

    def send(self, value: Any) -> Any:
        waits_for = self._inner.send(value)
        self._note()
        return waits_for

    def throw(self, *error: Any) -> Any:
        waits_for = self._inner.throw(*error)
        self._note()
        return waits_for

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()
