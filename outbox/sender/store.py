"""The relay's tables."""

from __future__ import annotations

import asyncio
import logging
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec
from msgspec import Struct

from chain_kernel.clock import time_of
from chain_kernel.errors import SettingError
from chain_kernel.sql import load_sql
from chain_kernel.text import reason_of
from outbox.destination import OPEN_SECONDS_MAX, Destination
from outbox.errors import MessageError
from outbox.message import Message, check_message
from outbox.sender.due_decisions import DueDelivery, PublishedPlace
from outbox.session import OutboxSession, columns
from outbox.statuses import SENDABLE, Change, sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from chain_kernel.clients.postgres import Connection, Record
    from outbox.records import Progress
    from outbox.sender.config import RelayConfig
    from outbox.sender.send_queues import Share


SQL: Final = load_sql("outbox", "sql/store.sql")

_log = logging.getLogger(__name__)

_SENDABLE: Final = tuple(sorted(map(int, SENDABLE)))

RETRY_SLACK_SECONDS: Final = 600.0
"""Time after its retry fell due in which a parked message is not resent. The consumer has to work
on it, by default for at most 300 s, and before that on what is parked before it; and its confirm
has to travel."""


OLDEST_SECONDS: Final = 0.2
"""Least pause between two looks for the oldest unfinished message."""


HEARD_SECONDS: Final = 60.0
"""Least pause between two notes in the table that a consumer confirms."""


_BY_ID: Final = attrgetter("message_id")
_COUNTS: Final = ("consumed", "early", "late")


class BrokerAck(Struct, frozen=True, gc=False):
    """A message that the broker has acknowledged."""

    message_id: UUID
    token: UUID
    topic: str
    partition: int
    offset: int


class AbnormalDelivery(Struct, frozen=True):
    """A delivery that has become abnormal, and why."""

    message_id: UUID
    consumer: str
    destination: str
    send_count: int
    reason: str


class ConfirmOutcome(Struct, frozen=True):
    """The outcomes of the confirms of one intake."""

    consumed: int
    early: int
    """Those of them that were confirmed before the broker's acknowledgement was written."""
    late: int
    """Those of them that were abnormal until then."""
    repeated: int
    """Confirms of deliveries that were already done."""
    unknown: int
    """There is no such delivery, or it is no longer remembered."""


class RelayStore:
    """The tables, over three connections: for the sweep, for acknowledgements, for confirms."""

    def __init__(self, config: RelayConfig, woken: Callable[[], None]) -> None:
        self._sweep = OutboxSession(config, "sweep", woken)
        self._write = self.writing = OutboxSession(config, "write")
        self._confirm = OutboxSession(config, "confirm")
        self._oldest: UUID | None = None
        self._asked_at = 0.0  # by the loop's clock
        self._heard_at: dict[tuple[str, str], float] = {}  # of consumer and destination

    async def destinations(self) -> dict[str, Destination]:
        """Return every destination, by its name."""
        return _destinations(await self._sweep.fetch(SQL["destinations"]))

    async def oldest_unfinished(self) -> UUID:
        """Return an id below which no message is sent any more, at most `OLDEST_SECONDS` old.

        If it were asked for more often, it would cost one statement per send; an older answer only
        makes the inboxes of consumers keep more.
        """
        now = asyncio.get_running_loop().time()
        if self._oldest is None or now - self._asked_at >= OLDEST_SECONDS:
            ((self._oldest,),) = await self._sweep.fetch(SQL["oldest_unfinished"], OPEN_SECONDS_MAX)
            self._asked_at = now
        return self._oldest

    def sweep(self) -> Any:  # noqa: ANN401 - contextlib's own
        """Hold a transaction for a `SweepRound`, which locks and claims what is due."""
        return self._sweep.transaction()

    # ------------------------------------------------------------------ what sends have led to

    async def write_acks(self, acks: Sequence[BrokerAck], *, are_final: bool = False) -> int:
        """Write status 1, or done if no confirm is asked for; return how many had their claim.

        Each delivery decides which: its destination may have changed after it was stored.
        `are_final` is which of them to expect; the other one is written for those that are left.
        """
        left, count = sorted(acks, key=_BY_ID), 0
        for is_final in (are_final, not are_final):
            if left:
                rows = await self._write_acked(left, is_final=is_final)
                written = {row["message_id"] for row in rows}
                left = [ack for ack in left if ack.message_id not in written]
                count += len(rows)
        return count

    async def _write_acked(self, acks: Sequence[BrokerAck], *, is_final: bool) -> list[Record]:
        """Write those that the acknowledgement finishes, or only those that it does not."""
        statement = SQL["done_by_broker" if is_final else "acknowledged"]
        place = () if is_final else ("topic", "partition", "offset")
        given = columns(acks, "message_id", "token", *place)
        return await self._write.fetch(statement, *given, sources(Change.ACKNOWLEDGED))

    async def write_failures(self, failures: Iterable[tuple[UUID, UUID, str]]) -> None:
        """Write why sends failed, by message, token and reason."""
        ordered = sorted(failures)
        if ordered:
            ids, tokens, reasons = zip(*ordered, strict=True)
            await self._write.execute(SQL["failed"], ids, tokens, reasons, _SENDABLE)

    async def release(self, claims: Iterable[tuple[UUID, UUID, str | None]]) -> None:
        """Give claims back, by message and token: nothing was sent, so it was no try.

        A reason, if there is one, is stored with the delivery.
        """
        ordered = sorted(claims, key=lambda claim: claim[:2])
        if ordered:
            ids, tokens, reasons = zip(*ordered, strict=True)
            await self._write.execute(SQL["released"], ids, tokens, reasons, _SENDABLE)

    # ---------------------------------------------------------------------------------- confirms

    async def apply(
        self, confirms: Sequence[tuple[UUID, str]], *, outlives: bool = False
    ) -> ConfirmOutcome:
        """Move deliveries, by message and consumer, to `consumed`; each of them once.

        `outlives`: what was found, and not written, outlives a failover when this returns.
        """
        ordered = sorted(set(confirms))
        ids, consumers = zip(*ordered, strict=True) if ordered else ((), ())
        given = ids, consumers, sources(Change.APPLIED)
        applied = await self._confirm.fetch(SQL["applied"], *given)
        read_on = self._confirm.last
        consumed, early, late = (sum(row[name] for row in applied) for name in _COUNTS)
        repeated = len(confirms) - len(ordered)
        missing = len(ordered) - consumed
        if missing:
            rows = await self._confirm.fetch(SQL["known"], ids, consumers)
            # Those of this same statement are done by now, too.
            before = max(rows[0]["repeated"] - consumed, 0)
            repeated, missing = repeated + before, max(missing - before, 0)
        if outlives and (repeated or missing):
            await self._confirm.barrier(read_on)
        await self._hear((row["consumer"], row["destination"]) for row in applied)
        return ConfirmOutcome(consumed, early, late, repeated, missing)

    async def _hear(self, confirmed: Iterable[tuple[str, str]]) -> None:
        """Store now and then that consumers have confirmed messages to destinations."""
        now = asyncio.get_running_loop().time()
        news = sorted(
            each
            for each in confirmed
            if now - self._heard_at.get(each, -HEARD_SECONDS) >= HEARD_SECONDS
        )
        if news:
            await self._confirm.execute(SQL["heard"], *zip(*news, strict=True))
            self._heard_at.update(dict.fromkeys(news, now))

    async def postpone(self, retries: Sequence[tuple[UUID, str, int]]) -> None:
        """Resend nothing before the consumer's retry, whose time is in unix nanoseconds."""
        ids, consumers, untils = zip(*sorted(retries), strict=True)
        times = list(map(time_of, untils))
        await self._confirm.execute(
            SQL["retrying"], ids, consumers, times, RETRY_SLACK_SECONDS, _SENDABLE
        )

    async def save_progress(self, progress: dict[PublishedPlace, int]) -> None:
        """Store how far consumers have come."""
        places, offsets = zip(*sorted(progress.items()), strict=True)
        await self._confirm.execute(SQL["save_progress"], *zip(*places, strict=True), offsets)

    # ------------------------------------------------------------------------ what is kept beside

    async def confirm_key(self) -> bytes:
        """Return the key of the tokens that go with messages."""
        ((key,),) = await self._sweep.fetch(SQL["confirm_key"])
        return bytes(key)

    async def save_topic_errors(self, reasons: Mapping[str, str], over: Iterable[str]) -> None:
        """Store what is wrong with topics, by name, and which of them are usable again."""
        if reasons:
            topics = sorted(reasons)
            await self._write.execute(
                SQL["save_troubles"], topics, [reasons[topic] for topic in topics]
            )
        await self._write.execute(SQL["end_troubles"], sorted(over))

    async def close(self) -> None:
        """Close the connections; never raises."""
        for session in (self._sweep, self._write, self._confirm):
            await session.close()


class SweepRound:
    """One round of the sweep, in one transaction: what it locks, no other claims meanwhile."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def due(self, floor: datetime, share: Share) -> list[DueDelivery]:
        """Lock and return what is due, from `floor` on, for each destination its share."""
        names = sorted(share.of)
        rows = await self._connection.fetch(
            SQL["due"], floor, share.rows, _SENDABLE,
            names, [share.of[name] for name in names], share.rows_in_all,
        )  # fmt: skip
        return [DueDelivery(*row) for row in rows]

    async def now(self) -> datetime:
        """Return the time by which rows were found due."""
        found: datetime = await self._connection.fetchval(SQL["now"])
        return found

    async def destinations(self) -> dict[str, Destination]:
        """Return every destination, by its name."""
        return _destinations(await self._connection.fetch(SQL["destinations"]))

    async def progress(self) -> dict[PublishedPlace, int]:
        """Return the smallest unfinished offset of each consumer, by place."""
        rows = await self._connection.fetch(SQL["progress"])
        return {(row[0], row[1], row[2]): row[3] for row in rows}

    async def apply(self, applied: Sequence[tuple[UUID, str]]) -> int:
        """Move deliveries, by message and consumer, to `consumed`; return how many."""
        ids, consumers = zip(*applied, strict=True)
        rows = await self._connection.fetch(SQL["applied"], ids, consumers, sources(Change.APPLIED))
        return sum(row["consumed"] for row in rows)

    async def messages(
        self, due: Sequence[tuple[DueDelivery, float]]
    ) -> tuple[list[Message], dict[UUID, str]]:
        """Return the messages to be sent, and by id what is wrong with those that can't be."""
        if not due:
            return [], {}
        ids = sorted({row.message_id for row, _ in due})
        return messages_of(await self._connection.fetch(SQL["messages"], ids, ids[0], ids[-1]))

    async def claim(self, due: Sequence[tuple[DueDelivery, float]], token: UUID) -> None:
        """Claim deliveries for sending; each falls due again after its seconds."""
        await self._connection.execute(SQL["claim"], *_columns(due), token)

    async def wait(self, due: Sequence[tuple[DueDelivery, float]]) -> None:
        """Make deliveries due again after their seconds; that is no try."""
        await self._connection.execute(SQL["wait"], *_columns(due))

    async def give_up(self, due: Sequence[tuple[DueDelivery, str]]) -> list[AbnormalDelivery]:
        """Make deliveries abnormal, each with its reason unless a send has left one."""
        given = *_columns(due), sources(Change.TRIES_USED_UP)
        rows = await self._connection.fetch(SQL["give_up"], *given)
        return [AbnormalDelivery(*row) for row in rows]


def _columns(due: Sequence[tuple[DueDelivery, object]]) -> tuple[Sequence[object], ...]:
    rows, others = zip(*due, strict=True)
    return *columns(rows, "message_id", "consumer"), others


def progress_of(consumer: str, lines: Iterable[Progress]) -> dict[PublishedPlace, int]:
    """Return the progress of a consumer that one confirm record reports."""
    return {(consumer, line.topic, line.partition): line.offset for line in lines}


def _destinations(rows: Iterable[Record]) -> dict[str, Destination]:
    found: dict[str, Destination] = {}
    for row in rows:
        try:
            found[row["name"]] = msgspec.convert(dict(row), Destination)
        except (msgspec.ValidationError, SettingError) as error:
            # Set up directly in SQL. Messages to it wait; those to others must not.
            _log.error("destination %r is left out: %s", row["name"], reason_of(error))
    return found


def messages_of(rows: Iterable[Record]) -> tuple[list[Message], dict[UUID, str]]:
    """Return the messages that rows of outbox_message hold, and what is wrong with the others.

    The table refuses what could not be sent. If it still holds such a row (a dropped constraint, a
    restored copy), that row must not block the others.
    """
    messages: list[Message] = []
    unreadable: dict[UUID, str] = {}
    for row in rows:
        try:
            messages.append(_message_of(row))
        except MessageError as error:
            unreadable[row["message_id"]] = f"it can't be sent: {reason_of(error)}"
    return messages, unreadable


def _message_of(row: Record) -> Message:
    headers = headers_of(row["headers"])
    message = Message(row["message_id"], row["destination"], row["payload"], row["key"], headers)
    if headers is not None:
        check_message(message)
    return message


def headers_of(stored: str | None) -> dict[str, str] | None:
    """Return stored headers. Raises MessageError if they are not valid headers."""
    if stored is None:
        return None
    try:
        return msgspec.json.decode(stored, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError) as error:
        raise MessageError("headers", reason_of(error), "an object of names to text") from None
