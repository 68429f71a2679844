"""Processes of a benchmark: each gets its job as a line of JSON on stdin.

The job is not on its command line, which every user of the machine can read: jobs hold passwords.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import IO, TypeVar

import msgspec

_Result = TypeVar("_Result")
_DEADLINE_SECONDS = 600


class Child:
    """One process, which ends with a line of figures. Its stdin and stdout are pipes of ours."""

    def __init__(self, module: str, job: msgspec.Struct) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._write(msgspec.json.encode(job) + b"\n")

    def wait_for(self, line: bytes) -> None:
        """Read its stdout up to `line`. Raises RuntimeError when it ends before."""
        for found in _pipe(self._process.stdout):
            if found == line + b"\n":
                return
        raise RuntimeError(f"{self._process.args} ended before {line!r}")

    def go_on(self) -> None:
        """Write the line that it waits for."""
        self._write(b"go on\n")

    def result(self, kind: type[_Result]) -> _Result:
        """Wait for its end and return its figures. Raises RuntimeError when it failed."""
        output, _ = self._process.communicate(timeout=_DEADLINE_SECONDS)
        if self._process.returncode:
            raise RuntimeError(f"{self._process.args} ended with {self._process.returncode}")
        return msgspec.json.decode(output.splitlines()[-1], type=kind)

    def _write(self, line: bytes) -> None:
        stdin = _pipe(self._process.stdin)
        stdin.write(line)
        stdin.flush()


async def start_worker(
    module: str, job: msgspec.Struct, *arguments: str
) -> asyncio.subprocess.Process:
    """Start a process that works until it is killed, with its job; its stdout is a pipe of ours."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    if process.stdin is not None:
        process.stdin.write(msgspec.json.encode(job) + b"\n")
    return process


def job_of(kind: type[_Result]) -> _Result:
    """Return the job of this process. Call it first."""
    return msgspec.json.decode(sys.stdin.buffer.readline(), type=kind)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise RuntimeError("no pipe")
    return stream
