"""Free TCP ports on loopback."""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING, Final

from local_stack.errors import StackError

if TYPE_CHECKING:
    from collections.abc import Collection

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
