"""Tasks: whose cancellation it is, whose loop, and work that a cancelled caller does not cut
off."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from chain_kernel.errors import SettingError
from chain_kernel.text import named_reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


async def uninterrupted(work: Awaitable[_T]) -> _T:
    """Run `work` to its end, however often the caller is cancelled meanwhile; then raise that.

    Use it for work that must not stop half-way, and has deadlines of its own. A shielded child in a
    task group of anyio survives a `task.cancel()`, too; but it needs more lines than this, since it
    returns nothing and raises errors in groups. A shield alone holds off anyio's own cancellations.
    """
    doing = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        while not doing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([doing])
        if not doing.cancelled() and (error := doing.exception()) is not None:
            _log.warning("the end of what was cancelled: %s", named_reason(error))
        raise


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel `task`, and wait for its end; what it raised has no reader any more."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # else asyncio complains that it was never retrieved


class SelfCancelled(RuntimeError):
    """Others' code raised CancelledError, though the task that it runs in was not cancelled."""


@contextmanager
def of_others(what: str) -> Iterator[None]:
    """Run code of others: only a cancellation of our own task is a stop.

    Raises SelfCancelled, a failure like any other, where `what` has raised CancelledError by
    itself, such as for a task of its own that was cancelled.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise SelfCancelled(
            f"{what} raised CancelledError, though its task was not cancelled"
        ) from error


class HomeLoop:
    """The event loop that has opened an object: futures and connections work in no other one."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        """Remember the running loop."""
        self._loop = asyncio.get_running_loop()

    def join(self) -> None:
        """Remember the running loop. Raises SettingError where another one is remembered."""
        self.check()
        self.enter()

    def leave(self) -> None:
        """Forget it: what is closed may be asked from anywhere."""
        self._loop = None

    def check(self) -> None:
        """Raise SettingError in another loop or thread, once a loop was entered."""
        if self._loop is not None:
            self.running()

    def running(self) -> asyncio.AbstractEventLoop:
        """Return the running loop. Raises SettingError where it is another one."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is None or (loop is not self._loop and self._loop is not None):
            expected = "the loop that opened it (asyncio.run_coroutine_threadsafe leads there)"
            found = "from another event loop or thread"
            raise SettingError(f"call of the {self._what}", found, expected)
        return loop
