"""Runs the asynchronous part of a command, and ends it in good order on Ctrl-C and SIGTERM.

Under systemd (`Type=notify`), it also reports when a service is ready, that it is alive, and that
it stops, as sd_notify(3) describes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from chain_kernel.process import calm_collector
from chainctl.exits import Terminated

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

_T = TypeVar("_T")

CLEAN_UP_SECONDS: Final = 30.0
"""Deadline of the clean-up after SIGTERM; supervisors commonly kill after that."""


def report_ready(status: str) -> None:
    """Report to systemd that the service is ready, and what it does now; a no-op elsewhere.

    A standby is ready once it waits: otherwise its start would time out.
    """
    _notify(f"READY=1\nSTATUS={status}")


def run_async(work: Coroutine[object, object, _T]) -> _T:
    """Run `work` to its end and return its result; on uvloop where that is installed.

    Ctrl-C cancels it and raises KeyboardInterrupt once it has cleaned up, a second one at once.
    SIGTERM cancels it and raises Terminated.
    """
    calm_collector()
    with _sigterm_as_before(), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_guarded(work))


@contextmanager
def _sigterm_as_before() -> Iterator[None]:
    """Restore the handler of SIGTERM at the end, which an event loop does not."""
    usual = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL  # None: not set by Python
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, usual)


async def _guarded(work: Coroutine[object, object, _T]) -> _T:
    """Run `work` in this task, cancelled by SIGTERM."""
    task = asyncio.current_task()
    asked: list[int] = []

    def terminate() -> None:
        _notify("STOPPING=1")
        asked.append(signal.SIGTERM)
        if task is not None:
            task.cancel()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, terminate)
    watchdog = loop.create_task(_keep_watchdog())
    try:
        return await work
    except asyncio.CancelledError:
        if asked:
            raise Terminated("ended by SIGTERM") from None
        raise
    finally:
        watchdog.cancel()
        loop.remove_signal_handler(signal.SIGTERM)


async def _keep_watchdog() -> None:
    """Report twice per watchdog interval that the event loop runs; return where none is set.

    systemd restarts a service whose loop hangs for a whole interval.
    """
    interval = os.environ.get("WATCHDOG_USEC", "")
    is_ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    if not (is_ours and interval.isascii() and interval.isdecimal()):
        return
    while True:
        _notify("WATCHDOG=1")
        await asyncio.sleep(int(interval) / 2_000_000)


def _notify(state: str) -> None:
    """Send `state` to the socket in `NOTIFY_SOCKET`; an error there never ends the service."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
        notifier.setblocking(False)
        notifier.sendto(state.encode(), address)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop, which nearly halves what the clients cost; None for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
