"""Dead letters of a consumer: what people see of them, and what they do about them.

Each act is stored with the name of the actor and the reason, in the transaction of the act. The
role `outbox_operator` in the consumer's database is enough. A connection is one of asyncpg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from orderchain.clock import Clock, SystemClock
from orderchain.errors import SettingError
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from orderchain.clients.postgres import Connection, Record


_SQL: Final = load_sql("outbox", "sql/dead_letter.sql")
_headers: Final = msgspec.msgpack.Decoder(dict[str, bytes])

STATEMENT_SECONDS: Final = 30.0
"""Deadline of one statement; a list of many letters takes the longest."""

LETTERS_MAX: Final = 100_000
"""Listed or acted on at once: what one call may hold in memory."""


class DeadLetter(Struct, frozen=True):
    """One message that a consumer gave up."""

    consumer: str
    message_id: UUID
    destination: str
    key: str | None
    reason: str
    """`tries used up`, `refused by the handler`, `older than the inbox`."""
    failures: int
    last_error: str
    received_at: datetime
    dead_at: datetime
    abandoned_at: datetime | None


class DeadLetterFilter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects dead letters: those that match everything that is given."""

    message_ids: tuple[UUID, ...] = ()
    """Empty: any id."""
    consumer: str | None = None
    reason: str | None = None
    key: str | None = None
    dead_before: datetime | None = None
    with_abandoned: bool = False
    limit: Annotated[int, Meta(ge=1, le=LETTERS_MAX)] = 1_000


class Content(Struct, frozen=True):
    """What a dead letter holds, and what was done about it."""

    letter: DeadLetter
    topic: str
    partition: int
    offset: int
    headers: Mapping[str, bytes]
    payload: bytes
    acts: Sequence[Act]


class Act(Struct, frozen=True):
    """Something a person did about a dead letter."""

    consumer: str
    act: str
    """`retry` or `abandon`."""
    actor: str
    reason: str
    acted_at: datetime


class DeadLetters:
    """The dead letters of one database."""

    def __init__(self, connection: Connection, clock: Clock | None = None) -> None:
        self._connection = connection
        self._clock = clock or SystemClock()

    async def list(self, chosen: DeadLetterFilter | None = None) -> list[DeadLetter]:
        """Return dead letters, newest first."""
        chosen = chosen or DeadLetterFilter()
        rows = await self._fetch(
            "list",
            chosen.consumer,
            chosen.reason,
            None if chosen.key is None else chosen.key.encode(),
            chosen.dead_before,
            chosen.with_abandoned,
            chosen.limit,
            list(chosen.message_ids) or None,
        )
        return [_letter_of(row) for row in rows]

    async def show(self, message_id: UUID, consumer: str | None = None) -> Sequence[Content]:
        """Return what is known of one message: one entry for each consumer that gave it up."""
        acts = [Act(*row) for row in await self._fetch("acts_on", message_id, consumer)]
        return [
            Content(
                letter=_letter_of(row),
                topic=row["topic"],
                partition=row["topic_partition"],
                offset=row["record_offset"],
                headers=_headers.decode(row["headers"]),
                payload=row["payload"],
                acts=[act for act in acts if act.consumer == row["consumer"]],
            )
            for row in await self._fetch("show", message_id, consumer)
        ]

    async def retry(self, letter: DeadLetter, *, actor: str, reason: str) -> bool:
        """Give a dead letter a new round of tries, due at once, or in its turn within its key.

        One that is older than the inbox is then worked on, even if it was applied so long ago: the
        actor is responsible for that. Returns False if it is no longer a dead letter.
        """
        return await self._act("retry", letter, actor, reason)

    async def abandon(self, letter: DeadLetter, *, actor: str, reason: str) -> bool:
        """End a dead letter for good: it is never worked on. False if it no longer is one."""
        return await self._act("abandon", letter, actor, reason)

    async def retry_many(
        self, chosen: DeadLetterFilter, *, actor: str, reason: str
    ) -> Sequence[DeadLetter]:
        """Retry all that match, oldest first, each in its own transaction; return them."""
        _check_act(actor, reason)
        letters = await self.list(chosen)
        return [
            letter
            for letter in reversed(letters)
            if letter.abandoned_at is None and await self.retry(letter, actor=actor, reason=reason)
        ]

    async def abandon_many(
        self, chosen: DeadLetterFilter, *, actor: str, reason: str
    ) -> Sequence[DeadLetter]:
        """Abandon all that match, oldest first, each in its own transaction; return them."""
        _check_act(actor, reason)
        letters = await self.list(chosen)
        return [
            letter
            for letter in reversed(letters)
            if letter.abandoned_at is None
            and await self.abandon(letter, actor=actor, reason=reason)
        ]

    async def _act(self, act: str, letter: DeadLetter, actor: str, reason: str) -> bool:
        """Do it in one statement, with its row in inbox_act; False if there is nothing to do."""
        _check_act(actor, reason)
        found = await self._fetch("number_of", letter.consumer)
        if not found:
            raise SettingError("consumer", letter.consumer, "one that this database knows")
        consumer_id = found[0]["consumer_id"]
        rows = await self._fetch(act, consumer_id, letter.message_id, self._now(), actor, reason)
        return bool(rows[0][0])

    async def _fetch(self, name: str, *values: object) -> Sequence[Record]:
        rows: Sequence[Record] = await self._connection.fetch(
            _SQL[name], *values, timeout=STATEMENT_SECONDS
        )
        return rows

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall_ns() / 1e9, tz=UTC)


def _check_act(actor: str, reason: str) -> None:
    for field, value in (("actor", actor), ("reason", reason)):
        if not value.strip() or "\0" in value:
            raise SettingError(field, value, "a text, for those who ask later")


def _letter_of(row: Record) -> DeadLetter:
    return DeadLetter(
        consumer=row["consumer"],
        message_id=row["message_id"],
        destination=row["destination"],
        key=None if row["key"] is None else row["key"].decode(errors="backslashreplace"),
        reason=row["reason"],
        failures=row["failures"],
        last_error=row["last_error"],
        received_at=row["received_at"],
        dead_at=row["dead_at"],
        abandoned_at=row["abandoned_at"],
    )
