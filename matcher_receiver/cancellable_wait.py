"""Waits that `stop` may end and a cancelled caller does not, and pauses between tries."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from chain_kernel.errors import ConnectError, RetryError, StoppedError
from chain_kernel.text import SummedLog

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from chain_kernel.clock import Backoff, Clock
    from matcher_receiver.stats import ReceiverCounters

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
SECOND_NS: Final = 1_000_000_000

AWAY: Final = (RetryError, ConnectError)
"""A server that is away. A server that restarts refuses connections: after the start that is no
reason to give up."""


class StopAsked(Exception):
    """`stop` was called while the receiver waited."""


class CancellableWait:
    """All long waits of one receiver go through here."""

    def __init__(self, chain_id: int, backoff: Backoff, counters: ReceiverCounters) -> None:
        self._chain_id = chain_id
        self._backoff = backoff
        self._outage = SummedLog(_log, logging.WARNING)
        self._counters = counters
        self._stop = asyncio.Event()
        self._work: asyncio.Task[Any] | None = None

    @property
    def is_stopping(self) -> bool:
        """True if `stop` was called; never reset."""
        return self._stop.is_set()

    @property
    def is_busy(self) -> bool:
        """True if work is under way, or done and not yet fetched."""
        return self._work is not None

    def stop(self) -> None:
        """End the work that is under way, and every later wait."""
        self._stop.set()
        if self._work is not None:
            self._work.cancel()

    async def outcome(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Return the result of `work`; it is begun only if no work is under way.

        It runs in a task of its own, so that a cancelled caller ends only its own wait: no read is
        interrupted, no page is discarded, and no code that has moved the head is left halfway. The
        result of the work is kept for the next call. Only `stop` and `close` end the work. Raises
        StopAsked then, StoppedError where something else has ended it, else what the work raises.
        """
        if self._work is None:
            if self.is_stopping:
                raise StopAsked
            self._work = asyncio.create_task(work(), name=f"orderchain chain {self._chain_id}")
        work_done = self._work
        await _until_done(work_done)
        # Nothing is awaited from here on: the result is either still kept, or returned.
        self._work = None
        if work_done.cancelled():
            if self.is_stopping:
                raise StopAsked
            raise StoppedError("the receiver's task was cancelled")  # its caller was not
        result: _T = work_done.result()
        return result

    async def close(self) -> BaseException | None:
        """End the work that is under way, and wait for its end.

        Returns the error of work that had ended before, and that no caller has fetched.
        """
        work, self._work = self._work, None
        if work is None:
            return None
        work.cancel()
        await asyncio.wait([work])
        return None if work.cancelled() else work.exception()

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`. Raises StopAsked when `stop` is called meanwhile, or was before."""
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return
        raise StopAsked

    async def pause(self, error: Exception) -> None:
        """Wait a little before the next try, longer after each failure in a row."""
        self._counters.database_retries += 1
        seconds = self._backoff.next_seconds()
        self._outage.repeat(f"chain {self._chain_id}: {error}; trying again")
        await self.sleep(seconds)

    def succeeded(self) -> None:
        """A try has succeeded: the next failure is the first in a row."""
        self._backoff.reset()
        self._outage.log()


async def _until_done(task: asyncio.Task[Any]) -> None:
    """Wait for `task` to end, without ending it when the wait is cancelled."""
    if task.done():
        return
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    wake = partial(_wake, waiter)
    task.add_done_callback(wake)
    try:
        await waiter
    finally:
        task.remove_done_callback(wake)


def _wake(waiter: asyncio.Future[None], _: object) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Patience:
    """A timeout that restarts on progress."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._limit_ns = seconds * SECOND_NS
        self._clock = clock
        self._since_ns: int | None = None

    def is_over(self) -> bool:
        """Return whether the limit has passed since the first call; then it begins again."""
        now = self._clock.monotonic_ns()
        if self._since_ns is None:
            self._since_ns = now
        if now - self._since_ns < self._limit_ns:
            return False
        self._since_ns = None
        return True

    def reset(self) -> None:
        """The wait is over: what was waited for has come."""
        self._since_ns = None
