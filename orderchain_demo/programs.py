"""Programs of the demo: processes of their own that read a job and write reports.

Each message is a line of JSON. A job comes by standard input, since on a command line every user of
the machine could read the passwords. A program ends once its reports are no longer read.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from contextlib import suppress
from subprocess import PIPE, Popen, TimeoutExpired
from typing import TYPE_CHECKING, Final, Self, TypeVar

import msgspec

from chain_kernel.errors import OrderchainError

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Struct

_T = TypeVar("_T")

STOP_SECONDS: Final = 10.0
"""Time for a program to end after SIGTERM, before it is killed."""


class Program:
    """A running program; it ends with the block at the latest.

    It has a session of its own: Ctrl-C on the terminal reaches the demo alone, which then ends its
    programs in order.
    """

    def __init__(self, name: str, module: str, job: Struct) -> None:
        self._name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        self._process = Popen(
            [sys.executable, "-m", module],
            stdin=PIPE, stdout=PIPE, stderr=self._log, start_new_session=True,
        )  # fmt: skip
        self.write(job)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def write(self, message: Struct) -> None:
        """Give the program a message. One that has died shows it at the next `read`."""
        stdin = self._process.stdin
        if stdin is not None:
            with suppress(BrokenPipeError):
                stdin.write(line_of(message))
                stdin.flush()

    def read(self, kind: type[_T]) -> _T:
        """Wait for the next report. Raises OrderchainError when the program ends without one."""
        stdout = self._process.stdout
        line = b"" if stdout is None else stdout.readline()
        if not line.endswith(b"\n"):
            raise self._death()
        return msgspec.json.decode(line, type=kind)

    def kill(self) -> None:
        """Kill it with SIGKILL, while it works."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it if it still runs, with its Java if it has one: they share a session."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:
                break
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        for file in (self._process.stdin, self._process.stdout, self._log):
            if file is not None:
                with suppress(BrokenPipeError):
                    file.close()

    def _death(self) -> OrderchainError:
        """Return what to raise once the program has ended by itself."""
        try:
            # Its reports have ended, so it is about to end: a signal could replace its own status.
            status = self._process.wait(STOP_SECONDS)
        except TimeoutExpired:
            return OrderchainError(f"the {self._name} reports nothing any more")
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        last_line = next((line.strip() for line in reversed(lines) if line.strip()), "no word")
        ended = f"signal {-status}" if status < 0 else f"status {status}"
        return OrderchainError(f"the {self._name} ended with {ended}: {last_line}")


# -- as a program sees itself ----------------------------------------------------------------------


def line_of(message: Struct) -> bytes:
    """Return a message as a line."""
    return msgspec.json.encode(message) + b"\n"


def receive(kind: type[_T]) -> _T:
    """Wait for the next message. Raises OrderchainError when none can come any more."""
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        raise OrderchainError("the demo is gone")
    return msgspec.json.decode(line, type=kind)


def report(message: Struct) -> None:
    """Write a report. Raises BrokenPipeError when the demo is gone."""
    sys.stdout.buffer.write(line_of(message))
    sys.stdout.buffer.flush()


def run_program(work: Callable[[], None]) -> int:
    """Do `work` and return the exit code; on failure, one line on stderr says why."""
    from chainctl.exits import error_line, exit_code
    from chainctl.output import talk

    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the one place where every error ends
        talk(error_line(error))
        return int(exit_code(error))
    return 0
