"""The decision keys of check-back in memory: what `outbox/sql/decision.sql` does in PostgreSQL."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from outbox.sender.check_back import Answer
from outbox.testing.memory_database import stored_already

if TYPE_CHECKING:
    from uuid import UUID

    from outbox.testing.memory_database import MemoryConnection, OutboxDatabase


class MemoryDecisions:
    """Which messages are decided. The second one to write is refused, or waits for the first."""

    def __init__(self, database: OutboxDatabase) -> None:
        self._database = database
        self._decided: dict[UUID, bool] = {}

    async def decide(self, connection: MemoryConnection, message_id: UUID) -> None:
        """Do what `outbox_decide` does."""
        transaction = connection.required
        await self._database.lock(transaction, ("decision", message_id))
        if (is_done := self._decided.get(message_id)) is not None:
            raise stored_already("the decision on", message_id, "done" if is_done else "not done")
        transaction.add(lambda: self._decided.__setitem__(message_id, True))

    async def check(
        self, connection: MemoryConnection, message_id: UUID, wait_ms: int
    ) -> list[tuple[str]]:
        """Do what `outbox_check_decision` does."""
        transaction = connection.required
        try:
            async with asyncio.timeout(max(wait_ms, 1) / 1_000):
                await self._database.lock(transaction, ("decision", message_id))
        except TimeoutError:
            return [(Answer.UNKNOWN.value,)]
        if self._decided.setdefault(message_id, False):
            return [(Answer.DONE.value,)]
        return [(Answer.NOT_DONE.value,)]
