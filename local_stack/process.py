"""Processes known by more than their number.

A process id alone may mean another program after a crash or a reboot. Together with its start time,
it cannot.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from local_stack.errors import StackError

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection, Mapping, Sequence

    from local_stack.folders import Account


_PROC: Final = Path("/proc")
_BOOT_ID: Final = _PROC / "sys/kernel/random/boot_id"
_POLL_S: Final = 0.02


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One process; its number may be used again, its start may not."""

    process_id: int
    started: str
    """Time of its start: ticks of a clock that starts again with each boot, and the boot."""


def identify(process_id: int) -> ProcessIdentity | None:
    """The process that has this id now; None without one, or for a dead one not yet reaped."""
    fields = stat_fields(process_id)
    if fields is None or fields[0] in "ZX":
        return None
    started = f"{_BOOT_ID.read_text(encoding='ascii').strip()}:{fields[19]}"
    return ProcessIdentity(process_id=process_id, started=started)


def is_running(process: ProcessIdentity) -> bool:
    """True if this very process is still there (a stopped one is)."""
    return identify(process.process_id) == process


def send(process: ProcessIdentity, number: signal.Signals) -> bool:
    """Send a signal, unless the process is gone. Returns whether it was there."""
    if not is_running(process):
        return False
    try:
        os.kill(process.process_id, number)
    except ProcessLookupError:
        return False
    return True


def wait_gone(process: ProcessIdentity, deadline_s: float) -> bool:
    """Wait until the process has ended. Returns False when the deadline passes first."""
    return _wait_while(lambda: is_running(process), deadline_s)


def wait_frozen(process: ProcessIdentity, deadline_s: float) -> bool:
    """Wait until a process that was sent SIGSTOP is frozen, or is gone.

    The call that sends the signal returns at once, and other threads continue until they see it:
    meanwhile a server may answer. Returns False when the deadline passes first.
    """
    return _wait_while(
        lambda: is_running(process) and not _is_frozen(process.process_id), deadline_s
    )


def _wait_while(lasts: Callable[[], bool], deadline_s: float) -> bool:
    end = time.monotonic() + deadline_s
    while lasts():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True


def launch(
    command: Sequence[str | Path], *, log: int, account: Account, environment: Mapping[str, str]
) -> ProcessIdentity | None:
    """Start a program that outlives us, in its own session, with its output appended to the
    descriptor `log`.

    Returns None when it ended before it could be looked at; its log shows why.
    """
    child = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        env=dict(environment),
        umask=0o077,
        start_new_session=True,
        **account.popen_arguments(),
    )
    # While we live, the child would remain as a zombie after its end, so a thread waits for it.
    threading.Thread(target=child.wait, name=f"reap-{child.pid}", daemon=True).start()
    return identify(child.pid)


def children_of(process: ProcessIdentity) -> list[ProcessIdentity]:
    """The direct children of a process; empty when it is gone."""
    if not is_running(process):
        return []
    found = []
    for entry in _PROC.iterdir():
        is_number = entry.name.isascii() and entry.name.isdecimal()
        fields = stat_fields(entry.name) if is_number else None
        if fields is not None and int(fields[1]) == process.process_id:
            found.append(identify(int(entry.name)))
    return [child for child in found if child is not None]


def stat_fields(process_id: int | str) -> list[str] | None:
    """The fields of /proc/N/stat from the third on (the second may itself hold spaces and
    brackets)."""
    try:
        text = (_PROC / str(process_id) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _is_frozen(process_id: int) -> bool:
    try:
        tasks = list((_PROC / str(process_id) / "task").iterdir())
    except OSError:
        return False  # it is ending; the caller that waits looks again
    # A thread that ends while it is looked at has no state.
    states = [stat_fields(f"{process_id}/task/{task.name}") for task in tasks]
    return all(fields is None or fields[0] in "TtZX" for fields in states)


# -- free TCP ports on loopback --------------------------------------------------------------------

LOOPBACK: Final = "127.0.0.1"

_CANDIDATES: Final = range(20_000, 32_000)
"""Below the range that outgoing connections come from (32768 and up), so that a port in the state
file is rarely taken by a passing connection when the stack starts again."""

_TRIES: Final = 200


def is_free(port: int) -> bool:
    """True if a server could listen on this port of loopback now (it may be taken a moment
    later)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: without it, a port would seem taken for a minute after its server closed
        # connections.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port(taken: Collection[int] = ()) -> int:
    """A free port, not one of `taken`.

    Chosen at random, so that stacks that start at the same time rarely choose the same one.
    """
    chooser = random.SystemRandom()
    for _ in range(_TRIES):
        port = chooser.choice(_CANDIDATES)
        if port not in taken and is_free(port):
            return port
    raise StackError(f"no free port found on {LOOPBACK} in {_TRIES} tries")
