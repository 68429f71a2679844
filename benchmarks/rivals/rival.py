"""What every rival is to the benchmark."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from benchmarks.chains import Site
    from benchmarks.load import Load, Stored, Venue
    from orderchain.model import Event
    from sequencer import Order


class Rival(Protocol):
    """One way to get orders from one process to another: durably, in order, with none missing.

    `prepare`, `stored` and `clean_up` run in the benchmark's own process, each end in a process of
    its own.
    """

    title: str
    """For tables and figures."""
    ack: str
    """What must have happened when an order counts as durable here, in a few words."""

    def absence(self) -> str | None:
        """Return why it cannot run on this machine; None when it can."""
        ...

    async def prepare(self, site: Site, load: Load) -> dict[str, str | int]:
        """Make the table, the topic, the chain, and return their names."""
        ...

    def producer(self, venue: Venue) -> Producer:
        """Return the sending end, to be entered."""
        ...

    def receiver(self, venue: Venue, tally: Tally) -> Receiver:
        """Return the receiving end, to be entered; it hands every order to `tally`."""
        ...

    async def stored(self, venue: Venue) -> Stored:
        """Return what is stored durably. Raises NotWhole when its order is broken."""
        ...

    async def clean_up(self, venue: Venue) -> None:
        """Remove what the run left, so that the next one finds the same disk."""
        ...


class Producer(Protocol):
    """The sending end."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def ready(self, batches: Sequence[list[Order]]) -> Sequence[Any]:
        """Return the batches as `send` takes them. It is not timed: only the bare pipes encode."""
        ...

    async def send(self, batches: Sequence[Any]) -> None:
        """Send, and return when all orders are durable."""
        ...

    async def settle(self) -> None:
        """Return when the broker has acknowledged all of them."""
        ...


class Receiver(Protocol):
    """The receiving end; once entered, it misses no order that is sent."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    async def receive(self, until_rows: int) -> None:
        """Hand orders to the tally until it counts `until_rows`."""
        ...


class NotWhole(Exception):
    """A run that lost, repeated or swapped orders: it has no figure."""


class Tally:
    """Counts what was handed on, as the service that a receiver feeds would take it."""

    def __init__(self, *, is_kept: bool) -> None:
        self.rows = 0
        self.last_id = 0
        self.notes: dict[str, float] = {}
        self._kept: list[Event] | None = [] if is_kept else None

    def take(self, events: Sequence[Event]) -> None:
        """Take rows that were handed on together. Raises NotWhole where they do not follow."""
        if events[0].pid != self.last_id:
            raise NotWhole(f"order {events[0].id} follows {self.last_id}")
        self.rows += len(events)
        self.last_id = events[-1].id
        if self._kept is not None:
            self._kept += events

    def digest(self) -> str:
        """Return the SHA-256 over the orders that were kept, empty where none were."""
        return "" if self._kept is None else digest_of(self._kept)


def digest_of(orders: Sequence[Order] | Sequence[Event]) -> str:
    """Return the SHA-256 over keys, times and payloads, in their order."""
    found = hashlib.sha256()
    for order in orders:
        found.update(f"{order.key} {order.event_time_ns} {len(order.payload)} ".encode())
        found.update(order.payload)
    return found.hexdigest()
