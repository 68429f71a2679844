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
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from local_stack.errors import StackError

if TYPE_CHECKING:
    import signal
    from asyncio.subprocess import Process as AsyncioProcess
    from collections.abc import Callable, Collection, Mapping, Sequence

    from local_stack.folders import Account


_PROC: Final = Path("/proc")
_BOOT_ID: Final = _PROC / "sys/kernel/random/boot_id"
_POLL_S: Final = 0.02
_PS_DEADLINE_S: Final = 10.0


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One process; its number may be used again, its start may not."""

    process_id: int
    started: str
    """When it started, as the system reports it; on Linux with the boot, since its clock starts
    again with each boot."""


def identify(process_id: int) -> ProcessIdentity | None:
    """The process that has this id now; None without one, or for a dead one not yet reaped."""
    started = _started_linux(process_id) if _BOOT_ID.exists() else _started_ps(process_id)
    return None if started is None else ProcessIdentity(process_id=process_id, started=started)


def is_running(process: ProcessIdentity) -> bool:
    """Whether this very process is still there (a stopped one is)."""
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


def send_to_child(
    child: AsyncioProcess, number: signal.Signals, *, whole_session: bool = False
) -> None:
    """Send a signal to a child of asyncio, unless it has ended.

    With `whole_session`, for a child that was started in a session of its own, it also reaches what
    the child has started.

    The child's own methods first check whether it has ended. asyncio does not learn what they find,
    and returns 255 as the exit status. A signal to its number checks nothing.
    """
    if child.returncode is None:
        with suppress(ProcessLookupError):  # about to be noticed
            (os.killpg if whole_session else os.kill)(child.pid, number)


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
    pairs = _parents_linux() if _BOOT_ID.exists() else _parents_ps()
    found = (identify(child) for child, parent in pairs if parent == process.process_id)
    return [child for child in found if child is not None]


def _stat_fields(process_id: int | str) -> list[str] | None:
    """The fields of /proc/N/stat from the third on (the second may itself hold spaces and
    brackets)."""
    try:
        text = (_PROC / str(process_id) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _started_linux(process_id: int) -> str | None:
    fields = _stat_fields(process_id)
    if fields is None or fields[0] in "ZX":
        return None
    return f"{_BOOT_ID.read_text(encoding='ascii').strip()}:{fields[19]}"


def _parents_linux() -> list[tuple[int, int]]:
    pairs = []
    for entry in _PROC.iterdir():
        fields = _stat_fields(entry.name) if entry.name.isdigit() else None
        if fields is not None:
            pairs.append((int(entry.name), int(fields[1])))
    return pairs


def _is_frozen(process_id: int) -> bool:
    if not _BOOT_ID.exists():
        return _ps("stat=", "-p", str(process_id)).strip().startswith("T")
    try:
        tasks = list((_PROC / str(process_id) / "task").iterdir())
    except OSError:
        return False  # it is ending; the caller that waits looks again
    # A thread that ends while it is looked at has no state.
    states = [_stat_fields(f"{process_id}/task/{task.name}") for task in tasks]
    return all(fields is None or fields[0] in "TtZX" for fields in states)


def _started_ps(process_id: int) -> str | None:
    state, _, started = _ps("stat=,lstart=", "-p", str(process_id)).strip().partition(" ")
    return started.strip() if started and not state.startswith("Z") else None


def _parents_ps() -> list[tuple[int, int]]:
    lines = (line.split() for line in _ps("pid=,ppid=", "-A").splitlines())
    return [(int(child), int(parent)) for child, parent in lines]


def _ps(columns: str, *which: str) -> str:
    same = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}  # the text must be so at every call
    command = ["ps", "-o", columns, *which]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=_PS_DEADLINE_S, env=same
    ).stdout


# -- free TCP ports on loopback --------------------------------------------------------------------

LOOPBACK: Final = "127.0.0.1"

_CANDIDATES: Final = range(20_000, 32_000)
"""Below the range that Linux (32768) and macOS (49152) take outgoing connections from, so that a
port in the state file is rarely taken by a passing connection when the stack starts again."""

_TRIES: Final = 200


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of loopback now (it may be taken a moment
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
