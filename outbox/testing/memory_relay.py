"""A sender's tables in memory, and a relay on them: stored, sent, confirmed, given up.

What becomes of a delivery is decided by the same code as for the real relay: `outbox.statuses` and
`outbox.sender.due_decisions`. Records and confirms are the real ones, byte for byte.
"""

from __future__ import annotations

import asyncio
from binascii import a2b_base64
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

import msgspec

from chain_kernel.clock import time_of
from chain_kernel.errors import OrderchainError, RetryError, SettingError
from chain_kernel.testing.memory_sql import stored_already
from chain_kernel.testing.virtual_loop import virtual_clock
from outbox.destination import OPEN_SECONDS_MAX
from outbox.errors import MessageError
from outbox.message import Message, smallest_id
from outbox.record_mac import destination_key
from outbox.records import (
    APPLIED,
    KEY_BYTES,
    MacMaker,
    common_headers,
    decode_confirms,
    is_proven,
    record_headers,
    token_of,
)
from outbox.sender.business import add, store_messages
from outbox.sender.due_decisions import (
    Answer,
    CheckRules,
    DueDelivery,
    ResendDecision,
    after_check,
    judge,
    may_ask,
    queue_wait_seconds,
    wait_seconds,
    why_given_up,
)
from outbox.sender.store import RETRY_SLACK_SECONDS, progress_of
from outbox.service.interface import Decided, MessageClient
from outbox.statuses import FINAL, SENDABLE, Change, Status, after

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from chain_kernel.testing.memory_sql import MemoryConnection, SqlDatabase
    from outbox.destination import Destination
    from outbox.records import Confirm
    from outbox.sender.due_decisions import PublishedPlace
    from outbox.testing.faults import Faults
    from outbox.testing.memory_broker import MemoryBroker

    AskMemory = Callable[[Sequence[UUID]], Awaitable[Mapping[UUID, Answer]]]
    """A sender's check endpoint."""


ROUND_SECONDS_MAX: Final = 0.5
"""How late the relay is. Virtual."""

IDLE_SECONDS: Final = 3_600.0
"""Time until it looks again if nothing is stored. A stored message wakes it."""


@dataclass
class DeliveryRow:
    """One delivery: a row of `outbox_pending`, and after its end of `outbox_done`."""

    message: Message
    consumer: str
    status: Status
    is_decided: bool
    next_send_at: float
    sender: str | None = None
    send_count: int = 0
    check_count: int = 0
    place: tuple[str, int, int] | None = None
    sent_at: float | None = None
    is_done: bool = False
    error: str | None = None

    def change(self, change: Change, *, is_final: bool = False) -> None:
        """Make a change of the table of statuses. Raises TransitionRefused."""
        self.status = after(self.status, change, is_decided=self.is_decided)
        self.is_done = is_final or self.status in FINAL


class MemoryRelay:
    """The sender's side. One message has one row per consumer."""

    def __init__(self, broker: MemoryBroker, faults: Faults) -> None:
        self.destinations: dict[str, Destination] = {}
        self.rules = CheckRules()
        self.rows: dict[tuple[UUID, str], DeliveryRow] = {}
        self._broker = broker
        self._faults = faults
        self._confirm_key = faults.random.randbytes(KEY_BYTES)
        self._asks: dict[str, AskMemory] = {}
        self._read: dict[tuple[str, int], int] = {}  # of confirm topics
        self._progress: dict[PublishedPlace, int] = {}

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left that it would do by itself."""
        return not any(self._has_to_do(row) for row in self.rows.values())

    def on_check(self, sender: str, ask: AskMemory) -> None:
        """Use `ask` for checks of the messages that `sender` has prepared and not decided."""
        self._asks[sender] = ask

    def keys(self) -> tuple[str, ...]:
        """Return the keys by which consumers know its records."""
        return tuple(destination_key(self._confirm_key, name).hex() for name in self.destinations)

    # -- what is stored ----------------------------------------------------------------------------

    async def add_many(self, connection: MemoryConnection, *columns: Any) -> list[dict[str, Any]]:  # noqa: ANN401
        """Do what the function `outbox_add_many` does, in the connection's transaction.

        Returns what is refused. Raises what the driver raises for an id that is stored already.
        """
        given = _messages(*columns[:5])
        _claim, check_text, sender = columns[5:]
        check_at = None if check_text is None else datetime.fromisoformat(check_text)
        refused = [
            {"position": position, "destination": each.destination, "payload_bytes_max": most}
            for position, each in enumerate(given, start=1)
            if (most := self._most(each)) is None or len(each.payload) > most
        ]
        if not refused:
            self._store(connection, given, check_at, sender)
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

    def _store(
        self,
        connection: MemoryConnection,
        messages: Sequence[Message],
        check_at: datetime | None,
        sender: str | None,
    ) -> None:
        rows: dict[tuple[UUID, str], DeliveryRow] = {}
        for message in messages:
            for consumer in self.destinations[message.destination].deliveries:
                key = message.message_id, consumer
                if key in self.rows or key in rows:
                    raise stored_already("message", message.message_id)
                status = Status.INIT if check_at is None else Status.PREPARED
                due = self._now() if check_at is None else check_at.timestamp()
                rows[key] = DeliveryRow(message, consumer, status, check_at is None, due, sender)

        def appear() -> None:
            self.rows.update(rows)
            self._broker.wake()

        connection.required.add(appear)

    # -- what a sender decides ---------------------------------------------------------------------

    def decide(self, change: Change, message_ids: Sequence[UUID]) -> int:
        """Commit or roll back prepared messages; return how many were undecided until now."""
        decided = set()
        for row in self._rows_of(message_ids):
            if not row.is_decided:
                row.change(change)
                row.is_decided = True
                row.next_send_at = self._now()
                decided.add(row.message.message_id)
        self._broker.wake()
        return len(decided)

    # -- rounds ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take confirms in, check, send; forever."""
        while True:
            if (idle := self._idle_seconds()) > 0:
                await self._broker.arrival(idle)
            await asyncio.sleep(self._faults.random.uniform(0.0, ROUND_SECONDS_MAX))
            self._take_confirms()
            await self._check()
            self._sweep()

    def _idle_seconds(self) -> float:
        """Return how long nothing falls due."""
        ahead = (row.next_send_at for row in self.rows.values() if self._has_to_do(row))
        return min(ahead, default=self._now() + IDLE_SECONDS) - self._now()

    def _sweep(self) -> None:
        """Send what is due, in any order, as several relays do, and what the fast path missed."""
        now = self._now()
        due: dict[UUID, list[DeliveryRow]] = {}
        for row in self.rows.values():
            if not row.is_done and row.status in SENDABLE and row.next_send_at <= now:
                due.setdefault(row.message.message_id, []).append(row)
        messages = list(due)
        self._faults.random.shuffle(messages)
        for message_id in messages:
            claimed = [row for row in due[message_id] if self._is_to_be_sent(row, now)]
            if claimed:
                self._send(claimed, now)

    def _is_to_be_sent(self, row: DeliveryRow, now: float) -> bool:
        rules = self.destinations[row.message.destination]
        seen = _as_due(row, now)
        match judge(seen, rules, self._progress):
            case ResendDecision.WAIT:
                row.next_send_at = now + queue_wait_seconds(seen, rules)
                return False
            case ResendDecision.GIVE_UP:
                row.change(Change.TRIES_USED_UP)
                row.error = row.error or why_given_up(seen, rules)
                return False
        return True

    def _send(self, claimed: Sequence[DeliveryRow], now: float) -> None:
        """Send one record for all of a message's deliveries that are due."""
        message = claimed[0].message
        rules = self.destinations[message.destination]
        if self._faults.happens("broker_away"):
            return  # which is no try: they are still due
        common = common_headers(rules, self._oldest_unfinished())
        token = None
        if rules.confirm == "required":
            token = token_of(self._confirm_key, message.message_id.bytes)
        headers = record_headers(message.message_id, message.headers, common, token)
        key = None if message.key is None else message.key.encode()
        MacMaker(self._confirm_key, rules, common).add(headers, message, key)
        record = self._broker.send(
            rules.topic, key, message.payload, headers, time_ms=int(now * 1_000)
        )
        # The last try is acknowledged: nothing becomes abnormal that a consumer would have taken.
        is_last = max(row.send_count for row in claimed) + 1 >= rules.tries_max
        is_known = is_last or not self._faults.happens("acknowledgement_lost")
        for row in claimed:
            row.next_send_at = now + wait_seconds(rules, row.send_count)
            row.send_count += 1
            row.place = (record.topic, record.partition, record.offset) if is_known else None
            if is_known:
                row.sent_at = now
                row.change(Change.ACKNOWLEDGED, is_final=rules.confirm == "none")
            else:
                row.error = "the acknowledgement was lost"

    def _take_confirms(self) -> None:
        topics = sorted({each.confirm_topic for each in self.destinations.values()} - {""})
        for place in self._broker.places(topics):
            log = self._broker.log(place)
            for record in log[self._read.get(place, 0) :]:
                self._take_confirm(record.value)
            self._read[place] = len(log)

    def _take_confirm(self, value: bytes) -> None:
        decoded = decode_confirms(value)
        if not all(self._is_proven(decoded.consumer, confirm) for confirm in decoded.confirms):
            return  # as a forged one: nothing in it counts
        for confirm in decoded.confirms:
            row = self.rows.get((UUID(bytes=confirm.message_id), decoded.consumer))
            if row is None or row.is_done or not row.is_decided:
                continue
            if confirm.kind == APPLIED:
                row.change(Change.APPLIED)
            elif row.status in SENDABLE:
                until = confirm.until_unix_ns / 1e9 + RETRY_SLACK_SECONDS
                row.next_send_at = max(row.next_send_at, until)
        self._progress |= progress_of(decoded.consumer, decoded.progress)

    def _is_proven(self, consumer: str, confirm: Confirm) -> bool:
        return is_proven(
            self._confirm_key, confirm.message_id, consumer, confirm.kind, confirm.until_unix_ns,
            confirm.proof,
        )  # fmt: skip

    # -- check-back --------------------------------------------------------------------------------

    async def _check(self) -> None:
        for sender, ask in self._asks.items():
            due = self._due_checks(sender)
            if due:
                answers = await self._answers(ask, [row.message.message_id for row in due])
                for row in due:
                    if not row.is_decided:  # the decision may have come meanwhile
                        self._checked(row, answers.get(row.message.message_id))

    def _due_checks(self, sender: str) -> list[DeliveryRow]:
        """Return what to ask about now; messages whose checks are used up become abnormal."""
        now, due = self._now(), []
        for row in self.rows.values():
            is_prepared = row.status is Status.PREPARED and row.sender == sender
            if not is_prepared or row.next_send_at > now:
                continue
            if may_ask(self.rules, row.check_count):
                due.append(row)
            else:
                row.change(Change.CHECKS_USED_UP)
        return due

    async def _answers(self, ask: AskMemory, message_ids: Sequence[UUID]) -> Mapping[UUID, Answer]:
        try:
            answers = await ask(list(dict.fromkeys(message_ids)))
        except (OrderchainError, OSError):
            return {}
        return {} if self._faults.happens("check_unanswered") else answers

    def _checked(self, row: DeliveryRow, answer: Answer | None) -> None:
        outcome = after_check(self.rules, row.check_count, answer)
        row.check_count = outcome.check_count
        if outcome.change is not None:
            self.decide(outcome.change, [row.message.message_id])
        else:
            row.next_send_at = self._now() + outcome.again_seconds

    # -- shared ------------------------------------------------------------------------------------

    def _has_to_do(self, row: DeliveryRow) -> bool:
        is_asked_about = row.status is Status.PREPARED and row.sender in self._asks
        return not row.is_done and (row.status in SENDABLE or is_asked_about)

    def _rows_of(self, message_ids: Sequence[UUID]) -> list[DeliveryRow]:
        wanted = set(message_ids)
        return [row for (message_id, _), row in self.rows.items() if message_id in wanted]

    def _oldest_unfinished(self) -> UUID:
        unfinished = [key for (key, _), row in self.rows.items() if not row.is_done]
        return min([*unfinished, smallest_id(self._now() - OPEN_SECONDS_MAX)])

    def _now(self) -> float:
        return virtual_clock().wall_ns() / 1e9


def _as_due(row: DeliveryRow, now: float) -> DueDelivery:
    topic, partition, offset = row.place or (None, None, None)
    return DueDelivery(
        message_id=row.message.message_id,
        consumer=row.consumer,
        destination=row.message.destination,
        status=row.status,
        send_count=row.send_count,
        claim_count=0,  # no relay here dies between claim and send
        topic=topic,
        partition=partition,
        offset=offset,
        sent_seconds=None if row.sent_at is None else now - row.sent_at,
        size=len(row.message.payload),
    )


def _messages(
    message_ids: Sequence[str],
    destinations: Sequence[str],
    keys: Sequence[str | None],
    headers: Sequence[str | None],
    payloads: Sequence[str],
) -> list[Message]:
    """Return what the columns of the statement `STORE` hold, which come as text."""
    own = [None if each is None else msgspec.json.decode(each) for each in headers]
    return [
        Message(UUID(message_id), destination, a2b_base64(payload), key, header)
        for message_id, destination, payload, key, header in zip(
            message_ids, destinations, payloads, keys, own, strict=True
        )
    ]


class MemoryDecisions:
    """Which messages are decided: what `outbox/sql/decision.sql` does in PostgreSQL.

    The second one to write is refused, or waits for the first.
    """

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database
        self._decided: dict[UUID, bool] = {}

    async def decide(self, connection: MemoryConnection, of_message: str) -> list[tuple[None]]:
        """Do what `outbox_decide` does."""
        message_id = UUID(of_message)
        transaction = connection.required
        await self._database.lock(transaction, ("decision", message_id))
        if (is_done := self._decided.get(message_id)) is not None:
            raise stored_already("the decision on", message_id, "done" if is_done else "not done")
        transaction.add(lambda: self._decided.__setitem__(message_id, True))
        return [(None,)]

    async def check(
        self, connection: MemoryConnection, of_message: str, wait_ms: int
    ) -> list[tuple[str]]:
        """Do what `outbox_check_decision` does."""
        message_id = UUID(of_message)
        transaction = connection.required
        try:
            async with asyncio.timeout(max(wait_ms, 1) / 1_000):
                await self._database.lock(transaction, ("decision", message_id))
        except TimeoutError:
            return [(Answer.UNKNOWN.value,)]
        if self._decided.setdefault(message_id, False):
            return [(Answer.DONE.value,)]
        return [(Answer.NOT_DONE.value,)]


class MemoryMessageClient(MessageClient):
    """Prepares, commits, rolls back and sends as one client of the service.

    An answer may be lost: it raises RetryError, and the work was done. A retry does not do it
    twice.
    """

    def __init__(
        self, sender: str, database: SqlDatabase, relay: MemoryRelay, faults: Faults
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
        now = time_of(virtual_clock().wall_ns())
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
