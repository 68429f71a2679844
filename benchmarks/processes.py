"""Processes of a benchmark, as its own process sees them, and as they see themselves.

A process gets its arguments as a line of JSON on stdin, never on its command line, which every user
of the machine can read: they hold passwords.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from asyncio.subprocess import PIPE
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, get_type_hints

import msgspec
import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

ROOT: Final = Path(__file__).parent.parent

_CLOSE_SECONDS: Final = 5.0
"""A process that has reported its figures hands over and closes its connections."""

_DEADLINE_SECONDS: Final = 6 * 3_600.0

_LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A line of figures holds samples and histograms; asyncio's own bound would cut it off."""


class RunFailed(Exception):
    """A process of a run ended without its figures; the text is the last line that it wrote."""


class End:
    """A process, to be entered: it gets arguments, writes words, and ends with a line of JSON."""

    process: asyncio.subprocess.Process
    close_seconds = 0.0
    """Time to close once its stdin is closed, before it is killed."""

    def __init__(
        self,
        *command: str | Path,
        name: str,
        given: Mapping[str, Any] | None = None,
        keeps_errors: bool = True,
        root: Path = ROOT,
        implementation: str = "",
    ) -> None:
        """With `keeps_errors`, its stderr is only read for the text of RunFailed.

        `implementation` says which hot functions it runs: those of this process if empty.
        """
        self._command = command
        self._name = name
        self._given = given
        self._keeps_errors = keeps_errors
        self._root = root
        chosen = {"ORDERCHAIN_IMPL": implementation} if implementation else {}
        self._environment = {**os.environ, **chosen}

    async def __aenter__(self) -> Self:
        # A session of its own: Ctrl-C is for the benchmark, which then stops its processes.
        self.process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE if self._keeps_errors else None,
            start_new_session=True,
            cwd=self._root,
            env=self._environment,
            limit=_LINE_BYTES_MAX,
        )
        if self._given is not None:
            await self.tell(msgspec.json.encode(self._given))
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

    async def result(self) -> dict[str, Any]:
        """Wait for its figures, its last line. Raises RunFailed when it ends without."""
        found: dict[str, Any] = await self.answer()
        self.close_seconds = _CLOSE_SECONDS
        return found

    async def line(self) -> bytes:
        """Wait for its next line, without the end of the line. Raises RunFailed when it ends."""
        stdout, stderr = self.process.stdout, self.process.stderr
        if written := await stdout.readline() if stdout else b"":
            return written.rstrip(b"\n")
        said = await stderr.read() if stderr else b""
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise RunFailed(f"{self._name}: {last or 'ended without a word'}")


def call(
    function: Callable[..., object],
    *,
    keeps_errors: bool = True,
    implementation: str = "",
    **given: object,
) -> End:
    """Return the call of a function in a process of its own: its module must `serve` it."""
    return End(
        *(sys.executable, "-m", function.__module__, function.__name__),
        name=function.__name__,
        given=given,
        keeps_errors=keeps_errors,
        implementation=implementation,
    )


# -- in the process --------------------------------------------------------------------------------


async def next_line() -> bytes:
    """Wait for a line from the benchmark's own process."""
    return await asyncio.to_thread(sys.stdin.buffer.readline)


def say(word: bytes | Mapping[str, Any]) -> None:
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


def resident_mib(name: str = "VmHWM") -> float:
    """Return the most that this process ever had resident, with `VmRSS` what it has now.

    (`ru_maxrss` would hold what the parent had, too.) Raises RunFailed where the system has no
    such figure.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    for line in status.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise RunFailed(f"the system does not say the {name} of this process")


def serve(*calls: Callable[..., Coroutine[Any, Any, Mapping[str, Any] | None]]) -> None:
    """Be an end of a benchmark: call the function that the command line names, and say its result.

    Its arguments are one line of JSON on stdin. A call that lasts six hours is broken off.
    """
    called = next(one for one in calls if one.__name__ == sys.argv[1])

    async def run() -> None:
        given = msgspec.json.decode(sys.stdin.buffer.readline())
        kinds = get_type_hints(called)
        arguments = {name: msgspec.convert(one, kinds[name]) for name, one in given.items()}
        async with asyncio.timeout(_DEADLINE_SECONDS):
            if (result := await called(**arguments)) is not None:
                say(result)

    uvloop.run(run())
