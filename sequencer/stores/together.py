"""One statement for what many chains of a process ask at about the same time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from chain_kernel.errors import RetryError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

_Question = TypeVar("_Question")
_Answer = TypeVar("_Answer")

_CLOSED: Final = "the connection is closed"


class Together(Generic[_Question, _Answer]):
    """Asks for many chains at once: those that ask within `pause_seconds`, or while an answer is
    awaited, share the next statement.

    A thousand chains that each send their own keep a connection busy for longer than a lease.
    """

    def __init__(
        self,
        ask: Callable[[Mapping[int, _Question]], Awaitable[Mapping[int, _Answer]]],
        pause_seconds: float = 0.0,
    ) -> None:
        """`ask` returns answers by chain, None for those without; what it raises is for all."""
        self._ask = ask
        self._pause_seconds = pause_seconds
        self._waiting: list[tuple[int, _Question, asyncio.Future[_Answer | None]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def ask(self, chain_id: int, question: _Question) -> _Answer | None:
        """Return the answer for one chain; the statement is sent after the call."""
        answer: asyncio.Future[_Answer | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((chain_id, question, answer))
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_all(), name="orderchain together")
        try:
            return await answer
        finally:
            del answer  # an error refers to this frame

    async def close(self) -> None:
        """End what is under way: a connect that goes on after a close leaves a connection open.

        Who still waits gets RetryError.
        """
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()
            await asyncio.wait([asking])
        waiting, self._waiting = self._waiting, []
        _fail(waiting, RetryError(_CLOSED))

    async def _ask_all(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(self._pause_seconds)
                waiting, self._waiting = self._waiting, []
                try:
                    answers = await self._ask({each: question for each, question, _ in waiting})
                except BaseException as error:  # raised to those who wait
                    if not isinstance(error, Exception):
                        _fail(waiting, RetryError(_CLOSED))
                        raise
                    _fail(waiting, error)
                else:
                    for chain_id, _, answer in waiting:
                        if not answer.done():
                            answer.set_result(answers.get(chain_id))
                finally:
                    waiting = []  # an error refers to this frame, and they to the error
        finally:
            if self._asking is asyncio.current_task():
                self._asking = None


def _fail(waiting: Sequence[tuple[int, Any, asyncio.Future[Any]]], error: Exception) -> None:
    for _, _, answer in waiting:
        if not answer.done():
            answer.set_exception(error)
