"""The pages of `--http`, and the process that serves them."""

import json
import re
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from tests.deadlines import Deadline

POLL_SECONDS = 0.02

WORKS = """
import sys
from chainctl.monitor_server import Address, watched_beside
with watched_beside(Address("127.0.0.1", 0)):
    sys.stdin.read()
"""
"""A command that is looked at, until its stdin ends: it has no part."""


def address_of(process: subprocess.Popen[str]) -> str:
    """Return where a command with `--log-format json` serves: it says that first."""
    assert process.stderr is not None
    line = json.loads(process.stderr.readline())
    found = re.fullmatch(r"metrics and health are served at (http://127\.0\.0\.1:\d+)",
                         line["message"])  # fmt: skip
    assert found, line
    return found[1]


def get(url: str) -> tuple[int, str]:
    """Return the status and the text of an answer."""
    try:
        with urlopen(url) as answer:  # noqa: S310 - ours
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def until_shown(url: str, status: int, text: str = "") -> str:
    """Wait for an answer, which may be that of a look ago; return it."""
    bound, shown = Deadline(), (0, "")
    while not (shown[0] == status and text in shown[1]):
        assert bound.left() > 0, shown
        with suppress(URLError, ConnectionError):
            shown = get(url)
        time.sleep(POLL_SECONDS)
    return shown[1]


def until_ready(address: str, status: int = 200) -> None:
    """Wait until the command at `address` is ready, or is not."""
    until_shown(f"{address}/readyz", status)


def serving_for(process_id: int, but: int = 0) -> int:
    """Return the process that serves for another one, once it is there."""
    bound = Deadline()
    while bound.left() > 0:
        for child in children_of(process_id):
            with suppress(OSError):  # it has ended
                command = Path(f"/proc/{child}/cmdline").read_bytes()
                if b"monitor_process" in command and child != but:
                    return child
        time.sleep(POLL_SECONDS)
    raise AssertionError("no process serves")


def children_of(process_id: int) -> list[int]:
    """Return its children, of all its threads: those too that ended and are not waited for."""
    children = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):  # it has ended
            if f"\nPPid:\t{process_id}\n" in status.read_text():
                children.append(int(status.parent.name))
    return children


def stranger_at(address: str) -> socket.socket:
    """Return a connection to an address that is served, which has sent nothing yet."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)))


def memory_of(process_id: int, kind: str = "VmHWM") -> int:
    """Return the most that a process has held in memory, or another kind of that, in bytes."""
    text = Path(f"/proc/{process_id}/status").read_text()
    return int(text.partition(f"{kind}:")[2].split()[0]) * 1024
