"""Runs the asynchronous part of a command, and ends it in good order on Ctrl-C and SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Final, TypeVar

from chainctl.exits import Terminated
from orderchain.collector import calm_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_T = TypeVar("_T")

CLEAN_UP_SECONDS: Final = 30.0
"""How long the clean-up after SIGTERM may take; supervisors commonly kill after that."""


def run_async(work: Coroutine[object, object, _T]) -> _T:
    """Run `work` to its end and return its result; on uvloop where that is installed.

    Ctrl-C cancels it and raises KeyboardInterrupt once it has cleaned up, a second one at once.
    SIGTERM cancels it and raises Terminated.
    """
    calm_collector()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_guarded(work))


async def _guarded(work: Coroutine[object, object, _T]) -> _T:
    """Run `work` in this task, cancelled by SIGTERM."""
    task = asyncio.current_task()
    asked: list[int] = []

    def terminate() -> None:
        asked.append(signal.SIGTERM)
        if task is not None:
            task.cancel()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await work
    except asyncio.CancelledError:
        if asked:
            raise Terminated("ended by SIGTERM") from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop, which nearly halves what the clients cost; None for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
