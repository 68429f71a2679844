"""The callback service's store in PostgreSQL."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec import Struct

from orderchain.sql import OUTBOX_CALLBACK, load_sql
from outbox.session import OutboxSession, Tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outbox.callback.config import CallbackConfig

SQL: Final = load_sql("outbox.callback", "store.sql")

WAITING: Final = 0
CONFIRMED: Final = 1

_TRIM_ROWS: Final = 10_000

_TABLES: Final = Tables("callback", SQL["version"], OUTBOX_CALLBACK)


class ClaimedDelivery(Struct, frozen=True):
    """A delivery that was claimed."""

    message_id: UUID
    consumer: str
    sender: str
    ask_count: int
    proof: bytes | None
    """The proof of its confirm, if there is one."""


class AskedDelivery(Struct, frozen=True):
    """What became of a question about a delivery."""

    message_id: UUID
    consumer: str
    is_ended: bool
    ask_count: int
    due_at: datetime
    trouble: str | None


class CallbackStore:
    """The store's statements, over one connection."""

    def __init__(self, config: CallbackConfig) -> None:
        self._config = config
        self._session = OutboxSession(config, "callback", tables=_TABLES)

    async def check(self) -> None:
        """Connect. Raises ConnectError, SchemaError, DurabilityError, RetryError."""
        await self._session.fetch(SQL["version"])

    async def add_checks(
        self,
        sender: str,
        consumers: Sequence[str],
        message_ids: Sequence[UUID],
        due_at: datetime,
        return_at: datetime,
    ) -> None:
        """Keep messages to be checked at `due_at`; a repeat changes nothing. Raises RetryError.

        Those whose confirm came first are returned from `return_at` on.
        """
        ids = sorted(set(message_ids))
        names = sorted(set(consumers))
        await self._session.fetch(SQL["add_checks"], ids, names, sender, due_at, return_at)

    async def add_confirms(
        self, confirms: Mapping[tuple[UUID, str], bytes], now: datetime, return_at: datetime
    ) -> None:
        """Keep confirms, by message and consumer, with their proofs; a repeat changes nothing."""
        ordered = sorted(confirms)
        ids = [message_id for message_id, _ in ordered]
        consumers = [consumer for _, consumer in ordered]
        proofs = [confirms[each] for each in ordered]
        await self._session.fetch(SQL["add_confirms"], ids, consumers, now, return_at, proofs)

    async def postpone(self, retries: Sequence[tuple[UUID, str, datetime]]) -> None:
        """Ask nothing about messages that their consumers have parked, before their time."""
        ids, consumers, untils = zip(*sorted(retries), strict=True)
        await self._session.fetch(SQL["postpone"], ids, consumers, untils)

    async def claim(
        self, state: int, now: datetime, token: UUID, until: datetime, rows_max: int
    ) -> list[ClaimedDelivery]:
        """Claim deliveries that are due in `state`; unfinished ones fall due again at `until`."""
        topics = self._config.confirm_topics
        rows = await self._session.fetch(SQL["claim"], now, state, token, until, rows_max, topics)
        return [ClaimedDelivery(*row) for row in rows]

    async def read_until(self, places: Mapping[tuple[str, int], datetime]) -> None:
        """Store until when partitions of confirm topics, by topic and number, were taken in."""
        ordered = sorted(places)
        await self._session.fetch(
            SQL["read_until"],
            [topic for topic, _ in ordered],
            [partition for _, partition in ordered],
            [places[place] for place in ordered],
        )

    async def asked(self, token: UUID, asked: Sequence[AskedDelivery]) -> None:
        """Write what became of questions."""
        await self._session.fetch(
            SQL["asked"],
            [each.message_id for each in asked],
            [each.consumer for each in asked],
            [each.is_ended for each in asked],
            [each.ask_count for each in asked],
            [each.due_at for each in asked],
            [each.trouble for each in asked],
            token,
        )

    async def returned(self, token: UUID, taken: Sequence[ClaimedDelivery]) -> None:
        """Write that senders know of confirms."""
        await self._session.fetch(SQL["returned"], *_columns(taken), token)

    async def refused(self, token: UUID, taken: Sequence[ClaimedDelivery], at: datetime) -> None:
        """Write that a sender does not believe confirms; it is asked from `at` on."""
        await self._session.fetch(SQL["refused"], *_columns(taken), token, at)

    async def not_returned(
        self, token: UUID, taken: Sequence[ClaimedDelivery], at: datetime, trouble: str
    ) -> None:
        """Write that a report to a sender failed, and when to retry."""
        await self._session.fetch(SQL["not_returned"], *_columns(taken), token, at, trouble)

    async def trim(self, before: UUID) -> None:
        """Forget what has ended, of messages below that id."""
        await self._session.fetch(SQL["trim"], before, _TRIM_ROWS)

    async def check_durability(self) -> None:
        """Check the server's settings again. Raises DurabilityError, RetryError."""
        await self._session.check_durability()

    async def close(self) -> None:
        """Close the connection; never raises."""
        await self._session.close()


def _columns(taken: Sequence[ClaimedDelivery]) -> tuple[list[UUID], list[str]]:
    ordered = sorted(taken, key=lambda each: (each.message_id, each.consumer))
    return [each.message_id for each in ordered], [each.consumer for each in ordered]
