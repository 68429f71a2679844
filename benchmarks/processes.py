"""Processes of a benchmark, as its own process sees them, and as they see themselves.

A process gets its jobs as lines of JSON on stdin, never on its command line, which every user of
the machine can read: jobs hold passwords.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from asyncio.subprocess import PIPE
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec
import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

_T = TypeVar("_T")

ROOT: Final = Path(__file__).parent.parent

_CLOSE_SECONDS: Final = 5.0
"""A process that has reported its figures hands over and closes its connections."""

_DEADLINE_SECONDS: Final = 600.0

_LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A line of figures holds samples and histograms; asyncio's own bound would cut it off."""


class RunFailed(Exception):
    """A process of a run ended without its figures; the text is the last line that it wrote."""


class End:
    """A process, to be entered: it gets its jobs, writes words, and ends with a line of JSON."""

    process: asyncio.subprocess.Process

    def __init__(
        self, module: str, role: str, *jobs: msgspec.Struct, keeps_errors: bool = True
    ) -> None:
        """With `keeps_errors`, its stderr is only read for the text of RunFailed."""
        self.command: tuple[str | Path, ...] = (sys.executable, "-m", module, role)
        self.root = ROOT
        self.environment: dict[str, str] = {}
        """What is added to the environment of this process."""
        self.close_seconds = 0.0
        """How long it may take to close once its stdin is closed, before it is killed."""
        self._name = role
        self._jobs = jobs
        self._keeps_errors = keeps_errors

    async def __aenter__(self) -> Self:
        # A session of its own: Ctrl-C is for the benchmark, which then stops its processes.
        self.process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE if self._keeps_errors else None,
            start_new_session=True,
            cwd=self.root,
            env=os.environ | self.environment,
            limit=_LINE_BYTES_MAX,
        )
        for job in self._jobs:
            await self.tell(msgspec.json.encode(job))
        return self

    async def __aexit__(self, *error: object) -> None:
        process = self.process
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode is None:
            try:
                async with asyncio.timeout(self.close_seconds):
                    await process.wait()
            except TimeoutError:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def tell(self, line: bytes) -> None:
        """Write a line to it."""
        if (stdin := self.process.stdin) is not None:
            stdin.write(line + b"\n")
            await stdin.drain()

    async def expect(self, word: bytes) -> None:
        """Wait until it writes the line `word`. Raises RunFailed when it ends before."""
        while await self.line() != word:
            pass

    async def answer(self) -> Any:  # noqa: ANN401 - JSON
        """Wait for its next line of JSON. Raises RunFailed when it ends before."""
        while (line := await self.line())[:1] not in (b"{", b"["):
            pass  # what its libraries print
        return msgspec.json.decode(line)

    async def result(self, kind: type[_T]) -> _T:
        """Wait for its figures, its last line. Raises RunFailed when it ends without."""
        found = msgspec.convert(await self.answer(), kind)
        self.close_seconds = _CLOSE_SECONDS
        return found

    async def line(self) -> bytes:
        """Wait for its next line, without the end of the line. Raises RunFailed when it ends."""
        stdout = self.process.stdout
        return await self._or_failed(await stdout.readline() if stdout else b"")

    async def rest(self) -> bytes:
        """Wait for all that it writes until it ends. Raises RunFailed where that is nothing."""
        stdout = self.process.stdout
        return await self._or_failed(await stdout.read() if stdout else b"")

    async def _or_failed(self, written: bytes) -> bytes:
        if written:
            return written.rstrip(b"\n")
        stderr = self.process.stderr
        said = await stderr.read() if stderr else b""
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise RunFailed(f"{self._name}: {last or 'ended without a word'}")


# -- in the process --------------------------------------------------------------------------------


def job_of(kind: type[_T]) -> _T:
    """Return the next job of this process."""
    return msgspec.json.decode(sys.stdin.buffer.readline(), type=kind)


async def next_line() -> bytes:
    """Wait for a line from the benchmark's own process."""
    return await asyncio.to_thread(sys.stdin.buffer.readline)


def say(word: bytes | msgspec.Struct) -> None:
    """Write a word, or figures, to the benchmark's own process."""
    line = word if isinstance(word, bytes) else msgspec.json.encode(word)
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def freeze() -> None:
    """Keep all that was made so far from the garbage collector, which stays on.

    Otherwise a pass over it falls into the timed part: 22 to 34 ms once in 5 s, in a process that
    has done no more than import the engine and connect.
    """
    gc.collect()
    gc.freeze()


def stand_ready(word: bytes) -> None:
    """Freeze, and only then write `word`: what comes after it is timed."""
    freeze()
    say(word)


def resident_mib(name: str = "VmHWM", process_id: int | str = "self") -> float:
    """Return the most that a process ever had resident, with `VmRSS` what it has now.

    (`ru_maxrss` would hold what the parent had, too.) Raises RunFailed where the system has no
    such figure.
    """
    status = Path(f"/proc/{process_id}/status").read_text(encoding="utf-8")
    for line in status.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise RunFailed(f"the system does not say the {name} of process {process_id}")


def serve(works: Mapping[Callable[..., Coroutine[Any, Any, Any]], Sequence[type[Any]]]) -> None:
    """Be an end of a benchmark: do the work that the command line names, with the jobs it gets.

    It ends with what the work returns, if anything, and at the latest after the deadline of its
    first job, ten minutes where that has none.
    """
    work, kinds = next((one, kinds) for one, kinds in works.items() if one.__name__ == sys.argv[1])

    async def run() -> None:
        jobs = [msgspec.json.decode(sys.stdin.buffer.readline(), type=kind) for kind in kinds]
        async with asyncio.timeout(getattr(jobs[0], "deadline_seconds", _DEADLINE_SECONDS)):
            if (result := await work(*jobs)) is not None:
                say(result)

    uvloop.run(run())
