"""Reports to the process that serves metrics and health, and keeps it alive."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from chain_kernel.monitoring import READY
from chain_kernel.text import SummedLog, printable, reason_of
from chainctl.monitor_process import LENGTH_BYTES, Look

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from chain_kernel.monitoring import Monitor, Sample

    AnyLook = Look[list[Sample] | None]

_log = logging.getLogger(__name__)

_REPORT_SECONDS: Final = 1.0
"""Greatest age of an answer; a death of the process is seen as soon."""

_LOOK_SECONDS: Final = 2.0
"""Deadline of a look at the working loop; probes commonly wait for less than 5 s."""

_LOOK_SHARE: Final = 0.02
"""Share of the working loop that metrics may take: those of 1,000 chains are taken every few
seconds, the health of all each second."""

_TAKE_SECONDS: Final = 5.0
"""A process that takes nothing for so long is replaced."""

_BUFFER_BYTES: Final = 16 * 1024
"""Small, so that reports do not wait there for long when the process takes nothing."""

_STOP_SECONDS: Final = 2.0

_PAUSE_SECONDS_MAX: Final = 5.0
"""Before a process is started again, at most: three probes in a row must not miss it."""

_LASTED_SECONDS: Final = 30.0
"""One that has lasted longer is started again after 1 s."""

_DUE_SECONDS_MAX: Final = 15.0
"""Longest time for which samples are shown again: a look takes long where the process was
stopped."""


class Reporting:
    """A thread that reports each second how the parts are, to a process that it keeps alive."""

    def __init__(
        self, monitor: Monitor, loop: asyncio.AbstractEventLoop | None, listening: socket.socket
    ) -> None:
        """The parts are looked at from within `loop`; from the thread where there is none."""
        self._looking = _Looking(monitor)
        self._loop = loop
        self._listening = listening
        self._looks: SimpleQueue[AnyLook | None] = SimpleQueue()
        self._is_asked = False
        self._said = SummedLog(_log, logging.WARNING)
        self._over = threading.Event()
        # A daemon: where it hangs, the process ends without it.
        self._thread = threading.Thread(target=self._run, name="orderchain http", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """End the process, and the thread."""
        self._over.set()
        self._looks.put(None)
        self._thread.join(2 * _STOP_SECONDS)

    def _run(self) -> None:
        # The process inherits this: it serves until this one closes its socket, whatever a
        # terminal or a supervisor sends to both.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        pause = 0.0
        while not self._over.is_set():
            begun = time.monotonic()
            self._looking.take_all()
            try:
                with _serving(self._listening) as serving:
                    reason = self._report(serving)
            except Exception as error:  # noqa: BLE001 - no part, and no process, ends the reports
                reason = f"has failed: {reason_of(error)}"
            if self._over.is_set():
                break
            has_lasted = time.monotonic() - begun > _LASTED_SECONDS
            pause = 1.0 if has_lasted else min(max(1.0, 2 * pause), _PAUSE_SECONDS_MAX)
            line = "the process that serves metrics and health %s; it is started again in %g s"
            _log.warning(line, reason, pause)
            self._over.wait(pause)

    def _report(self, serving: _Serving) -> str:
        """Report until it ends, or is to end; return how it has ended."""
        while (look := self._look()) is not None:
            content = msgspec.msgpack.encode(look)
            try:
                serving.work.sendall(len(content).to_bytes(LENGTH_BYTES, "big") + content)
            except TimeoutError:
                return f"took nothing for {_TAKE_SECONDS:g} s"
            except OSError:
                return serving.how_it_ended()
            if said := serving.last_line():
                self._said.repeat(f"the process that serves metrics and health says: {said}")
            self._over.wait(_REPORT_SECONDS)
        return ""

    def _look(self) -> AnyLook | None:
        """Return how the parts are now; None at the end."""
        if self._over.is_set():
            return None
        if self._loop is None:
            return self._looking.look()
        if not self._is_asked:
            self._is_asked = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(lambda: self._looks.put(self._looking.look()))
        try:
            look = self._looks.get(timeout=_LOOK_SECONDS)
        except Empty:
            return Look(time.monotonic(), "the event loop does not answer", None, None)
        self._is_asked = False
        return look


class _Looking:
    """Looks at the parts. An error is that of one look."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._due = 0.0
        self._failed = SummedLog(_log, logging.ERROR)

    def take_all(self) -> None:
        """Take the samples, too, at the next look."""
        self._due = 0.0

    def look(self) -> AnyLook:
        """Return how the parts are now."""
        begun = time.monotonic()
        samples = None
        try:
            why_not_ready = self._monitor.why_not_ready()
            if begun >= self._due:
                samples = list(self._monitor.samples())
                now = time.monotonic()
                self._due = min(begun + (now - begun) / _LOOK_SHARE, now + _DUE_SECONDS_MAX)
        except Exception as error:  # noqa: BLE001 - whatever a part raises
            why_not_ready = f"a look at the parts has failed: {reason_of(error)}"
            samples = list(READY.samples(False, {}))
            self._due = 0.0
            self._failed.repeat(why_not_ready)
        return Look(begun, None, why_not_ready, samples)


# -- the process -----------------------------------------------------------------------------------


class _Serving(NamedTuple):
    process: subprocess.Popen[bytes]
    work: socket.socket
    """For the reports. The process ends when this is closed."""

    def how_it_ended(self) -> str:
        """Return it in a few words."""
        code = self.process.wait(_STOP_SECONDS)
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with {code}: {self.last_line()}"

    def last_line(self) -> str:
        """Return the last line of what it has said since the last call: that names an error."""
        said = self.process.stderr.read() if self.process.stderr else None
        return printable((said or b"").decode(errors="replace").strip().rpartition("\n")[2])


@contextmanager
def _serving(listening: socket.socket) -> Iterator[_Serving]:
    """Start it, and end it. Raises OSError."""
    work, its = socket.socketpair()
    with work, its:
        # Its Python finds what this one does, and no more in the folder where it runs; of the
        # environment, which has logins, it sees nothing else.
        path = os.pathsep.join(str(Path(each).absolute()) for each in sys.path)
        kept = {name: value for name, value in os.environ.items() if name.startswith("LD_")}
        number = listening.fileno()
        process = subprocess.Popen(
            [sys.executable, "-s", "-P", "-m", "chainctl.monitor_process", str(number)],
            stdin=its.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            pass_fds=[number], env={**kept, "PYTHONPATH": path},
        )  # fmt: skip
        its.close()
        work.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        work.settimeout(_TAKE_SECONDS)
        with process:
            try:
                if process.stderr is not None:
                    os.set_blocking(process.stderr.fileno(), False)
                yield _Serving(process, work)
            finally:
                work.close()
                try:
                    process.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
