"""An event loop whose clock moves only when nothing is left to do: waits cost nothing.

With a seed it also draws the order in which ready callbacks run, one order per seed. The same
program with the same seed takes the same steps at the same virtual times, on every machine.
"""

from __future__ import annotations

import asyncio
import heapq
from contextvars import ContextVar, copy_context
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from chain_kernel.errors import OrderchainError, SettingError, StoppedError

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Coroutine


# -- programs of a simulated world: each can be paused, as by SIGSTOP, and killed ------------------

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
        self.at_step: Callable[[], None] | None = None
        """Called after each step of one of its tasks: what may be killed there is killed there."""
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


# -- the loop --------------------------------------------------------------------------------------

_START_SECONDS: Final = 1_000.0
"""Not 0: code that takes 0 for "never" must not work by accident."""

_START_WALL_NS: Final = 1_750_000_000_000_000_000


class Deadlock(RuntimeError):
    """Every task waits for something that never comes: a wait without a deadline."""


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop and, at once, the clock that goes with it (`chain_kernel.clock.Clock`).

    It has no sockets, pipes, signals or threads: work for a thread is done at once, in place.
    """

    # What asyncio's own loops keep their callbacks in; typeshed does not name them.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self._now = _START_SECONDS
        self._order = None if seed is None else Random(seed)  # noqa: S311 - repeatable on purpose
        self.steps = 0
        """Callbacks run so far: the same in two runs of one seed."""

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def monotonic_ns(self) -> int:
        """Return the virtual time."""
        return int(self._now * 1e9)

    def wall_ns(self) -> int:
        """Return a wall clock that goes with it."""
        return self.monotonic_ns() + _START_WALL_NS

    def run_in_executor(  # type: ignore[override]
        self,
        executor: object,
        func: Callable[..., _T],
        *args: Any,  # noqa: ANN401 - as asyncio has it
    ) -> asyncio.Future[_T]:
        """Call `func` at once: a thread would return at a time that the machine chooses."""
        future: asyncio.Future[_T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is passed on to the caller that awaits
            future.set_exception(error)
        return future

    def _run_once(self) -> None:
        """Run what is ready, in a drawn order; if nothing is, move the clock to the next timer."""
        if not (self._ready or self._stopping):
            self._move_clock()
        while self._scheduled and self._scheduled[0]._when <= self._now:  # type: ignore[attr-defined]
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            self._ready.append(timer)
        handles = list(self._ready)
        self._ready.clear()
        if self._order is not None and len(handles) > 1:
            self._order.shuffle(handles)
        for handle in handles:
            if not handle.cancelled():
                self._run_handle(handle)

    def _run_handle(self, handle: asyncio.Handle) -> None:
        process = process_of(handle)
        if process is not None and process.is_paused:
            process.hold(handle)
        else:
            self.steps += 1
            handle._run()
            if process is not None and process.at_step is not None:
                process.at_step()

    def _move_clock(self) -> None:
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)._scheduled = False  # type: ignore[attr-defined]
        if not self._scheduled:
            raise Deadlock("every task waits for something that never comes")
        self._now = max(self._now, self._scheduled[0].when())

    def _process_events(self, event_list: object) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """No thread sleeps, so none has to be woken."""


def run_virtual(
    main: Coroutine[Any, Any, _T], *, seed: int | None = None, seconds: float = 3_600.0
) -> _T:
    """Run `main` in virtual time; it is cancelled after `seconds` virtual seconds.

    Without a `seed` ready callbacks run in the order in which they became ready.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(seed)) as runner:
        return runner.run(asyncio.wait_for(main, seconds))


def virtual_clock() -> VirtualLoop:
    """Return the running loop, which is the clock. Raises RuntimeError outside of a virtual one."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RuntimeError("not in virtual time: run_virtual(...)")
    return loop


# -- plain tests, and processes that were killed in them -------------------------------------------

CLOSE_SECONDS: Final = 3_600.0
"""Virtual: what still runs at the end of a test is cancelled, and given so long."""


class NotWorkedOff(OrderchainError):
    """A test has shown nothing: something was left, or no kill fell where it matters."""


class VirtualTime:
    """A loop of its own for tests that are plain `def`, and the processes that it killed."""

    def __init__(self, seed: int | None = None) -> None:
        self.killed: list[Process] = []
        """They are only paused, so that no `finally` of theirs runs before `close`."""
        self._seed = seed
        self._loop: VirtualLoop | None = None

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what `work` returns. Raises SettingError inside of a running event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._loop = self._loop or VirtualLoop(self._seed)
            return self._loop.run_until_complete(work)
        work.close()
        raise SettingError("test", "async def", "a plain def: this has a loop of its own")

    def close(self) -> None:
        """End what still runs. Killed processes are cleaned up now."""
        if self._loop is None:
            return
        self._loop.set_exception_handler(lambda *_: None)  # its errors no longer matter
        if self.killed:
            self._loop.run_until_complete(self._end_all())
        self._loop.close()
        self._loop = None

    async def _end_all(self) -> None:
        for process in self.killed:
            process.at_step = None
            process.kill()
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
