"""Collects submitted entries until the next commit takes them: bounded, and in order."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from orderchain.errors import QueueFull

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequencer.submission import Entry


class Batcher:
    """A queue of entries with a bound in bytes, emptied one batch at a time.

    The next batch is what arrived while the last commit ran. So a single order commits at once,
    and under load the batches grow until the rate is reached.
    """

    def __init__(
        self, *, rows_max: int, bytes_max: int, queue_bytes_max: int, linger_seconds: float = 0.0
    ) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._queue_bytes_max = queue_bytes_max
        self._linger_seconds = linger_seconds
        self._entries: deque[Entry] = deque()
        # Entries that found no room, in the order of their calls. The call that makes room admits
        # them, not their own callers: a later call must not slip in between.
        self._waiting: deque[tuple[Entry, asyncio.Future[None]]] = deque()
        self._arrived = asyncio.Event()
        self._closed = False
        self.rows = 0
        self.bytes = 0

    def add_nowait(self, entry: Entry) -> None:
        """Queue `entry`. Raises QueueFull when there is no room, or others wait for it."""
        if not self.has_room(entry):
            raise QueueFull(f"{self.bytes} bytes wait for a commit")
        self._admit(entry)

    async def add(self, entry: Entry) -> None:
        """Queue `entry` as soon as there is room. If cancelled before, it was not submitted."""
        if self.has_room(entry):
            self._admit(entry)
            return
        admitted = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, admitted))
        await admitted

    def has_room(self, entry: Entry) -> bool:
        """Return whether `entry` may be queued now: it fits or nothing is queued, and none waits.

        If so, `add` does not wait.
        """
        fits = self.bytes + entry.size_bytes <= self._queue_bytes_max
        return (fits or not self._entries) and not self._waiting

    def has_full_batch(self) -> bool:
        """Return whether the next batch would not grow by waiting any longer."""
        return self.rows >= self._rows_max or self.bytes >= self._bytes_max

    async def next_batch(self) -> list[Entry]:
        """Return the entries of the next batch when there are any; none when closed and empty."""
        while not self._entries and not self._closed:
            self._arrived.clear()
            await self._arrived.wait()
        if self._linger_seconds and not self._closed:
            await self._linger()
        return self.take()

    async def _linger(self) -> None:
        """Wait for others to join the batch, but only until it is full.

        The wait counts from when the first order was queued. It includes a commit that ran in
        between, so under load this adds no wait.
        """
        deadline = self._entries[0].queued_at_seconds + self._linger_seconds
        if deadline <= asyncio.get_running_loop().time():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while not self.has_full_batch() and not self._closed:
                    self._arrived.clear()
                    await self._arrived.wait()

    def take(self) -> list[Entry]:
        """Return the entries of the next batch, at least one if any wait."""
        taken: list[Entry] = []
        rows = bytes_ = 0
        while self._entries:
            entry = self._entries[0]
            if taken and (
                rows + len(entry.orders) > self._rows_max
                or bytes_ + entry.size_bytes > self._bytes_max
            ):
                break
            taken.append(self._entries.popleft())
            rows += len(entry.orders)
            bytes_ += entry.size_bytes
        self.rows -= rows
        self.bytes -= bytes_
        self._let_in()
        return taken

    def put_back(self, entries: Sequence[Entry]) -> None:
        """Put entries that were taken back to the front, in their order."""
        self._entries.extendleft(reversed(entries))
        self.rows += sum(len(entry.orders) for entry in entries)
        self.bytes += sum(entry.size_bytes for entry in entries)
        self._arrived.set()

    def close(self) -> None:
        """Accept nothing more; entries that are queued, or wait for room, are still returned."""
        self._closed = True
        self._arrived.set()

    def fail(self, error: BaseException) -> None:
        """Answer every queued or waiting entry with `error`, and close."""
        self.close()
        while self._entries or self._waiting:
            for entry in self.take():
                entry.fail(error)

    def _admit(self, entry: Entry) -> None:
        if self._linger_seconds:
            entry.queued_at_seconds = asyncio.get_running_loop().time()
        self._entries.append(entry)
        self.rows += len(entry.orders)
        self.bytes += entry.size_bytes
        self._arrived.set()

    def _let_in(self) -> None:
        """Admit the waiting entries in order, as far as there is room."""
        while self._waiting:
            entry, admitted = self._waiting[0]
            if not admitted.cancelled():
                if self._entries and self.bytes + entry.size_bytes > self._queue_bytes_max:
                    return
                self._admit(entry)
                admitted.set_result(None)
            self._waiting.popleft()
