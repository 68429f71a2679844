"""How many deliveries are unfinished, and how old they are: what a relay's metrics show of them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec import Struct

from orderchain.monitoring import Metric
from outbox.acts import UNFINISHED
from outbox.message import age_seconds
from outbox.session import OutboxSession
from outbox.statuses import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from orderchain.clients.postgres import Record
    from orderchain.monitoring import Sample
    from outbox.sender.relay_config import RelayConfig


class Unfinished(Struct, frozen=True):
    """The unfinished deliveries of one destination in one status."""

    destination: str
    status: str
    deliveries: int
    oldest: UUID
    """The oldest message of them."""

    def oldest_seconds(self, now: float) -> float:
        """Return the age of the oldest message at `now`, in seconds since 1970."""
        return age_seconds(self.oldest, now)


def unfinished_of(rows: Iterable[Record]) -> list[Unfinished]:
    """Return what the rows of the statement UNFINISHED say."""
    return [
        Unfinished(
            row["destination"], Status(row["status"]).name.lower(), row["deliveries"], row["oldest"]
        )
        for row in rows
    ]


METRICS: Final = (
    Metric[Unfinished](
        "orderchain_outbox_deliveries", "gauge", "Unfinished deliveries, of all relays.",
        lambda one: one.deliveries,
    ),
    Metric[Unfinished](
        "orderchain_outbox_oldest_seconds", "gauge", "Age of the oldest message of them.",
        lambda one: one.oldest_seconds(time.time()),
    ),
)  # fmt: skip
"""What is in the database, with the labels `destination` and `status`."""

_READ_SECONDS: Final = 15.0
"""How often the deliveries are counted at most: the count reads an index entry per delivery."""


class UnfinishedDeliveries:
    """Counts the unfinished deliveries for as long as somebody looks at the samples."""

    def __init__(self, config: RelayConfig) -> None:
        self._session = OutboxSession(config, "figures")  # the others must not wait for a count
        self._is_wanted = asyncio.Event()
        self._found: list[Unfinished] = []

    def samples(self) -> Iterator[Sample]:
        """Yield what was counted last, and have it counted again; nothing at the first time."""
        self._is_wanted.set()
        for one in self._found:
            labels = {"destination": one.destination, "status": one.status}
            for metric in METRICS:
                yield from metric.samples(one, labels)

    async def run(self) -> None:
        """Count until cancelled. Raises as `OutboxSession.fetch`; then nothing is shown."""
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            try:
                self._found = unfinished_of(await self._session.fetch(UNFINISHED))
            except BaseException:
                self._found = []
                raise
            await asyncio.sleep(_READ_SECONDS)

    async def close(self) -> None:
        """Close the connection; never raises."""
        await self._session.close()
