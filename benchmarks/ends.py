"""The processes of a run, as the benchmark's own process sees them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TypeVar

import msgspec

_T = TypeVar("_T")

_CLOSE_SECONDS = 5.0
"""An end that has reported its figures hands over and closes its connections."""

_ROOT = Path(__file__).parent.parent


class RunFailed(Exception):
    """An end of a run ended without its figures; the text is the last line that it wrote."""


class End:
    """A process: it gets its work as lines, writes words, and ends with a line of JSON."""

    def __init__(self, module: str, role: str) -> None:
        self._module = module
        self._role = role
        self._is_done = False
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, *lines: bytes) -> None:
        """Start it with its work."""
        # A session of its own: Ctrl-C is for the benchmark, which then stops both ends.
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self._module, self._role),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            cwd=_ROOT,
        )
        for line in lines:
            await self.tell(line + b"\n")

    async def tell(self, line: bytes) -> None:
        """Write a line to it."""
        stdin = self._running().stdin
        if stdin is not None:
            stdin.write(line)
            await stdin.drain()

    async def expect(self, word: bytes) -> None:
        """Wait until it writes `word`. Raises RunFailed when it writes something else, or ends."""
        found = await self._line()
        if found != word:
            raise RunFailed(f"{self._role}: said {found.decode()!r}, expected {word.decode()!r}")

    async def result(self, kind: type[_T]) -> _T:
        """Wait for its figures. Raises RunFailed when it ends without."""
        found = msgspec.json.decode(await self._line(), type=kind)
        self._is_done = True
        return found

    async def _line(self) -> bytes:
        process = self._running()
        line = await process.stdout.readline() if process.stdout else b""
        if line:
            return line.rstrip(b"\n")
        said = await process.stderr.read() if process.stderr else b""
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise RunFailed(f"{self._role}: {last or 'ended without a word'}")

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RunFailed(f"{self._role}: not started")
        return self._process

    async def end(self) -> None:
        """Wait until it closes if it has reported its figures, and make sure that it is gone."""
        process = self._process
        if process is not None and process.returncode is None:
            try:
                async with asyncio.timeout(_CLOSE_SECONDS if self._is_done else 0):
                    await process.wait()
            except TimeoutError:
                os.kill(process.pid, signal.SIGKILL)
                await process.wait()
