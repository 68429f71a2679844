"""One reader of the database for all viewers: it looks while somebody watches, and sends what
changes."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from chain_kernel.clock import Backoff, SystemClock
from chain_kernel.errors import OrderchainError
from chainctl.console.state import changes, document

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from chain_kernel.clock import Clock
    from chainctl.console.state import Document, Overview

_log = logging.getLogger(__name__)

VIEWERS_MAX: Final = 50
"""Pages that are open at once, each a connection and a message per look; the oldest goes for a new
one."""

_AWAY_SECONDS: Final = (1.0, 15.0)
"""Pauses while the database is away: the first and the longest."""

_encoder: Final = msgspec.json.Encoder()


class Reader(Protocol):
    """Reads snapshots."""

    async def read(self) -> Overview:
        """Return a snapshot. Raises OrderchainError where there is none now."""
        ...


class Feed:
    """The last state, and who waits for the next one.

    While the database is away, the last state stays, with a note of how old it is and why.
    """

    def __init__(
        self,
        reader: Reader,
        refresh_seconds: float,
        reason_of: Callable[[OrderchainError], str] = str,
        clock: Clock | None = None,
    ) -> None:
        """`reason_of` makes the text of an error that viewers see."""
        self._reader = reader
        self._refresh_seconds = refresh_seconds
        self._reason_of = reason_of
        self._clock = clock or SystemClock()
        self._backoff = Backoff(*_AWAY_SECONDS)
        self._state: Document = {}
        self._read_at_ns = self._clock.monotonic_ns()
        self._number = 0
        self._changes = b""
        self._news = asyncio.Event()
        self._wanted = asyncio.Event()
        self._rests = True
        self._is_closed = False
        self._streams: dict[object, None] = {}  # the oldest first
        self.viewers = 0

    async def run(self) -> None:
        """Look while somebody watches, until cancelled."""
        while True:
            await self._wanted.wait()
            pause = await self._look()
            self._rests = False
            await asyncio.sleep(pause)
            self._rests = not self._wanted.is_set()

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        self._publish(self._state)

    async def state(self) -> Document:
        """Return a state that is not older than the pause between two looks."""
        async with self._watching():
            await self._fresh()
            return self._state

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the whole state as an event, then what changes, until closed.

        A viewer that takes its events too slowly gets the whole state again. The stream ends for a
        new one when there are VIEWERS_MAX that are younger.
        """
        async with self._watching(), self._streaming() as viewer:
            await self._fresh()
            seen = 0
            while not self._is_closed and viewer in self._streams:
                is_next = seen and seen == self._number - 1
                event = self._changes if is_next else _event("state", self._state)
                seen = self._number
                yield event
                while seen == self._number and viewer in self._streams:
                    await self._news.wait()

    async def _look(self) -> float:
        """Look once, and return how long to wait for the next look."""
        try:
            snapshot = await self._reader.read()
        except OrderchainError as error:
            if not self._backoff.tries:
                _log.warning("the database is away: %s", error)
            self._publish(self._noted(self._state, self._reason_of(error)))
            return self._backoff.next_seconds()
        if self._backoff.tries:
            _log.warning("the database is back")
        self._backoff.reset()
        self._read_at_ns = self._clock.monotonic_ns()
        self._publish(self._noted(document(snapshot), ""))
        return self._refresh_seconds

    def _noted(self, state: Document, why: str) -> Document:
        old_ns = self._clock.monotonic_ns() - self._read_at_ns if why else 0
        reader = {
            "why": why,
            "old_seconds": round(old_ns / 1e9, 1),
            "refresh_seconds": self._refresh_seconds,
        }
        return {**state, "feed": {"reader": reader}}

    def _publish(self, state: Document) -> None:
        self._changes = _event("changes", changes(self._state, state))
        self._state = state
        self._number += 1
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _fresh(self) -> None:
        """Return at once while the reader looks; else after its first look."""
        while self._rests and not self._is_closed:
            await self._news.wait()

    @asynccontextmanager
    async def _streaming(self) -> AsyncIterator[object]:
        viewer = object()
        if len(self._streams) >= VIEWERS_MAX:
            del self._streams[next(iter(self._streams))]
            self._wake()
        self._streams[viewer] = None
        try:
            yield viewer
        finally:
            self._streams.pop(viewer, None)

    @asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        self.viewers += 1
        self._wanted.set()
        try:
            yield
        finally:
            self.viewers -= 1
            if not self.viewers:
                self._wanted.clear()


def _event(name: str, content: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), _encoder.encode(content))
