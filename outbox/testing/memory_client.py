"""A client of the message service without the service; see `outbox.service.interface`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from orderchain.errors import RetryError, SettingError
from orderchain.testing.virtual_loop import virtual_clock
from outbox.errors import MessageError
from outbox.sender.business import store_messages
from outbox.service.interface import Decided, MessageClient
from outbox.statuses import Change

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from outbox.message import Message
    from outbox.testing.awkwardness import Faults
    from outbox.testing.memory_database import OutboxDatabase
    from outbox.testing.memory_relay import MemoryRelay


class MemoryMessageClient(MessageClient):
    """Prepares, commits, rolls back and sends as one client of the service.

    An answer may be lost: it raises RetryError, and the work was done. A retry does not do it
    twice.
    """

    def __init__(
        self, sender: str, database: OutboxDatabase, relay: MemoryRelay, faults: Faults
    ) -> None:
        super().__init__(["http://memory"], "no token")
        self._sender = sender
        self._database = database
        self._relay = relay
        self._faults = faults

    async def send(self, messages: Sequence[Message]) -> None:
        """See `MessageClient.send`."""
        await self._store(messages, None)

    async def prepare(self, messages: Sequence[Message]) -> None:
        """See `MessageClient.prepare`."""
        now = datetime.fromtimestamp(virtual_clock().wall_ns() / 1e9, UTC)
        await self._store(messages, now + timedelta(seconds=self._relay.rules.first_seconds))

    async def commit(self, message_ids: Sequence[UUID]) -> Decided:
        """See `MessageClient.commit`."""
        return await self._decide(Change.COMMITTED, message_ids)

    async def rollback(self, message_ids: Sequence[UUID]) -> Decided:
        """See `MessageClient.rollback`."""
        return await self._decide(Change.ROLLED_BACK, message_ids)

    async def _store(self, messages: Sequence[Message], check_at: datetime | None) -> None:
        known = {message_id for message_id, _ in self._relay.rows}
        new = [each for each in messages if each.message_id not in known]
        connection = self._database.connect()
        async with connection.transaction():
            await store_messages(
                cast("Any", connection), new, check_at=check_at, sender=self._sender
            )
        await connection.close()
        await self._answer()

    async def _decide(self, change: Change, message_ids: Sequence[UUID]) -> Decided:
        rows = [row for row in self._relay.rows.values() if row.message.message_id in message_ids]
        if len({row.message.message_id for row in rows}) < len(set(message_ids)):
            raise MessageError("message_id", "one of several", "one that was prepared")
        decided = self._relay.decide(change, message_ids)
        await self._answer()
        return Decided(decided, len(set(message_ids)) - decided)

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if self._faults.happens("check_unanswered"):
            raise RetryError("the answer of the message service was lost")

    async def _ask(self, method: str, path: str, content: object, kind: object) -> Any:  # noqa: ANN401
        raise SettingError("call", f"{method} {path}", "prepare, commit, rollback or send")
