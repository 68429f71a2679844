"""Processes of a benchmark: each gets its job as JSON, and ends with a line of figures."""

from __future__ import annotations

import subprocess
import sys
from typing import IO, TypeVar

import msgspec

_Result = TypeVar("_Result")
_DEADLINE_SECONDS = 600


class Child:
    """One process. Its stdin and stdout are pipes of ours."""

    def __init__(self, module: str, job: msgspec.Struct) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, msgspec.json.encode(job).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def wait_for(self, line: bytes) -> None:
        """Read its stdout up to `line`. Raises RuntimeError when it ends before."""
        for found in _pipe(self._process.stdout):
            if found == line + b"\n":
                return
        raise RuntimeError(f"{self._process.args} ended before {line!r}")

    def go_on(self) -> None:
        """Write the line that it waits for."""
        stdin = _pipe(self._process.stdin)
        stdin.write(b"go on\n")
        stdin.flush()

    def result(self, kind: type[_Result]) -> _Result:
        """Wait for its end and return its figures. Raises RuntimeError when it failed."""
        output, _ = self._process.communicate(timeout=_DEADLINE_SECONDS)
        if self._process.returncode:
            raise RuntimeError(f"{self._process.args} ended with {self._process.returncode}")
        return msgspec.json.decode(output.splitlines()[-1], type=kind)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise RuntimeError("no pipe")
    return stream
