"""A process that the demo has started: its reports, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from chainctl.demo.messages import LINE_BYTES_MAX, line_of, report_decoder
from local_stack.process import send_to_child
from orderchain.errors import OrderchainError
from orderchain.reasons import reason_of

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from msgspec import Struct

    from chainctl.demo.messages import Command, Report

STDERR_LINES_KEPT: Final = 20
"""The last lines tell why a process died; one that talks for ever must not fill our memory."""

STOP_SECONDS: Final = 10.0
"""How long a process may take to end after SIGTERM, before it is killed."""


class ChildDied(OrderchainError):
    """A process of the demo ended when it should not have."""

    def __init__(self, name: str, status: int | None, last_line: str) -> None:
        super().__init__(f"the {name} ended with {_told(status)}: {last_line or 'no word'}")


class Child:
    """One process of the demo. Started by `start`, always stopped by `stop`."""

    def __init__(self, name: str, process: Process) -> None:
        self._name = name
        self._process = process
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES_KEPT)
        self._listening = asyncio.create_task(self._listen(), name=f"stderr of the {name}")

    @classmethod
    async def start(cls, name: str, module: str, job: Struct) -> Child:
        """Start `python -m module` and give it its job.

        In a session of its own: Ctrl-C on the terminal reaches the demo alone, which then ends its
        processes in order.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module,
            stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=LINE_BYTES_MAX, start_new_session=True,
        )  # fmt: skip
        child = cls(name, process)
        await child._write(line_of(job))
        return child

    async def report(self) -> Report:
        """Wait for the next report. Raises ChildDied when none comes any more."""
        stdout = self._process.stdout
        line = await stdout.readline() if stdout is not None else b""
        if not line.endswith(b"\n"):
            raise await self._death()
        try:
            report: Report = report_decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise OrderchainError(
                f"the {self._name} reported nonsense: {reason_of(error)}"
            ) from error
        return report

    async def tell(self, command: Command) -> None:
        """Give the process a command."""
        await self._write(line_of(command))

    async def kill(self) -> None:
        """Kill it with SIGKILL, while it works, and wait until it is gone."""
        send_to_child(self._process, signal.SIGKILL)
        await self._gone()

    async def wait(self) -> None:
        """Wait until it has ended by itself. Raises ChildDied when that was a failure."""
        async with asyncio.timeout(STOP_SECONDS):
            await self._process.wait()
        if self._process.returncode:
            raise await self._death()

    async def stop(self) -> None:
        """End it if it still runs: first politely, then for good."""
        if self._process.returncode is None:
            send_to_child(self._process, signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._process.wait()
            except TimeoutError:
                await self.kill()
        await self._gone()

    async def _gone(self) -> None:
        async with asyncio.timeout(STOP_SECONDS):
            await self._process.wait()
            await self._listening

    async def _death(self) -> ChildDied:
        """Return what to raise once the process has ended by itself."""
        # Its reports have ended, so it is about to: a signal now could stand for its own status.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        await self.stop()
        last_line = self._stderr[-1] if self._stderr else ""
        return ChildDied(self._name, self._process.returncode, last_line)

    async def _write(self, line: bytes) -> None:
        stdin = self._process.stdin
        if stdin is None:
            return
        # A process that has died meanwhile says so by its reports, which end.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            stdin.write(line)
            await stdin.drain()

    async def _listen(self) -> None:
        """Keep the last lines of stderr."""
        stderr = self._process.stderr
        if stderr is None:
            return
        async for line in stderr:
            text = line.decode(errors="replace").strip()
            if text:
                self._stderr.append(text)


def _told(status: int | None) -> str:
    if status is None:
        return "no status"
    return f"signal {-status}" if status < 0 else f"status {status}"
