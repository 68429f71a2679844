"""Both histories in PostgreSQL, messages and finished deliveries, as retention works on them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec import Struct

from orderchain.sql import load_sql

if TYPE_CHECKING:
    from outbox.session import OutboxSession

SQL: Final = load_sql("outbox", "history.sql")


class PartitionSize(Struct, frozen=True):
    """A partition of both histories."""

    lower_id: UUID
    ends_at: datetime
    bytes: int


class Space(Struct, frozen=True):
    """What the outbox takes on disk, and may take."""

    bytes: int
    bytes_max: int
    """0: no bound."""

    @property
    def is_full(self) -> bool:
        """Whether nothing more is added."""
        return 0 < self.bytes_max < self.bytes


class History:
    """The histories, over a session of the caller's. Everything raises RetryError."""

    def __init__(self, session: OutboxSession) -> None:
        self._session = session

    async def extend(self, now: datetime, span_hours: int) -> None:
        """Make the partitions that are needed now and next."""
        await self._session.fetch(SQL["extend"], now, span_hours)

    async def partitions(self) -> list[PartitionSize]:
        """Return the partitions, the oldest first."""
        return [PartitionSize(*row) for row in await self._session.fetch(SQL["partitions"])]

    async def drop(self, lower_id: UUID, survivors_max: int) -> int | None:
        """Drop a partition; return how many messages survived, None where it had to stay."""
        ((survivors,),) = await self._session.fetch(SQL["drop"], lower_id, survivors_max)
        return None if survivors is None else int(survivors)

    async def trim(self, before: datetime) -> int:
        """Remove what is finished and older from the default partitions."""
        ((trimmed,),) = await self._session.fetch(SQL["trim"], before)
        return int(trimmed)

    async def measure(self, bytes_max: int | None) -> Space:
        """Measure, and refuse to add above `bytes_max`; None: above what was set last."""
        (row,) = await self._session.fetch(SQL["measure"], bytes_max)
        return Space(*row)

    async def check_durability(self) -> None:
        """Look at the server's settings once more. Raises DurabilityError, too."""
        await self._session.check_durability()
