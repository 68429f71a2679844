"""Metrics and health of a command, served by a process of their own: strangers may reach it.

The process that works reports once a second what is to be shown (`monitor_reporting`). No stranger
shares an event loop, a lock of the interpreter or memory with the work: what strangers can take is
what this process may have. It ends when the one that works closes its socket, or dies.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from chain_kernel.clients.http_server import HttpLimits, HttpServer, connections_max
from chain_kernel.monitoring import METRICS_AGE, READY, MonitorAnswer, Sample, metrics_of, respond

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from chain_kernel.clients.http_server import Receive, Send

_Samples = TypeVar("_Samples")

LOOK_SECONDS_MAX: Final = 5.0
"""A report comes each second, also of a loop that hangs; one of that age is stale."""

_CONNECTIONS_MAX: Final = 500
"""Far more than scrapers: a crowd of 7,000 connections a second closes one after 70 ms unread."""

_MEMORY_BYTES_MAX: Final = 512 * 2**20
"""Addresses, for Python and the metrics of 1,000 chains; those of one take a tenth of it."""

_DESCRIPTORS_MAX: Final = 1_024

LENGTH_BYTES: Final = 4
"""The length of a report is sent before it, big-endian."""


class Look(Struct, Generic[_Samples], frozen=True, array_like=True):
    """The state of the parts at one instant: a report of the process that works."""

    at: float
    """The time, by the monotonic clock, which is the machine's."""
    why_not_live: str | None
    why_not_ready: str | None
    samples: _Samples
    """All as they were at `at`, packed; None where the last ones go on."""


class Pages:
    """The three pages, over the last report."""

    def __init__(self, look: Look[Raw]) -> None:
        self._rendered: asyncio.Future[tuple[MonitorAnswer, float]] | None = None
        """The samples, and when they were taken."""
        self._samples = Raw(msgspec.msgpack.encode(()))
        self._samples_at = look.at
        self._shown: tuple[tuple[float, int], MonitorAnswer] | None = None
        self.take(look)

    def take(self, look: Look[Raw]) -> None:
        """Show this from now on."""
        self._look = look
        if look.samples != _NONE:
            self._samples, self._samples_at = look.samples, look.at
            self._rendered = None

    async def __call__(self, scope: MutableMapping[str, Any], _: Receive, send: Send) -> None:
        """Answer one request."""
        age = time.monotonic() - self._look.at
        stale = f"nothing was heard of this process for {age:.0f} s"
        why_not_live = stale if age > LOOK_SECONDS_MAX else self._look.why_not_live
        metrics = self._metrics if why_not_live is None else self._metrics_of_none
        await respond(scope, send, why_not_live, self._look.why_not_ready, metrics)

    async def _metrics_of_none(self) -> MonitorAnswer:
        """Return what is known of a process that hangs: an alert asks for it."""
        age = time.monotonic() - self._samples_at
        return metrics_of([*READY.samples(False, {}), *METRICS_AGE.samples(age, {})])

    async def _metrics(self) -> MonitorAnswer:
        if self._rendered is None:  # once for all who ask
            self._rendered = asyncio.ensure_future(_rendered(self._samples, self._samples_at))
        samples, at = await asyncio.shield(self._rendered)
        # One copy a second for all who ask, and may not read. Newer samples may have come.
        key = at, int(time.monotonic() - at)
        if self._shown is None or self._shown[0] != key:
            age = metrics_of(METRICS_AGE.samples(float(key[1]), {}))
            self._shown = key, MonitorAnswer(samples.media_type, samples.body + age.body)
        return self._shown[1]


_NONE: Final = Raw(msgspec.msgpack.encode(None))


async def _rendered(samples: Raw, at: float) -> tuple[MonitorAnswer, float]:
    # In a thread: those of many chains take a second.
    page = await asyncio.to_thread(
        lambda: metrics_of(msgspec.msgpack.decode(samples, type=list[Sample]))
    )
    return page, at


async def _serve(listening: socket.socket, working: socket.socket) -> None:
    reader, _ = await asyncio.open_connection(sock=working)
    try:
        pages = Pages(await _next(reader))
        server = HttpServer(pages, _limits())
        serving = asyncio.create_task(server.serve(listening, stop_seconds=1.0))
        while not serving.done():
            pages.take(await _next(reader))
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    await serving


def _limits() -> HttpLimits:
    return HttpLimits(
        connections_max=min(_CONNECTIONS_MAX, connections_max()),
        head_bytes_max=16 * 1024,
        connection_seconds=5.0,
    )


async def _next(reader: asyncio.StreamReader) -> Look[Raw]:
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    return msgspec.msgpack.decode(await reader.readexactly(length), type=Look[Raw])


def _limit(kind: int, bound: int) -> None:
    _, hard = resource.getrlimit(kind)
    bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
    resource.setrlimit(kind, (bound, bound))


def main() -> None:
    """Serve at the socket of the number that is given; stdin is the socket to the work."""
    _limit(resource.RLIMIT_AS, _MEMORY_BYTES_MAX)
    _limit(resource.RLIMIT_NOFILE, _DESCRIPTORS_MAX)
    _limit(resource.RLIMIT_CORE, 0)
    with suppress(OSError):  # where a container bounds the memory of both, this one goes first
        Path("/proc/self/oom_score_adj").write_text("1000")
    os.set_blocking(sys.stderr.fileno(), False)  # nothing that it says may stop it
    asyncio.run(_serve(socket.socket(fileno=int(sys.argv[1])), socket.socket(fileno=0)))


if __name__ == "__main__":
    main()
