"""The pipes of a process that was started with them."""

from __future__ import annotations

from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import Process


def stdin_of(process: Process) -> StreamWriter:
    assert process.stdin is not None
    return process.stdin


def stdout_of(process: Process) -> StreamReader:
    assert process.stdout is not None
    return process.stdout
