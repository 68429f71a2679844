"""The sender's side of mode 5: stores once, sends two records, and writes once more at the end.

The message is written when it is stored, and when its confirm comes back. That the broker has it is
not written: the callback service would ask for what was lost. What a crash loses between the commit
and the send was never on the broker, and nobody was asked to check it: that is the weak spot.
A relay beside it, whose sweep finds what is overdue in the table, covers it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from orderchain.clients.topic_durability import TopicDurability
from orderchain.clock import SystemClock
from orderchain.counted import counted
from orderchain.errors import OrderchainError, RetryError
from orderchain.printable import printable
from orderchain.reasons import reason_of
from orderchain.sql import load_sql
from outbox.alerts import Alerts
from outbox.business import BusinessTransaction, watched_transaction
from outbox.callback.asking import Reply
from outbox.callback.check_record import CHECKS_MAX, encode_checks
from outbox.confirm_record import APPLIED
from outbox.destination import LOSS, Destination, topics_of
from outbox.dispatch import room_of
from outbox.errors import LASTING, PartEnded
from outbox.message import Message, draw_message_ids
from outbox.message_sender import MessageSender, is_broken
from outbox.parts import Parts, uninterrupted
from outbox.proof import is_proven
from outbox.relay_stats import RelayStats
from outbox.resend import CLAIMS_MAX
from outbox.session import OutboxSession
from outbox.statuses import SENDABLE, Change, sources
from outbox.store import SQL as STORE_SQL
from outbox.store import Abnormal, Applied, RelayStore, messages_of
from outbox.topics import TopicTrouble

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from orderchain.clients.postgres import Connection, Record
    from orderchain.clock import Clock
    from outbox.callback.config import CheckedConfig
    from outbox.relay_config import RelayConfig

SQL: Final = load_sql("outbox.callback", "sender.sql")

_log = logging.getLogger(__name__)

_CHECKS: Final = "orderchain-checks"
_SENDABLE: Final = tuple(sorted(map(int, SENDABLE)))
_GIVEN_UP: Final = sources(Change.TRIES_USED_UP)


@dataclass
class CheckedStats:
    """Counters; they only rise."""

    sent: int = 0
    """Messages that the broker has acknowledged."""
    resent: int = 0
    """Of those: since the callback service asked."""
    dropped: int = 0
    """Messages that could not wait in memory, or whose commit may not last: left to the sweep, if
    there is one."""
    consumed: int = 0
    repeated: int = 0
    unknown: int = 0
    forged: int = 0
    """Confirms whose proofs were wrong."""
    abnormal: int = 0


class _Lane:
    """What waits for one destination, or is under way to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: deque[list[Message]] = deque()
        self.rows = 0
        self.some = asyncio.Event()


class CheckedSender:
    """Sends after the commit, and answers the callback service."""

    def __init__(
        self, config: RelayConfig, checked: CheckedConfig, *, clock: Clock | None = None
    ) -> None:
        self._counters = CheckedStats()
        self._config = config
        self._checked = checked
        self._clock = clock or SystemClock()
        self._store = RelayStore(config, lambda: None)
        self._session = OutboxSession(config, "mode 5")
        self._sender = MessageSender(config.kafka, config.send_seconds)
        self._alerts = Alerts(config, RelayStats())
        self._destinations: dict[str, Destination] = {}
        self._lanes: dict[str, _Lane] = {}
        self._waiting_rows = 0  # waiting or under way
        self._empty = asyncio.Event()
        self._empty.set()
        self._parts = Parts("mode 5")

    def stats(self) -> CheckedStats:
        """Return the counters as they are now."""
        return deepcopy(self._counters)

    async def start(self) -> None:
        """Connect to the database, and begin. Raises ConnectError, SchemaError, RetryError."""
        try:
            self._sender.confirm_key = await self._store.confirm_key()
            self._destinations = await self._store.destinations()
        except BaseException:
            await self._store.close()
            raise
        self._parts = Parts("mode 5")
        for name in self._destinations:
            self._lanes.setdefault(name, _Lane(name))
        for name, lane in self._lanes.items():
            self._parts.begin(f"send to {name}", self._run(lane))
        self._parts.begin("alerts", self._alerts.run())
        durability = TopicDurability(self._config.kafka, "mode-5-topics", LOSS)
        self._parts.begin("topics", durability.keep_looking(self._topics))

    def _topics(self) -> set[str]:
        return topics_of(self._destinations.values()) | {self._checked.check_topic}

    async def run(self) -> None:
        """Raise what a part has raised, when one has ended; return at a stop."""
        await self._parts.wait()

    async def stop(self) -> None:
        """Send what waits, within `stop_seconds`; also when cancelled. Never raises else."""
        await uninterrupted(self._stop())

    async def _stop(self) -> None:
        async with AsyncExitStack() as closing:
            for close in (self._store.close, self._session.close, self._sender.close):
                closing.push_async_callback(close)
            closing.push_async_callback(self._parts.end)
            with suppress(TimeoutError, PartEnded):
                async with asyncio.timeout(self._config.stop_seconds):
                    await self._parts.during(self._finished)

    async def _finished(self) -> None:
        await self._empty.wait()
        await self._alerts.finish()

    async def __aenter__(self) -> CheckedSender:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.stop()
        if kind is None:
            self._parts.check()

    @asynccontextmanager
    async def transaction(self, connection: Connection) -> AsyncIterator[BusinessTransaction]:
        """Hold a transaction on the caller's `connection`; what it adds is sent after its commit.

        A send error never comes back here. Where it is not certain that the commit will last
        nothing is sent, as in `Relay.transaction`; then only a sweep finds what was stored.

        Raises PartEnded when a part has ended; SettingError inside of a transaction.
        """
        self._parts.check()
        business = BusinessTransaction(connection, uuid4(), self._parts.check)
        async with watched_transaction(connection) as commit:
            yield business
            commit.matters = business.was_used
        if not business.messages:
            return
        if commit.is_certain or (self._config.unsafe_durability and not commit.was_cut):
            self._hand_over(business.messages)
        else:
            self._drop(len(business.messages), "their commit may not last")

    async def settle(self) -> None:
        """Return once all that was handed over is sent. Raises PartEnded."""
        await self._parts.during(self._finished)

    # ------------------------------------------------------------ what the callback service calls

    async def confirmed(
        self, consumer: str, proofs: Mapping[UUID, bytes]
    ) -> tuple[Applied, list[UUID]]:
        """Move deliveries to `consumed`, all in one statement; `proofs` are the consumer's.

        Returns what became of them, and the messages whose proofs are wrong: those stay as they
        are. Raises RetryError.
        """
        refused = [each for each in proofs if not self._is_proven(consumer, each, proofs[each])]
        self._counters.forged += len(refused)
        applied = [(each, consumer) for each in proofs.keys() - set(refused)]
        if not applied:
            return Applied(0, 0, 0, 0, 0), refused
        done = await self._store.apply(applied)
        self._counters.consumed += done.consumed
        self._counters.repeated += done.repeated
        self._counters.unknown += done.unknown
        return done, refused

    def _is_proven(self, consumer: str, message_id: UUID, proof: bytes) -> bool:
        key = self._sender.confirm_key
        return key is not None and is_proven(key, message_id.bytes, consumer, APPLIED, 0, proof)

    async def resend(self, consumer: str, message_ids: Sequence[UUID]) -> dict[UUID, Reply]:
        """Send again what is unconfirmed and may be; say what became of each.

        A message is left out where the broker did not take it: that was no try, and it is asked
        about again. Raises RetryError.
        """
        ids, token = sorted(set(message_ids)), uuid4()
        rows = await self._session.fetch(SQL["give_up"], ids, consumer, _GIVEN_UP, CLAIMS_MAX)
        self._tell_abnormal(rows)
        rows = await self._session.fetch(SQL["claim"], ids, consumer, token, _SENDABLE, CLAIMS_MAX)
        claimed = {row[0] for row in rows}
        sent = await self._send_again(consumer, claimed, token)
        replies = dict.fromkeys(ids, Reply.ENDED)
        for message_id in claimed:
            if message_id in sent:
                replies[message_id] = Reply.SENT
            else:
                del replies[message_id]
        return replies

    async def _send_again(self, consumer: str, claimed: set[UUID], token: UUID) -> set[UUID]:
        """Send what was claimed; return what the broker has taken. What can't be sent leaves it."""
        if not claimed:
            return set()
        ids = sorted(claimed)
        rows = await self._session.fetch(STORE_SQL["messages"], ids, ids[0], ids[-1])
        messages, unreadable = messages_of(rows)
        if unreadable:
            ids, reasons = sorted(unreadable), [unreadable[each] for each in sorted(unreadable)]
            names = [consumer] * len(ids)
            self._tell_abnormal(
                await self._session.fetch(STORE_SQL["give_up"], ids, names, reasons, _GIVEN_UP)
            )
        await self._know(messages)
        sent: set[UUID] = set()
        oldest = await self._store.oldest_unfinished()
        results = await self._sender.send(messages, self._destinations, oldest)
        for batch in results:
            if batch.error is None:
                sent |= {message.message_id for message in batch.messages}
        self._counters.sent += len(sent)
        self._counters.resent += len(sent)
        if sent:
            await self._session.fetch(SQL["sent"], sorted(sent), token, _SENDABLE)
        if is_broken(results):
            await self._sender.renew()
        if left := claimed - sent - set(unreadable):
            await self._store.release((message_id, token, None) for message_id in left)
        return sent

    def _tell_abnormal(self, rows: Sequence[Record]) -> None:
        if rows:
            self._counters.abnormal += len(rows)
            self._alerts.tell([Abnormal(*row) for row in rows])

    # ------------------------------------------------------------------------------ after a commit

    def _hand_over(self, messages: list[Message]) -> None:
        by_destination: dict[str, list[Message]] = {}
        for message in messages:
            by_destination.setdefault(message.destination, []).append(message)
        for name, group in by_destination.items():
            lane = self._lanes.get(name) or self._new_lane(name)
            free = self._config.waiting_rows_max - self._waiting_rows
            fitting = group[: room_of(free, lane.rows)]
            if len(fitting) < len(group):
                self._drop(len(group) - len(fitting), "they could not wait for the broker")
            if fitting:
                self._waiting_rows += len(fitting)
                lane.rows += len(fitting)
                lane.waiting.append(fitting)
                self._empty.clear()
                lane.some.set()

    def _new_lane(self, name: str) -> _Lane:
        lane = self._lanes[name] = _Lane(name)
        if self._parts.are_begun:
            self._parts.begin(f"send to {name}", self._run(lane))
        return lane

    def _drop(self, count: int, why: str) -> None:
        self._counters.dropped += count
        _log.error("left to the sweep %s: %s", counted(count, "message"), why)

    async def _run(self, lane: _Lane) -> None:
        """Send what waits for one destination, for ever."""
        while True:
            await lane.some.wait()
            lane.some.clear()
            while lane.waiting:
                left = self._take(lane)
                count = len(left)
                while left:
                    left = await self._tried(left)
                self._waiting_rows -= count
                lane.rows -= count
                if not self._waiting_rows:
                    self._empty.set()

    def _take(self, lane: _Lane) -> list[Message]:
        """Return what waits, up to a round's limit: rounds grow with the load."""
        taken, rows_max = list(lane.waiting.popleft()), self._config.send_rows_max
        while lane.waiting and len(taken) + len(lane.waiting[0]) <= rows_max:
            taken += lane.waiting.popleft()
        return taken

    async def _tried(self, messages: list[Message]) -> list[Message]:
        """Send messages; return those that are still to be sent, after a pause."""
        try:
            return await self._send(messages)
        except LASTING:
            raise
        except TopicTrouble:  # of the checks, and it was reported when it was found
            pass
        except (OrderchainError, OSError) as error:
            _log.warning("mode 5: nothing could be sent: %s", reason_of(error))
            await self._sender.renew()
        await asyncio.sleep(self._config.probe_seconds)
        return messages

    async def _send(self, messages: list[Message]) -> list[Message]:
        """Send the checks first: a check without its message is mended, the reverse is not."""
        await self._know(messages)
        topics = {self._destinations[each.destination].topic for each in messages}
        if any(self._sender.troubles.is_paused(topic) for topic in topics):
            await asyncio.sleep(self._config.probe_seconds)
            return messages
        checks = self._checks_of(messages)
        destinations = {
            _CHECKS: Destination(name=_CHECKS, topic=self._checked.check_topic, confirm="none")
        }
        oldest = await self._store.oldest_unfinished()
        for batch in await self._sender.send(checks, destinations, oldest):
            if isinstance(batch.error, TopicTrouble):
                raise batch.error
            if batch.error is not None:
                raise RetryError(f"the check record was not taken: {batch.error!r}")
        left: list[Message] = []
        results = await self._sender.send(messages, self._destinations, oldest)
        for batch in results:
            if batch.error is None:
                self._counters.sent += len(batch.messages)
                continue
            left += batch.messages
            if not isinstance(batch.error, TopicTrouble):  # which was reported when it was found
                _log.warning("mode 5: a batch was not taken: %s", printable(repr(batch.error)))
        if is_broken(results):
            await self._sender.renew()
        if left:
            await asyncio.sleep(self._config.probe_seconds)
        return left

    def _checks_of(self, messages: Sequence[Message]) -> list[Message]:
        due_ns = self._clock.wall_ns() + int(self._checked.check_seconds * 1e9)
        by_destination: dict[str, list[UUID]] = {}
        for message in messages:
            if self._destinations[message.destination].consumers:
                by_destination.setdefault(message.destination, []).append(message.message_id)
        records = []
        for name, ids in by_destination.items():
            consumers = self._destinations[name].consumers
            for begin in range(0, len(ids), CHECKS_MAX):
                part = ids[begin : begin + CHECKS_MAX]
                value = encode_checks(self._checked.sender, due_ns, consumers, part)
                (record_id,) = draw_message_ids(1)
                records.append(Message(record_id, _CHECKS, value, self._checked.sender))
        return records

    async def _know(self, messages: Sequence[Message]) -> None:
        if any(message.destination not in self._destinations for message in messages):
            self._destinations = await self._store.destinations()
