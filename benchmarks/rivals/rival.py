"""What every rival is to the benchmark."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from benchmarks.chains import connected
from benchmarks.load import Stored
from orderchain.model import Event
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site
    from benchmarks.load import Load, Venue
    from orderchain.clients.database_config import DatabaseConfig
    from sequencer import Order

SQL: Final = load_sql("benchmarks.rivals", "queries.sql")


class NotWhole(Exception):
    """A run that lost, repeated or swapped orders: it has no figure."""


class Rival(ABC):
    """One way to get orders from one process to another: durably, in order, with none missing.

    Its methods run in the benchmark's own process, each end in a process of its own.
    """

    title: ClassVar[str]
    """For tables and figures."""
    ack: ClassVar[str] = "PostgreSQL's commit, fsynced; then Kafka, acks=all"
    """What must have happened when an order counts as durable here, in a few words."""
    producer: ClassVar[type[Producer]]
    receiver: ClassVar[type[Receiver]]

    def absence(self) -> str | None:
        """Return why it cannot run on this machine; None when it can."""
        return None

    @abstractmethod
    async def prepare(self, site: Site, load: Load) -> dict[str, str | int]:
        """Make the table, the topic, the chain, and return their names."""

    @abstractmethod
    async def stored(self, venue: Venue) -> Stored:
        """Return what is stored durably. Raises NotWhole when its order is broken."""

    @abstractmethod
    async def clean_up(self, venue: Venue) -> None:
        """Remove what the run left, so that the next one finds the same disk."""


class Opened(AsyncExitStack, ABC):
    """Something to be entered: it closes what `open` has entered."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    @abstractmethod
    async def open(self) -> None:
        """Connect."""


class Producer(Opened):
    """The sending end."""

    def __init__(self, venue: Venue) -> None:
        super().__init__()
        self.venue = venue
        self.last_id = 0

    def ready(self, batches: Sequence[list[Order]]) -> Sequence[Any]:
        """Return the batches as `send` takes them. It is not timed: only the bare pipes encode."""
        return batches

    @abstractmethod
    async def send(self, batches: Sequence[Any]) -> None:
        """Send, and return when all orders are durable."""

    @abstractmethod
    async def settle(self) -> None:
        """Return when the broker has acknowledged all of them."""

    def numbered(self, orders: Sequence[Order]) -> list[Event]:
        """Return `orders` as linked events, with ids and pids in the order of the calls."""
        first = self.last_id + 1
        self.last_id += len(orders)
        return linked(orders, first)


class Receiver(Opened):
    """The receiving end; once entered, it misses no order that is sent."""

    def __init__(self, venue: Venue, tally: Tally) -> None:
        super().__init__()
        self.venue = venue
        self.tally = tally

    @abstractmethod
    async def receive(self, until_rows: int) -> None:
        """Hand orders to the tally until it counts `until_rows`."""


def linked(orders: Sequence[Order], first_id: int = 1) -> list[Event]:
    """Return `orders` as events that follow each other."""
    return [
        Event(id_, id_ - 1, order.key, order.event_time_ns or 0, order.payload)
        for id_, order in enumerate(orders, first_id)
    ]


class Tally:
    """Counts what was handed on, as the service that a receiver feeds would take it."""

    def __init__(self, *, is_kept: bool = False) -> None:
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


async def stored_rows(database: DatabaseConfig, query: str, *values: object) -> Stored:
    """Count what a query of `queries.sql` finds stored. Raises NotWhole where a link is broken."""
    async with connected(database) as connection:
        row = await connection.fetchrow(SQL[query], *values)
    if row["broken"]:
        raise NotWhole(f"{row['broken']} stored orders do not follow the one before")
    return Stored(rows=row["rows"], last_id=row["last_id"] or 0)


async def execute(database: DatabaseConfig, *statements: str) -> None:
    """Execute statements on a connection of their own."""
    async with connected(database) as connection:
        for statement in statements:
            await connection.execute(statement)
