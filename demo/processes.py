"""A process of the demo, from both its ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from demo.messages import LINE_BYTES_MAX, command_decoder, line_of, report_decoder
from local_stack.process import send_to_child
from orderchain.errors import OrderchainError
from orderchain.text import reason_of

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Coroutine

    from msgspec import Struct

    from demo.messages import Command, Report


STDERR_LINES_KEPT: Final = 20
"""The last lines show why a process died; one that writes forever must not fill our memory."""

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
        # Its reports have ended, so it is about to end: a signal now could replace its own status.
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
        # A process that has died meanwhile shows it by the end of its reports.
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


_Job = TypeVar("_Job")

JOB_SECONDS: Final = 30.0
"""How long a process waits for its job: the demo writes it at once."""


class DemoGone(OrderchainError):
    """The demo ended without waiting for this process."""


class Pipe:
    """Commands in, reports out."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def job(self, job_type: type[_Job]) -> _Job:
        """Return the first line."""
        async with asyncio.timeout(JOB_SECONDS):
            line = await self._line()
        return msgspec.json.decode(line, type=job_type)

    async def command(self) -> Command:
        """Wait for the next command. Raises DemoGone when none can come any more."""
        command: Command = command_decoder.decode(await self._line())
        return command

    def report(self, message: Report) -> None:
        """Write a report. Raises BrokenPipeError when the demo is gone.

        The write may wait for the reader: a report is a few hundred bytes and the demo reads all
        of them at once.
        """
        sys.stdout.buffer.write(line_of(message))
        sys.stdout.buffer.flush()

    async def _line(self) -> bytes:
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise DemoGone("the demo is gone")
        return line


async def open_pipe() -> Pipe:
    """Return the pipe to the demo."""
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    return Pipe(reader)


def run_process(work: Callable[[Pipe], Coroutine[object, object, None]]) -> int:
    """Run `work` with the pipe to the demo; return the exit code. One line of stderr on failure."""
    from chainctl.exits import error_line, exit_code
    from chainctl.output import talk
    from chainctl.running import run_async

    async def worked() -> None:
        await work(await open_pipe())

    try:
        run_async(worked())
    except BaseException as error:  # noqa: BLE001 - the one place where every error ends
        talk(error_line(error))
        return int(exit_code(error))
    return 0
