"""One bound for what tests wait for, which stretches with the load of the machine.

On an idle machine what hangs ends soon. On a loaded one the same work takes as many times as long
as there are processes per core, and is given that time. The load is looked at when a bound is
reached: the average lags, and says little when a wait begins.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any, Final, TypeVar

Result = TypeVar("Result")

SECONDS: Final = 60.0
"""Many times what any wait of a test takes on an idle machine."""


LONG_SECONDS: Final = 600.0
"""For a setting of the product whose end the test is not about: longer than any test takes."""


def stretched(seconds: float) -> float:
    """Return `seconds` times the processes that want to run per core, now; at least `seconds`."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Deadline:
    """Says whether a wait is too long where no event loop runs.

    A wait for a process or a thread needs none: the timer of the test ends it (`hanging.py`).
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._began = time.monotonic()

    def left(self) -> float:
        """Return how many seconds are left by the load of now; zero or less when it is over."""
        return self._began + stretched(self.seconds) - time.monotonic()


@asynccontextmanager
async def deadline(seconds: float = SECONDS) -> AsyncIterator[None]:
    """Bound a block, as `asyncio.timeout` does.

    Raises:
        TimeoutError: the block took more than `seconds`, stretched.
    """
    loop = asyncio.get_running_loop()
    bound = Deadline(seconds)
    async with asyncio.timeout(None) as timeout:
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            if (left := bound.left()) > 0:
                timer = loop.call_later(min(left, seconds), look)
            else:
                timeout.reschedule(loop.time())

        timer = loop.call_later(seconds, look)
        try:
            yield
        finally:
            timer.cancel()


async def in_time(awaited: Awaitable[Result]) -> Result:
    """Return what `awaited` gives. Raises TimeoutError as `deadline` does."""
    async with deadline():
        return await awaited


async def until(holds: Callable[[], Any]) -> None:
    """Wait until `holds` returns, or brings, what is true: of another's doing there is no event.

    Raises TimeoutError as `deadline` does.
    """
    async with deadline():
        while True:
            found = holds()
            if await found if isawaitable(found) else found:
                return
            await asyncio.sleep(0.01)
