"""The pipes of a process that was started with them, and its signals."""

import os
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import Process
from contextlib import suppress
from signal import Signals


def stdin_of(process: Process) -> StreamWriter:
    assert process.stdin is not None
    return process.stdin


def stdout_of(process: Process) -> StreamReader:
    assert process.stdout is not None
    return process.stdout


def send_to_child(child: Process, number: Signals) -> None:
    """Send a signal to a child, unless it has ended.

    The child's own methods first check whether it has ended. asyncio does not learn what they find,
    and returns 255 as the exit status. A signal to its number checks nothing.
    """
    if child.returncode is None:
        with suppress(ProcessLookupError):  # about to be noticed
            os.kill(child.pid, number)
