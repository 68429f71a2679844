"""The database servers that one address names: each session finds its own.

Once a standby was promoted and the old primary comes back, two of them say that they are primary.
"""

from random import Random
from typing import Final, NamedTuple

from chain_kernel.model import ServerIdentity
from chain_kernel.testing.memory_store import MemoryDatabase
from tests.doubles.wire import WiredServer

_LATE_SHARE: Final = 0.1
"""Share of connects for which the newest of several servers answers too late."""


class Host(NamedTuple):
    """A server, and what is stored there."""

    database: MemoryDatabase
    server: WiredServer

    @property
    def timeline(self) -> int:
        """That of the log which it writes."""
        return self.database.server.timeline


class Hosts:
    """The servers in the order in which they became primaries."""

    def __init__(self, first: Host, random: Random) -> None:
        self._hosts = [first]
        self._random = random

    def add(self, promoted: Host) -> None:
        """Have another one that says that it is the primary."""
        self._hosts.append(promoted)

    @property
    def first(self) -> Host:
        """The one that was a primary before all others."""
        return self._hosts[0]

    @property
    def newest(self) -> Host:
        """The one that was promoted last, whether it answers or not.

        Readers come to it: one that reaches only the old primary is not in the world.
        """
        return self._hosts[-1]

    def find_newest(self) -> Host:
        """Return where a session comes to that asks all, and takes the highest timeline."""
        answering = self._answering()
        if len(answering) > 1 and self._random.random() < _LATE_SHARE:
            return answering[0]
        return answering[-1]

    def find(self, wanted: ServerIdentity | None = None) -> Host:
        """Return where a session comes to that passes over all but `wanted`; one of those that
        answer, where it does not, or none is wanted.
        """
        answering = self._answering()
        for host in answering:
            if host.database.server == wanted:
                return host
        return answering[0] if len(answering) == 1 else self._random.choice(answering)

    def _answering(self) -> list[Host]:
        """Return those that a connect reaches; one that it does not, where there is none."""
        there = [host for host in self._hosts if host.server.is_answering]
        return there or self._hosts[-1:]
