"""Cancels a coroutine at its n-th wait: for tests that leave no place out."""

from __future__ import annotations

import asyncio
from types import coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

_Result = TypeVar("_Result")


class CancelledAt:
    """Runs a coroutine as a task, and cancels that when it waits for the `place`-th time (from 1).

    As a caller does whose patience ends just then: the wait has begun, and what is waited for may
    come in the same turn of the loop. `was_reached` says whether it waited so often.
    """

    def __init__(self, place: int, work: Coroutine[Any, Any, _Result]) -> None:
        self._place = place
        self.waits = 0
        self.task: asyncio.Task[_Result] = asyncio.create_task(self._run(work))

    @property
    def was_reached(self) -> bool:
        return self.waits >= self._place

    async def outcome(self) -> _Result | BaseException:
        """Return what came of it: its result or its error, CancelledError among them."""
        (outcome,) = await asyncio.gather(self.task, return_exceptions=True)
        return outcome

    async def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        result: _Result = await self._step(work)
        return result

    @coroutine
    def _step(self, work: Coroutine[Any, Any, _Result]) -> Generator[Any, Any, _Result]:
        error: BaseException | None = None
        while True:
            try:
                waited = work.send(None) if error is None else work.throw(error)
            except StopIteration as end:
                result: _Result = end.value
                return result
            self.waits += 1
            if self.waits == self._place:
                asyncio.get_running_loop().call_soon(self.task.cancel)
            try:
                yield waited
            except BaseException as raised:  # noqa: BLE001 - handed on to the coroutine
                error = raised
            else:
                error = None
