"""An event loop whose clock moves only when nothing is left to do: waits cost nothing."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")
_START_SECONDS = 1_000.0


class _NoWaiting(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = _START_SECONDS

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("every task waits for something that never comes")
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop and, at once, the clock that goes with it."""

    def __init__(self) -> None:
        self._virtual = _NoWaiting()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def monotonic_ns(self) -> int:
        return int(self._virtual.now * 1e9)

    def wall_ns(self) -> int:
        return self.monotonic_ns() + 1_750_000_000_000_000_000


def run_virtual(main: Coroutine[Any, Any, T], *, seconds: float = 3_600.0) -> T:
    """Run `main` in virtual time; it is broken off after so many virtual seconds."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(asyncio.wait_for(main, seconds))


def virtual_clock() -> VirtualLoop:
    """The clock of the running virtual loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop
