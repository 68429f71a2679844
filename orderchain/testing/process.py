"""Programs of a simulated world: each can be paused, as by SIGSTOP, and killed, as by kill -9."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVar

from orderchain.errors import StoppedError

if TYPE_CHECKING:
    from collections.abc import Coroutine


_T = TypeVar("_T")


class Process:
    """The tasks of one program: those that `run` starts, and all that they start themselves.

    A paused one does nothing while the world goes on; a `VirtualLoop` keeps what would have run,
    timers too, until it is resumed. A killed one is cancelled, and no longer reaches anything:
    every wire that it uses refuses. So its tasks may end later; what they do has no effect.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_paused = False
        self.is_dead = False
        self._held: list[asyncio.Handle] = []
        self._tasks: list[asyncio.Task[Any]] = []

    def run(self, main: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start `main` as a task of this process."""
        context = copy_context()
        context.run(_current.set, self)
        loop = asyncio.get_running_loop()
        task = loop.create_task(main, name=self.name, context=context)
        self._tasks.append(task)
        return task

    def pause(self) -> None:
        """Run nothing of it until `resume`."""
        self.is_paused = not self.is_dead

    def resume(self) -> None:
        """Continue: everything that fell due meanwhile runs at once."""
        self.is_paused = False
        held, self._held = self._held, []
        for handle in held:
            asyncio.get_running_loop()._ready.append(handle)  # type: ignore[attr-defined]

    def kill(self) -> None:
        """End it permanently."""
        self.is_dead = True
        self.resume()
        for task in self._tasks:
            task.cancel()

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep what a paused process would have run; for the loop."""
        self._held.append(handle)


_current: Final[ContextVar[Process | None]] = ContextVar("simulated process", default=None)


def current_process() -> Process | None:
    """Return the process whose code runs now; None outside of any."""
    return _current.get()


def process_of(handle: asyncio.Handle) -> Process | None:
    """Return the process that `handle` belongs to; for the loop."""
    context = handle._context  # type: ignore[attr-defined] # nothing else shows it
    process: Process | None = context.get(_current)
    return process


def check_alive() -> None:
    """Raise StoppedError in a process that was killed: nothing it does may reach anybody."""
    process = _current.get()
    if process is not None and process.is_dead:
        raise StoppedError(f"{process.name} was killed")


def is_killed() -> bool:
    """Return whether the running code belongs to a process that was killed."""
    process = current_process()
    return process is not None and process.is_dead


async def alive() -> None:
    """Return in a live process; in a killed one never, until it is cleaned up."""
    if is_killed():
        await stand_still()


async def stand_still() -> None:
    """Wait for what never comes."""
    await asyncio.get_running_loop().create_future()
