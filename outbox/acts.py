"""Deliveries and dead letters as people see them, and acts on them by hand.

Deliveries are in the sender's database, dead letters in that of their consumer. Each act is stored
with who, when and why, in its own transaction, or it is not done. The role `outbox_operator` is
enough, in either database. A connection is one of asyncpg.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from chain_kernel.config import checked_text
from chain_kernel.errors import SettingError
from chain_kernel.monitoring import Metric
from chain_kernel.sql import load_sql
from outbox.message import age_seconds, smallest_id
from outbox.statuses import FINAL, Change, Status, sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from chain_kernel.clients.postgres import Connection, Record
    from chain_kernel.monitoring import Sample
    from outbox.session import OutboxSession


_SQL: Final = load_sql("outbox", "sql/acts.sql")

UNFINISHED: Final = _SQL["unfinished"]

Act = Literal["retry", "abandon", "resend"]

_TAKEN: Final[dict[str, tuple[int, ...]]] = {
    "retry": sources(Change.RETRIED),
    "abandon": (int(Status.ABNORMAL),),
    "resend": (int(Status.INIT), int(Status.CONFIRMED)),
}
"""The statuses that an act changes, unless the filter names some."""

RELAY_SILENT_SECONDS: Final = 300.0
"""Several times the default of `upkeep_seconds`: a relay that was not seen for so long is gone."""

CONSUMER_SILENT_SECONDS: Final = 300.0
"""A consumer that has read nothing for so long of what waits for it does not run, or has another
name."""


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
    """The time of the next action; None if none falls due."""
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

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics at this instant."""
        for metric in UNFINISHED_METRICS:
            labels = {"destination": self.destination, "status": self.status}
            yield from metric.samples(self, labels)


def unfinished_of(rows: Iterable[Record]) -> list[Unfinished]:
    """Return what the rows of the statement UNFINISHED say."""
    return [
        Unfinished(
            row["destination"], Status(row["status"]).name.lower(), row["deliveries"], row["oldest"]
        )
        for row in rows
    ]


UNFINISHED_METRICS: Final = (
    Metric[Unfinished](
        "orderchain_outbox_deliveries", "gauge", "Unfinished deliveries, of all relays.",
        lambda one: one.deliveries,
    ),
    Metric[Unfinished](
        "orderchain_outbox_oldest_seconds", "gauge", "Age of the oldest message of them.",
        lambda one: one.oldest_seconds(time.time()),
    ),
)  # fmt: skip
"""Gauges of the database, with the labels `destination` and `status`."""


class SilentConsumer(Struct, frozen=True):
    """A consumer that lets messages wait and says nothing."""

    destination: str
    consumer: str
    heard_at: datetime | None
    """The time at which it was last heard of; None: never."""

    def __str__(self) -> str:
        if self.heard_at is None:
            return f"nothing was ever heard of consumer {self.consumer}"
        return f"consumer {self.consumer} is silent since {self.heard_at:%Y-%m-%dT%H:%M:%SZ}"

    def samples(self) -> Iterator[Sample]:
        """Yield the metric at this instant."""
        labels = {"destination": self.destination, "consumer": self.consumer}
        return SILENT_METRIC.samples(self, labels)


SILENT_METRIC: Final = Metric[SilentConsumer](
    "orderchain_outbox_silent", "gauge",
    "1 for a consumer that was not heard of for five minutes, though messages wait for it.",
    lambda _: 1,
)  # fmt: skip
"""1 for each silent consumer, with the labels `destination` and `consumer`."""

METRICS: Final = (*UNFINISHED_METRICS, SILENT_METRIC)
"""The metrics that a relay reads from the database."""


async def find(connection: Connection, chosen: DeliveryFilter) -> list[ListedDelivery]:
    """Return deliveries, oldest first; finished ones only if a final status is asked for."""
    found: list[Any] = []
    wanted = set(chosen.statuses)
    if chosen.message_ids or not wanted or wanted - FINAL:
        found += await connection.fetch(_SQL["pending"], *chosen.values(), chosen.key)
    if chosen.message_ids or wanted & {*FINAL, Status.CONFIRMED}:
        found += await connection.fetch(_SQL["done"], *chosen.values(), chosen.key)
    found.sort(key=lambda row: (row["message_id"], row["consumer"]))
    return [
        ListedDelivery(**{**row, "status": Status(row["status"]).name.lower()})
        for row in found[: chosen.limit]
    ]


async def act(
    connection: Connection, what: Act, chosen: DeliveryFilter, *, actor: str, reason: str
) -> list[Changed]:
    """Do `what` to the chosen deliveries whose status allows it; all of them or none.

    `abandon` takes those on their way only where the filter names their statuses.
    Raises SettingError for an empty actor or reason, and for a key.
    """
    _refuse_key(chosen)
    actor, reason = checked_text("actor", actor), checked_text("reason", reason)
    rows = await connection.fetch(_SQL["act"], *chosen.values(), what, actor, reason)
    return [_changed(row) for row in rows]


async def would_act(connection: Connection, what: Act, chosen: DeliveryFilter) -> list[Changed]:
    """Return the deliveries that `act` would change, and change nothing."""
    _refuse_key(chosen)
    taken = sources(Change.ABANDONED) if what == "abandon" and chosen.statuses else _TAKEN[what]
    expected = set(map(Status, taken))
    statuses = tuple(expected & set(chosen.statuses) if chosen.statuses else expected)
    if not statuses:
        return []
    narrowed = msgspec.structs.replace(chosen, statuses=statuses)
    rows = await connection.fetch(_SQL["pending"], *narrowed.values(), None)
    return [_changed(row) for row in rows]


async def silent_consumers(source: Connection | OutboxSession) -> list[SilentConsumer]:
    """Return the consumers that let messages wait and say nothing, by destination and name.

    Raises the driver's errors, or those of a session.
    """
    return [
        SilentConsumer(*row) for row in await source.fetch(_SQL["silent"], CONSUMER_SILENT_SECONDS)
    ]


async def topic_errors(connection: Connection) -> dict[str, str]:
    """Return the topics that relays could not use in the last minutes, by destination."""
    found: dict[str, list[str]] = {}
    for name, topic, reason in await connection.fetch(_SQL["troubles"]):
        found.setdefault(name, []).append(f"topic {topic} {reason}")
    return {name: "; ".join(wrong) for name, wrong in found.items()}


COUNTED: Final = (
    "destination", "status", "deliveries", "oldest_seconds", "overdue", "overdue_seconds",
    "trouble", "silent",
)  # fmt: skip
"""The columns of `read_counts`."""


async def read_counts(connection: Connection, overdue_seconds: float) -> list[dict[str, Any]]:
    """Return how many deliveries have which status, and what is wrong, by destination."""
    found = [*await connection.fetch(UNFINISHED), *await connection.fetch(_SQL["finished"])]
    late_of = {
        tuple(row[:2]): row[2:] for row in await connection.fetch(_SQL["overdue"], overdue_seconds)
    }
    wrong, silences = await topic_errors(connection), dict[str, list[str]]()
    for silent in await silent_consumers(connection):
        silences.setdefault(silent.destination, []).append(str(silent))
    # Each relay and message service measures the outbox, every `upkeep_seconds`.
    seen_seconds = float(await connection.fetchval(_SQL["relay_seen"]))
    now = time.time()
    rows = []
    for name, status, deliveries, oldest in sorted(found, key=lambda row: (row[0], row[1])):
        late, late_seconds = late_of.get((name, status), (0, None))
        rows.append(
            _counted(
                name,
                status=Status(status).name.lower(),
                deliveries=deliveries,
                oldest_seconds=None if oldest is None else round(age_seconds(oldest, now), 3),
                overdue=late,
                overdue_seconds=late_seconds,
                trouble=wrong.get(name),
                silent="; ".join(silences.get(name, ())) or None,
            )
        )
    # A destination's topic may be missing before anything goes to it.
    idle = sorted(set(wrong) - {row["destination"] for row in rows})
    rows += [_counted(name, trouble=wrong[name]) for name in idle]
    if late_of and seen_seconds > RELAY_SILENT_SECONDS:
        rows.append(_counted(None, trouble=f"no relay was seen for {seen_seconds:.0f} s"))
    return rows


def _counted(destination: str | None, **known: object) -> dict[str, Any]:
    """Return a row of `status`; a destination without deliveries has zeros, and no status."""
    none: dict[str, Any] = dict.fromkeys(COUNTED)
    return {**none, "deliveries": 0, "overdue": 0, "destination": destination, **known}


async def look(connection: Connection, message_id: UUID) -> tuple[Record | None, list[Record]]:
    """Return a message and the acts on it; no message if it is unknown, or was dropped."""
    message = await connection.fetchrow(_SQL["message"], message_id)
    return message, list(await connection.fetch(_SQL["acts"], message_id))


async def last_acts(
    connection: Connection, since_seconds: float | None, limit: int
) -> list[Record]:
    """Return what was done by hand within a time, newest first; messages may be dropped since."""
    return list(await connection.fetch(_SQL["last_acts"], since_seconds, limit))


def _refuse_key(chosen: DeliveryFilter) -> None:
    """Raise SettingError for a key: the statement of acts ignores it, and would do too much."""
    if chosen.key is not None:
        raise SettingError("key", chosen.key, "none: find the messages, and name them by their ids")


def _changed(row: Record) -> Changed:
    status = Status(row["status"]).name.lower()
    return Changed(message_id=row["message_id"], consumer=row["consumer"], status=status)


_LETTER_SQL: Final = load_sql("outbox", "sql/dead_letter.sql")
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
    topic: str
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
    """The content of a dead letter, and the acts on it."""

    letter: DeadLetter
    topic: str
    partition: int
    offset: int
    headers: Mapping[str, bytes]
    payload: bytes
    acts: Sequence[LetterAct]


class InboxCount(Struct, frozen=True):
    """The number of messages of a consumer that wait."""

    consumer: str
    parked: int
    """For a retry, or for one before them with their key."""
    dead: int
    """For a person."""


class LetterAct(Struct, frozen=True):
    """Something a person did about a dead letter."""

    consumer: str
    act: str
    """`retry` or `abandon`."""
    actor: str
    reason: str
    acted_at: datetime


class DeadLetters:
    """The dead letters of one database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def inboxes(self) -> Sequence[InboxCount]:
        """Return what waits for each consumer, by name."""
        rows = await self._fetch("consumers")
        return [InboxCount(row["name"], row["parked"], row["dead"]) for row in rows]

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
        return [letter_of(row) for row in rows]

    async def show(self, message_id: UUID, consumer: str | None = None) -> Sequence[Content]:
        """Return what is known of one message: one entry for each consumer that gave it up."""
        acts = [LetterAct(*row) for row in await self._fetch("acts_on", message_id, consumer)]
        return [
            Content(
                letter=letter_of(row),
                topic=row["topic"],
                partition=row["topic_partition"],
                offset=row["record_offset"],
                headers=_headers.decode(row["headers"]),
                payload=row["payload"],
                acts=[act for act in acts if act.consumer == row["consumer"]],
            )
            for row in await self._fetch("show", message_id, consumer)
        ]

    async def last_acts(self, since_seconds: float | None, limit: int) -> Sequence[dict[str, Any]]:
        """Return what was done by hand within a time, newest first; also about messages that are no
        dead letters any more."""
        return [dict(row) for row in await self._fetch("last_acts", since_seconds, limit)]

    async def act(
        self, what: str, chosen: DeadLetterFilter, *, actor: str, reason: str
    ) -> Sequence[DeadLetter]:
        """Act on all that match, oldest first, each in its own transaction; return those that were.

        `retry`: a new round of tries, due at once, or in its turn within its key. A message that is
        older than the inbox is then worked on, even if it was applied so long ago: the actor is
        responsible for that. `abandon`: it is never worked on again. Raises SettingError for an
        empty actor or reason.
        """
        actor, reason = checked_text("actor", actor), checked_text("reason", reason)
        at = datetime.now(UTC)
        done = []
        for letter in reversed(await self.list(chosen)):
            if letter.abandoned_at is None:
                given = letter.consumer, letter.message_id, at, actor, reason
                if (await self._fetch(what, *given))[0][0]:
                    done.append(letter)
        return done

    async def pass_over(self, consumer: str, past: str, *, actor: str, reason: str) -> bool:
        """Store that a consumer goes past what cannot be read; false: there is no such consumer.

        Raises SettingError for an empty actor or reason.
        """
        given = consumer, past, checked_text("actor", actor), checked_text("reason", reason)
        return bool((await self._fetch("pass_over", *given))[0][0])

    async def _fetch(self, name: str, *values: object) -> Sequence[Record]:
        rows: Sequence[Record] = await self._connection.fetch(
            _LETTER_SQL[name], *values, timeout=STATEMENT_SECONDS
        )
        return rows


def letter_of(row: Mapping[str, Any]) -> DeadLetter:
    """Return the dead letter of a row of `inbox_dead`, with the name of its consumer."""
    fields = {name: row[name] for name in DeadLetter.__struct_fields__}
    if row["key"] is not None:
        fields["key"] = row["key"].decode(errors="backslashreplace")
    return DeadLetter(**fields)
