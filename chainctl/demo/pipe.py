"""The demo's end of a process of its own: standard input and output as seen from inside it."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from chainctl.demo.messages import LINE_BYTES_MAX, command_decoder, line_of
from orderchain.errors import OrderchainError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from chainctl.demo.messages import Command, Report

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
