"""Waits that `stop` may end, and pauses between tries."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from matcher_receiver.backoff import Backoff
    from matcher_receiver.stats import Counters
    from orderchain.clock import Clock

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
SECOND_NS = 1_000_000_000


class StopAsked(Exception):
    """`stop` was called while the receiver waited."""


class Waits:
    """Everything that one receiver awaits for long goes through here."""

    def __init__(self, chain_id: int, backoff: Backoff, counters: Counters) -> None:
        self._chain_id = chain_id
        self._backoff = backoff
        self._counters = counters
        self._inner: asyncio.Future[Any] | None = None
        self.is_stopping = False
        """Whether `stop` was called; never taken back."""

    def stop(self) -> None:
        """End the wait that is under way, and every later one."""
        self.is_stopping = True
        if self._inner is not None:
            self._inner.cancel()

    async def until_done(self, awaitable: Awaitable[_T]) -> _T:
        """Await `awaitable`. Raises StopAsked when `stop` is called meanwhile, or was before."""
        if self.is_stopping:
            _discard(awaitable)
            raise StopAsked
        task = asyncio.current_task()
        cancels = 0 if task is None else task.cancelling()
        self._inner = inner = asyncio.ensure_future(awaitable)
        try:
            result = await inner
        except asyncio.CancelledError:
            # Ours to swallow only when nobody cancelled the task that iterates.
            if self.is_stopping and (task is None or not task.cancelling()):
                raise StopAsked from None
            raise
        finally:
            self._inner = None
        if task is not None and task.cancelling() > cancels:
            # What was awaited was done at the same instant, and has swallowed the cancellation (as
            # asyncio.wait_for does up to Python 3.11). What it brought is read again.
            raise asyncio.CancelledError
        return result

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        await self.until_done(asyncio.sleep(seconds))

    async def pause(self, error: Exception) -> None:
        """Wait a little before the next try, longer after each failure in a row."""
        self._counters.database_retries += 1
        seconds = self._backoff.next_seconds()
        _log.warning("chain %d: again in %.2f s: %s", self._chain_id, seconds, error)
        await self.sleep(seconds)

    def succeeded(self) -> None:
        """A try has succeeded: the next failure is the first in a row."""
        self._backoff.reset()


class Patience:
    """How long something has been waited for in vain, against a limit."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._limit_ns = seconds * SECOND_NS
        self._clock = clock
        self._since_ns: int | None = None

    def is_over(self) -> bool:
        """Say whether the limit has passed since the first question; then it begins anew."""
        now = self._clock.monotonic_ns()
        if self._since_ns is None:
            self._since_ns = now
        if now - self._since_ns < self._limit_ns:
            return False
        self._since_ns = None
        return True

    def reset(self) -> None:
        """It has come."""
        self._since_ns = None


def _discard(awaitable: Awaitable[Any]) -> None:
    close: Callable[[], None] | None = getattr(awaitable, "close", None)
    if close is not None:
        close()
