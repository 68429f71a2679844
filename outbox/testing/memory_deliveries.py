"""A sender's tables, the broker and a consumer's inbox in memory.

What becomes of a delivery is decided by the same code as for the real parts: `outbox.statuses`,
`outbox.sender.due_decisions`, `outbox.consumer.decisions`. Records are the real ones, byte for
byte.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

import msgspec
from msgspec.structs import replace

from chain_kernel.clock import time_of
from chain_kernel.testing.memory_sql import stored_already
from chain_kernel.testing.virtual_loop import virtual_clock
from chain_kernel.text import text_of
from outbox.acts import DeadLetter
from outbox.consumer.attempts import Refused
from outbox.consumer.config import TrustedSenders
from outbox.consumer.decisions import (
    GiveUp,
    InboxDecision,
    StoredDelivery,
    after_failure,
    by_database,
)
from outbox.consumer.delivery import read_delivery
from outbox.consumer.inbox import REFUSED, TRIES_USED_UP, storable_error
from outbox.destination import NO_CONSUMER, OPEN_SECONDS_MAX
from outbox.message import Message, smallest_id
from outbox.records import common_headers, record_headers
from outbox.sender.business import add
from outbox.sender.due_decisions import (
    DueDelivery,
    ResendDecision,
    judge,
    queue_wait_seconds,
    wait_seconds,
)
from outbox.sender.store import RETRY_SLACK_SECONDS
from outbox.statuses import FINAL, SENDABLE, Change, Status, after
from outbox.testing.servers.kafka import SentRecord
from outbox.testing.servers.sender import _messages

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from chain_kernel.testing.memory_sql import MemoryConnection
    from outbox.consumer.config import ConsumerConfig
    from outbox.consumer.delivery import Delivery
    from outbox.destination import Destination
    from outbox.sender.due_decisions import PublishedPlace
    from outbox.testing.faults import Faults

PARTITIONS: Final = 3
"""Partitions of each topic: enough for keys to overtake each other."""


@dataclass
class DeliveryRow:
    """One delivery: a row of `outbox_pending`, and after its end of `outbox_done`."""

    message: Message
    consumer: str
    next_send_at: float
    status: Status = Status.INIT
    send_count: int = 0
    place: tuple[str, int, int] | None = None
    sent_at: float | None = None
    is_done: bool = False

    def change(self, change: Change, *, is_final: bool = False) -> None:
        """Make a change of the table of statuses. Raises TransitionRefused."""
        self.status = after(self.status, change)
        self.is_done = is_final or self.status in FINAL


class MemoryTables:
    """The sender's side: what is stored, what was sent, what has been confirmed."""

    def __init__(self, faults: Faults) -> None:
        self.destinations: dict[str, Destination] = {}
        self.rows: dict[tuple[UUID, str], DeliveryRow] = {}
        self.logs: dict[tuple[str, int], list[SentRecord]] = {}
        """The records of each partition, in their order."""
        self._faults = faults

    # -- what is stored ----------------------------------------------------------------------------

    async def add_many(self, connection: MemoryConnection, *columns: Any) -> list[dict[str, Any]]:  # noqa: ANN401
        """Do what the function `outbox_add_many` does, in the connection's transaction.

        Returns what is refused. Raises what the driver raises for an id that is stored already.
        """
        given = _messages(*columns[:5])
        refused = [
            {"position": position, "destination": each.destination, "payload_bytes_max": most}
            for position, each in enumerate(given, start=1)
            if (most := self._most(each)) is None or len(each.payload) > most
        ]
        if not refused:
            self._store(connection, given)
        return refused

    async def add_one(self, connection: MemoryConnection, *fields: Any) -> list[tuple[UUID]]:  # noqa: ANN401
        """Do what the function `outbox_add` does."""
        key, headers, message_id = [*fields[2:], None, None, None][:3]
        own = msgspec.json.decode(headers) if isinstance(headers, str) else headers
        stored = await add(
            cast("Any", connection), *fields[:2], key=key, headers=own, message_id=message_id
        )
        return [(stored,)]

    def _most(self, message: Message) -> int | None:
        known = self.destinations.get(message.destination)
        return None if known is None else known.payload_bytes_max

    def _store(self, connection: MemoryConnection, messages: Sequence[Message]) -> None:
        rows: dict[tuple[UUID, str], DeliveryRow] = {}
        for message in messages:
            for consumer in self.destinations[message.destination].deliveries:
                key = message.message_id, consumer
                if key in self.rows or key in rows:
                    raise stored_already("message", message.message_id)
                rows[key] = DeliveryRow(message, consumer, _now())
        connection.required.add(lambda: self.rows.update(rows))

    # -- what is sent ------------------------------------------------------------------------------

    def is_settled(self, consumer: str) -> bool:
        """Return whether nothing is left to send to a consumer."""
        return not any(
            row.status in SENDABLE and not row.is_done
            for row in self.rows.values()
            if row.consumer in (consumer, NO_CONSUMER)
        )

    def sweep(self, progress: dict[PublishedPlace, int]) -> None:
        """Send what is due, in any order, or give it up."""
        now, due = _now(), dict[UUID, list[DeliveryRow]]()
        for row in self.rows.values():
            if not row.is_done and row.status in SENDABLE and row.next_send_at <= now:
                due.setdefault(row.message.message_id, []).append(row)
        messages = list(due)
        self._faults.random.shuffle(messages)
        for message_id in messages:
            claimed = [row for row in due[message_id] if self._is_to_be_sent(row, now, progress)]
            if claimed:
                self._send(claimed, now)

    def _is_to_be_sent(
        self, row: DeliveryRow, now: float, progress: dict[PublishedPlace, int]
    ) -> bool:
        rules, seen = self.destinations[row.message.destination], _as_due(row, now)
        decision = judge(seen, rules, progress)
        if decision is ResendDecision.WAIT:
            row.next_send_at = now + queue_wait_seconds(seen, rules)
        elif decision is ResendDecision.GIVE_UP:
            row.change(Change.TRIES_USED_UP)
        return decision is ResendDecision.SEND

    def _send(self, claimed: Sequence[DeliveryRow], now: float) -> None:
        """Send one record for all of a message's deliveries that are due."""
        rules = self.destinations[claimed[0].message.destination]
        record = self._append(rules, claimed[0].message)
        if self._faults.happens("acknowledgement_lost"):
            record = self._append(rules, claimed[0].message)
        for row in claimed:
            row.next_send_at = now + wait_seconds(rules, row.send_count)
            row.send_count += 1
            row.place, row.sent_at = (record.topic, record.partition, record.offset), now
            row.change(Change.ACKNOWLEDGED, is_final=rules.confirm == "none")

    def _append(self, rules: Destination, message: Message) -> SentRecord:
        key = None if message.key is None else message.key.encode()
        number = self._faults.random.randrange(PARTITIONS)
        if key is not None:
            number = zlib.crc32(key) % PARTITIONS
        log = self.logs.setdefault((rules.topic, number), [])
        headers = record_headers(
            message.message_id, message.headers, common_headers(rules, self._oldest_unfinished())
        )
        record = SentRecord(rules.topic, number, len(log), key, message.payload, tuple(headers))
        log.append(record)
        return record

    def _oldest_unfinished(self) -> UUID:
        unfinished = [key for (key, _), row in self.rows.items() if not row.is_done]
        return min([*unfinished, smallest_id(_now() - OPEN_SECONDS_MAX)])

    # -- what consumers say ------------------------------------------------------------------------

    def confirm(self, message_id: UUID, consumer: str) -> None:
        """Move a delivery to `consumed` unless the confirm is lost: that of the last try is not."""
        row = self.rows.get((message_id, consumer))
        if row is None or row.is_done:
            return
        is_last = row.send_count >= self.destinations[row.message.destination].tries_max
        if is_last or not self._faults.happens("confirm_lost"):
            row.change(Change.APPLIED)

    def postpone(self, message_id: UUID, consumer: str, until_ns: int) -> None:
        """Send nothing before a consumer's own retry."""
        row = self.rows.get((message_id, consumer))
        if row is not None and row.status in SENDABLE:
            row.next_send_at = max(row.next_send_at, until_ns / 1e9 + RETRY_SLACK_SECONDS)


@dataclass
class ParkedMessage:
    """A parked message."""

    delivery: Delivery
    due_ns: int | None
    """None: it waits for an earlier message of its key."""


@dataclass
class MemoryInbox:
    """One consumer: what it has received and not finished, and what has committed."""

    consumer: str
    waiting: list[Delivery] = field(default_factory=list)
    """Received and not finished, in the order received."""
    applied: dict[UUID, Delivery] = field(default_factory=dict)
    parked: dict[UUID, ParkedMessage] = field(default_factory=dict)  # in the order of arrival
    dead: dict[UUID, DeadLetter] = field(default_factory=dict)
    alone: set[UUID] = field(default_factory=set)
    """Tried one by one: a message of their batch has failed."""
    _read: dict[tuple[str, int], int] = field(default_factory=dict)

    def progress(self) -> dict[PublishedPlace, int]:
        """Return the smallest unfinished offset of each partition."""
        found = {(self.consumer, *place): offset for place, offset in self._read.items()}
        for each in self.waiting:
            place = self.consumer, each.topic, each.partition
            found[place] = min(found[place], each.offset)
        return found

    def receive(self, config: ConsumerConfig, tables: MemoryTables) -> None:
        """Take new records in, and deal with those that are not to be worked on."""
        received_at = time_of(virtual_clock().wall_ns())
        trusted = TrustedSenders(config.trusted.confirm_topics, ())
        for place, log in tables.logs.items():
            if place[0] in config.topics:
                for record in log[self._read.get(place, 0) :]:
                    self.waiting.append(read_delivery(cast("Any", record), received_at, trusted))
                self._read[place] = len(log)
        known = () if config.idempotent else self.applied  # without an inbox nothing is known
        parked = [each.delivery for id_, each in self.parked.items() if id_ in known]
        self.finish(parked, tables)
        self.waiting = [each for each in self.waiting if self._is_work(each, known, tables)]

    def _is_work(self, delivery: Delivery, applied: Container[UUID], tables: MemoryTables) -> bool:
        message_id, head = delivery.message_id, self._head(delivery.key_bytes)
        stored = StoredDelivery(
            is_applied=message_id in applied,
            is_parked=message_id in self.parked,
            is_dead=message_id in self.dead,
            is_key_parked=head is not None,
        )
        match by_database(is_claimed=False, stored=stored):
            case InboxDecision.DONE:
                tables.confirm(message_id, self.consumer)
            case InboxDecision.PARKED | InboxDecision.KEY_PARKED:
                parked = self.parked.setdefault(message_id, ParkedMessage(delivery, None))
                tables.postpone(message_id, self.consumer, (head or parked).due_ns or 0)
            case InboxDecision.WAIT:
                return True
        return False

    def _head(self, key: bytes | None) -> ParkedMessage | None:
        """Return the first parked message of a key; None if none is parked."""
        parked = (each for each in self.parked.values() if each.delivery.key_bytes == key)
        return None if key is None else next(parked, None)

    def take(self, faults: Faults, most: int) -> list[Delivery]:
        """Return what a handler gets next: what is due, or the first messages of some keys."""
        now_ns = virtual_clock().wall_ns()
        due = [each for each in self.parked.values() if (each.due_ns or now_ns + 1) <= now_ns]
        if due:
            return [replace(min(due, key=lambda each: each.due_ns or 0).delivery)]
        heads: dict[object, Delivery] = {}
        for each in self.waiting:
            heads.setdefault(each.key_bytes or each.message_id, each)
        chosen = list(heads.values())
        faults.random.shuffle(chosen)
        if alone := [each for each in chosen if each.message_id in self.alone]:
            chosen = alone[:1]
        return [replace(each) for each in chosen[: faults.random.randint(1, most)]]

    def finish(self, deliveries: Iterable[Delivery], tables: MemoryTables) -> None:
        """Confirm messages whose effect has committed."""
        for each in deliveries:
            done = each.place, each.offset
            self.waiting = [one for one in self.waiting if (one.place, one.offset) != done]
            self._unpark(each)
            tables.confirm(each.message_id, self.consumer)

    def fail(
        self,
        deliveries: Sequence[Delivery],
        error: Exception,
        config: ConsumerConfig,
        tables: MemoryTables,
    ) -> None:
        """Park the message whose handler has failed, or make it a dead letter."""
        if len(deliveries) > 1:
            self.alone.update(each.message_id for each in deliveries)
            return
        (delivery,), now_ns = deliveries, virtual_clock().wall_ns()
        decision = after_failure(config.retries, delivery.failures, now_ns)
        text = storable_error(f"{type(error).__name__}: {text_of(error)}")
        if isinstance(error, Refused) or isinstance(decision, GiveUp):
            reason = REFUSED if isinstance(error, Refused) else TRIES_USED_UP
            self.dead[delivery.message_id] = DeadLetter(
                self.consumer, delivery.message_id, delivery.destination, delivery.topic,
                delivery.key, reason, decision.failures, text, delivery.received_at,
                time_of(now_ns), None,
            )  # fmt: skip
            self._unpark(delivery)
            return
        again = replace(delivery, failures=decision.failures)
        self.parked[delivery.message_id] = ParkedMessage(again, decision.due_ns)
        key = delivery.key_bytes
        for message_id, each in self.parked.items():
            if each.delivery is again or (key is not None and each.delivery.key_bytes == key):
                tables.postpone(message_id, self.consumer, decision.due_ns)

    def _unpark(self, delivery: Delivery) -> None:
        self.parked.pop(delivery.message_id, None)
        head = self._head(delivery.key_bytes)
        if head is not None and head.due_ns is None:
            head.due_ns = virtual_clock().wall_ns()


def _now() -> float:
    return virtual_clock().wall_ns() / 1e9


def _as_due(row: DeliveryRow, now: float) -> DueDelivery:
    topic, partition, offset = row.place or (None, None, None)
    return DueDelivery(
        message_id=row.message.message_id,
        consumer=row.consumer,
        destination=row.message.destination,
        status=row.status,
        send_count=row.send_count,
        claim_count=0,  # no process dies between claim and send
        topic=topic,
        partition=partition,
        offset=offset,
        sent_seconds=None if row.sent_at is None else now - row.sent_at,
        size=len(row.message.payload),
    )
