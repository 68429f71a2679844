"""What people do by hand to deliveries: each act is stored with who, when and why, or not done."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Struct

from orderchain.errors import SettingError
from orderchain.sql import load_sql
from outbox.message import smallest_id
from outbox.statuses import FINAL, Change, Status, sources

if TYPE_CHECKING:
    from orderchain.clients.postgres import Connection, Record

_SQL: Final = load_sql("outbox", "sql/acts.sql")

UNFINISHED: Final = _SQL["unfinished"]

Act = Literal["retry", "abandon", "resend"]

_EXPECTED: Final[dict[str, tuple[int, ...]]] = {
    "retry": sources(Change.RETRIED),
    "abandon": sources(Change.ABANDONED),
    "resend": (int(Status.INIT), int(Status.CONFIRMED)),
}

SILENT_SECONDS: Final = 300.0
"""The default of the relay's own setting."""

RELAY_SILENT_SECONDS: Final = 300.0
"""Several times the default of `upkeep_seconds`: a relay that was not seen for so long is gone."""

_TEXT_CHARACTERS_MAX: Final = 1_000
"""Bound on a reason or an actor: a sentence for a later reader, not a document."""


class DeliveryFilter(Struct, frozen=True, kw_only=True):
    """Selects deliveries; a field that is None or empty selects all."""

    message_ids: tuple[UUID, ...] = ()
    destination: str | None = None
    consumer: str | None = None
    statuses: tuple[Status, ...] = ()
    before: datetime | None = None
    """Only messages that were made earlier."""
    key: str | None = None
    """Only messages of this key; for `find` alone."""
    limit: int = 100

    def values(self) -> tuple[object, ...]:
        """Return the filter as the statements take it."""
        below = None
        if self.before is not None:
            below = smallest_id(self.before.timestamp())
        return (
            list(self.message_ids) or None,
            self.destination,
            self.consumer,
            [int(status) for status in self.statuses] or None,
            below,
            self.limit,
        )


class ListedDelivery(Struct, frozen=True, kw_only=True):
    """One delivery, as people see it."""

    message_id: UUID
    consumer: str
    """Empty if the destination asks for no confirm."""
    destination: str
    status: str
    tries: int
    next_send: datetime | None
    """When the next action falls due; None if none does."""
    topic: str | None
    partition: int | None
    offset: int | None
    last_error: str | None
    finished: datetime | None


class Changed(Struct, frozen=True, kw_only=True):
    """A delivery that an act has changed, or would change."""

    message_id: UUID
    consumer: str
    status: str
    """The status after the act; before it in a dry run."""


async def find(connection: Connection, chosen: DeliveryFilter) -> list[ListedDelivery]:
    """Return deliveries, oldest first; finished ones only if a final status is asked for."""
    found: list[Any] = []
    wanted = set(chosen.statuses)
    if chosen.message_ids or not wanted or wanted - FINAL:
        found += await connection.fetch(_SQL["pending"], *chosen.values(), chosen.key)
    if chosen.message_ids or wanted & {*FINAL, Status.CONFIRMED}:
        found += await connection.fetch(_SQL["done"], *chosen.values(), chosen.key)
    found.sort(key=lambda row: (row["message_id"], row["consumer"]))
    return [_delivery(row) for row in found[: chosen.limit]]


async def act(
    connection: Connection, what: Act, chosen: DeliveryFilter, *, actor: str, reason: str
) -> list[Changed]:
    """Do `what` to the chosen deliveries whose status allows it; all of them or none.

    Raises SettingError for an empty actor or reason, and for a key.
    """
    _refuse_key(chosen)
    actor, reason = checked_text("actor", actor), checked_text("reason", reason)
    rows = await connection.fetch(_SQL["act"], *chosen.values(), what, actor, reason)
    return [_changed(row) for row in rows]


async def would_act(connection: Connection, what: Act, chosen: DeliveryFilter) -> list[Changed]:
    """Return the deliveries that `act` would change, and change nothing."""
    _refuse_key(chosen)
    expected = {Status(number) for number in _EXPECTED[what]}
    statuses = tuple(expected & set(chosen.statuses) if chosen.statuses else expected)
    if not statuses:
        return []
    narrowed = msgspec.structs.replace(chosen, statuses=statuses)
    rows = await connection.fetch(_SQL["pending"], *narrowed.values(), None)
    return [_changed(row) for row in rows]


async def counts(connection: Connection) -> list[tuple[str, Status, int, UUID | None]]:
    """Return the number of deliveries by destination and status, with the oldest one of each."""
    rows = [*await connection.fetch(UNFINISHED), *await connection.fetch(_SQL["finished"])]
    found = [(row[0], Status(row[1]), row[2], row[3]) for row in rows]
    return sorted(found, key=lambda each: each[:2])


async def overdue(
    connection: Connection, seconds: float
) -> dict[tuple[str, Status], tuple[int, float]]:
    """Return the deliveries that nobody has sent since they fell due more than `seconds` ago.

    By destination and status: how many, and the seconds since the first of them fell due.
    """
    rows = await connection.fetch(_SQL["overdue"], seconds)
    return {(row[0], Status(row[1])): (row[2], row[3]) for row in rows}


async def relay_seen_seconds(connection: Connection) -> float:
    """Return the seconds since a relay, or `keep_outbox`, last measured the outbox.

    Every relay and message service does, each `upkeep_seconds`.
    """
    return float(await connection.fetchval(_SQL["relay_seen"]))


async def troubles(
    connection: Connection, silent_seconds: float = SILENT_SECONDS
) -> dict[str, str]:
    """Return what is wrong with destinations, by name; those without a problem are left out.

    It reports topics that relays could not use in the last minutes, and consumers that were not
    heard from for `silent_seconds` while messages waited for them for as long.
    """
    found: dict[str, list[str]] = {}
    for name, topic, reason, consumer, seconds in await connection.fetch(
        _SQL["troubles"], silent_seconds
    ):
        wrong = found.setdefault(name, [])
        if topic is not None:
            wrong.append(f"topic {topic} {reason}")
        elif seconds is None:
            wrong.append(f"nothing was ever heard of consumer {consumer}")
        else:
            wrong.append(f"nothing was heard of consumer {consumer} for {seconds:.0f} s")
    return {name: "; ".join(wrong) for name, wrong in found.items()}


async def look(connection: Connection, message_id: UUID) -> tuple[Record | None, list[Record]]:
    """Return a message and the acts on it; no message if it is unknown, or was dropped."""
    message = await connection.fetchrow(_SQL["message"], message_id)
    return message, list(await connection.fetch(_SQL["acts"], message_id))


async def failed(connection: Connection, limit: int) -> list[dict[str, Any]]:
    """Return the messages of failed businesses, newest first."""
    return [dict(row) for row in await connection.fetch(_SQL["failed"], limit)]


def _refuse_key(chosen: DeliveryFilter) -> None:
    """Raise SettingError for a key: the statement of acts ignores it, and would do too much."""
    if chosen.key is not None:
        raise SettingError("key", chosen.key, "none: find the messages, and name them by their ids")


def checked_text(field: str, text: str) -> str:
    """Return `text` without outer blanks. Raises SettingError if it says nothing."""
    stripped = text.strip()
    if not 0 < len(stripped) <= _TEXT_CHARACTERS_MAX or not stripped.isprintable():
        expected = f"1 to {_TEXT_CHARACTERS_MAX} printable characters"
        raise SettingError(field, stripped[:50], expected)
    return stripped


def _delivery(row: Record) -> ListedDelivery:
    due = row["next_send_at"]
    return ListedDelivery(
        message_id=row["message_id"],
        consumer=row["consumer"],
        destination=row["destination"],
        status=Status(row["status"]).name.lower(),
        tries=row["send_count"],
        # asyncpg reads infinity as the latest time that Python can represent.
        next_send=None if due is None or due.year == _LAST_YEAR else due,
        topic=row["topic"],
        partition=row["partition"],
        offset=row["offset"],
        last_error=row["last_error"],
        finished=row["finished_at"],
    )


def _changed(row: Record) -> Changed:
    status = Status(row["status"]).name.lower()
    return Changed(message_id=row["message_id"], consumer=row["consumer"], status=status)


_LAST_YEAR: Final = 9999
