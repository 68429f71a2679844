"""The sender of mode 5: stores once, sends two records, and writes again at the end.

The message is written when it is stored, and when its confirm comes back. The broker's
acknowledgement is not written: the callback service would ask for what was lost. A message that a
crash loses between the commit and the send was never on the broker, and no one was asked to check
it: that is the weak spot. A relay alongside, whose sweep finds what is overdue in the table, covers
it.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from chain_kernel.clients.topics import TopicDurability
from chain_kernel.clock import SystemClock
from chain_kernel.errors import RetryError
from chain_kernel.sql import load_sql
from chain_kernel.text import named_reason
from outbox.callback.config import Reply
from outbox.destination import LOSS, Destination, topics_of
from outbox.errors import PartEnded
from outbox.message import Message, draw_message_ids, smallest_id
from outbox.parts import Parts, ServiceOfParts, endless
from outbox.records import APPLIED, CHECKS_MAX, encode_checks, is_proven
from outbox.sender.due_decisions import CLAIMS_MAX
from outbox.sender.message_sender import MessageSender, Sent, TopicUnusable
from outbox.sender.send_queues import ClaimedMessages, SendQueues, SentCounter, failure_text
from outbox.sender.store import SQL as STORE_SQL
from outbox.sender.store import AbnormalDelivery, ConfirmOutcome, RelayStore, messages_of
from outbox.sender.sweep import report_abnormal
from outbox.sender.transaction import BusinessTransaction, watched_transaction
from outbox.session import OutboxSession
from outbox.statuses import SENDABLE, Change, sources

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from chain_kernel.clients.postgres import Connection, Record
    from chain_kernel.clock import Clock
    from outbox.callback.config import CheckedConfig
    from outbox.sender.config import RelayConfig

SQL: Final = load_sql("outbox", "sql/checked_sender.sql")

_CHECKS: Final = "orderchain-checks"
_SENDABLE: Final = tuple(sorted(map(int, SENDABLE)))
_GIVEN_UP: Final = sources(Change.TRIES_USED_UP)


@dataclass
class CheckedStats:
    """Counters; they only rise."""

    sent: int = 0
    """Messages that the broker has acknowledged."""
    resent: int = 0
    """Those of them that were resent because the callback service asked."""
    dropped: int = 0
    """Messages that were not sent from here: they could not wait in memory, their commit may not
    last, or their send failed though the broker was there. They are left to the callback service,
    if it was asked to check them, and to the sweep, if there is one."""
    consumed: int = 0
    repeated: int = 0
    unknown: int = 0
    forged: int = 0
    """Confirms whose proofs were wrong."""
    abnormal: int = 0


class CheckedSender(ServiceOfParts):
    """Sends after the commit, and answers the callback service.

    A stop sends what waits, within `stop_seconds`.
    """

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
        self._checks = Destination(name=_CHECKS, topic=checked.check_topic, confirm="none")
        self._oldest = smallest_id(0)
        self._sent_counter = SentCounter("left to the callback service and the sweep")
        # No other process sends for now what this one holds, so it waits for broker and topic.
        self._send_queues = SendQueues(
            self._sender,
            self._sent_counter,
            self._send,
            rows_max=config.waiting_rows_max,
            round_rows_max=config.send_rows_max,
            probe_seconds=config.probe_seconds,
            keeps=True,
        )
        self._woken = asyncio.Event()
        self._parts = Parts("mode 5")

    def stats(self) -> CheckedStats:
        """Return the counters as they are now."""
        sent = self._sent_counter.sent_count + self._counters.resent
        return replace(self._counters, sent=sent, dropped=self._sent_counter.unsent_count)

    async def start(self) -> None:
        """Connect to the database, and begin. The broker may be away.

        Raises:
            ConnectError: the database refuses the login, or its certificate does not hold.
            SchemaError: the database has no outbox, or one of another version.
            DurabilityError: the database may lose what it has committed.
            RetryError: the database is away.
        """
        try:
            self._sender.confirm_key = await self._store.confirm_key()
            await self._look()
        except BaseException:
            await self._store.close()
            raise
        self._parts = Parts("mode 5")
        durability = TopicDurability(self._config.kafka, "mode-5-topics", LOSS)
        self._parts.begin("send", self._send_queues.run())
        self._parts.begin("broker", endless("broker", self._send_queues.watch_broker))
        self._parts.begin("outbox", endless("outbox", self._keep_looking))
        looking = durability.keep_looking(
            lambda: topics_of([*self._send_queues.destinations.values(), self._checks])
        )
        self._parts.begin("topics", looking)

    async def _look(self) -> None:
        self._send_queues.destinations = await self._store.destinations()
        self._oldest = await self._store.oldest_unfinished()

    async def _keep_looking(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.sweep_seconds):
                    await self._woken.wait()
            self._woken.clear()
            await self._look()

    async def _stop(self) -> None:
        async with AsyncExitStack() as closing:
            for close in (self._store.close, self._session.close, self._sender.close):
                closing.push_async_callback(close)
            closing.callback(self._sent_counter.log)
            closing.callback(self._send_queues.drop_waiting)
            closing.push_async_callback(self._parts.end)
            with suppress(TimeoutError, PartEnded):
                async with asyncio.timeout(self._config.stop_seconds):
                    await self.settle()

    @asynccontextmanager
    async def transaction(self, connection: Connection) -> AsyncIterator[BusinessTransaction]:
        """Hold a transaction on the caller's `connection`; what it adds is sent after its commit.

        A send error is never raised here. If it is not certain that the commit will last, nothing
        is sent; then only a sweep finds what was stored.

        Raises:
            PartEnded: a part has ended.
            SettingError: the connection is in a transaction.
        """
        self._parts.check()
        claim = uuid4()
        business = BusinessTransaction(connection, claim, self._parts.check)
        async with watched_transaction(connection) as commit:
            yield business
            business.check_awaited()
            commit.matters = business.was_used
        messages = business.kept(commit)
        if not (commit.is_certain or (self._config.unsafe_durability and not commit.was_cut)):
            if messages:
                self._sent_counter.give_up(len(messages), "the commit may not last")
            return
        self._send_queues.hand_over(ClaimedMessages(claim, messages))
        if not self._is_known(messages):
            self._woken.set()

    async def settle(self) -> None:
        """Return once everything handed over is sent.

        Raises:
            PartEnded: a part has ended.
        """
        await self._parts.during(self._send_queues.finish)

    # ------------------------------------------------------------ what the callback service calls

    async def confirmed(
        self, consumer: str, proofs: Mapping[UUID, bytes]
    ) -> tuple[ConfirmOutcome, list[UUID]]:
        """Move deliveries to `consumed`, all in one statement; `proofs` are the consumer's.

        Returns their outcomes, and the messages whose proofs are wrong: those stay as they
        are.

        Raises:
            RetryError: the database is away.
            SettingError: in another event loop or thread than the one that started it.
        """
        self._parts.home.check()
        key = self._sender.confirm_key
        refused = [
            each
            for each, proof in proofs.items()
            if key is None or not is_proven(key, each.bytes, consumer, APPLIED, 0, proof)
        ]
        self._counters.forged += len(refused)
        applied = [(each, consumer) for each in proofs.keys() - set(refused)]
        if not applied:
            return ConfirmOutcome(0, 0, 0, 0, 0), refused
        done = await self._store.apply(applied, outlives=True)  # see `MessageApi`
        self._counters.consumed += done.consumed
        self._counters.repeated += done.repeated
        self._counters.unknown += done.unknown
        return done, refused

    async def resend(self, consumer: str, message_ids: Sequence[UUID]) -> dict[UUID, Reply]:
        """Resend what is unconfirmed and may be resent; return the outcome of each.

        A message is left out if the broker is away or its topic cannot be used: that was no try,
        and it is asked about again.

        Raises:
            RetryError: the database is away.
            SettingError: in another event loop or thread than the one that started it.
        """
        self._parts.home.check()
        ids, token = sorted(set(message_ids)), uuid4()
        rows = await self._session.fetch(SQL["give_up"], ids, consumer, _GIVEN_UP, CLAIMS_MAX)
        read_on = self._session.last
        self._report_abnormal(rows)
        rows = await self._session.fetch(SQL["claim"], ids, consumer, token, _SENDABLE, CLAIMS_MAX)
        claimed = {row[0] for row in rows}
        tried = await self._send_again(consumer, claimed, token)
        if len(claimed) < len(ids):  # the service never asks again about what has ended
            await self._session.barrier(read_on)
        replies = dict.fromkeys(ids, Reply.ENDED)
        for message_id in claimed:
            if message_id in tried:
                replies[message_id] = Reply.SENT
            else:
                del replies[message_id]
        return replies

    async def _send_again(self, consumer: str, claimed: set[UUID], token: UUID) -> set[UUID]:
        """Send what was claimed; return what was tried. The rest is released or given up."""
        if not claimed:
            return set()
        ids = sorted(claimed)
        rows = await self._session.fetch(STORE_SQL["messages"], ids, ids[0], ids[-1])
        messages, unreadable = messages_of(rows)
        gone = claimed.difference(unreadable, (message.message_id for message in messages))
        unreadable |= dict.fromkeys(gone, "its message is gone")
        if unreadable:
            ids, reasons = sorted(unreadable), [unreadable[each] for each in sorted(unreadable)]
            names = [consumer] * len(ids)
            self._report_abnormal(
                await self._session.fetch(STORE_SQL["give_up"], ids, names, reasons, _GIVEN_UP)
            )
        if not self._is_known(messages):
            await self._look()
        groups: dict[str, list[Message]] = {}
        for message in messages:
            groups.setdefault(message.destination, []).append(message)
        known, oldest = self._send_queues.destinations, await self._store.oldest_unfinished()
        tries = [
            self._try(known[name], group, oldest) for name, group in groups.items() if name in known
        ]
        results = [each for some in await asyncio.gather(*tries) for each in some]
        sent = {
            message.message_id
            for each in results
            if each.error is None
            for message in each.messages
        }
        failed = {
            message.message_id: failure_text(each.error)
            for each in results
            if each.error is not None
            for message in each.messages
        }
        self._counters.resent += len(sent)
        if sent:
            await self._session.fetch(SQL["sent"], sorted(sent), token, _SENDABLE)
        await self._store.write_failures((each, token, reason) for each, reason in failed.items())
        tried = sent.union(failed)
        if left := claimed.difference(tried, unreadable):
            await self._store.release((message_id, token, None) for message_id in left)
        return tried

    async def _try(
        self, destination: Destination, messages: list[Message], oldest: UUID
    ) -> list[Sent]:
        """Send messages; return the outcomes that count as a try."""
        results = await self._sender.send(messages, destination, oldest)
        tried = [each for each in results if each.error is None]
        if failed := [each for each in results if each.error is not None]:
            tried += (await self._send_queues.sorted_failures(destination, failed))[0]
        return tried

    def _report_abnormal(self, rows: Sequence[Record]) -> None:
        if rows:
            self._counters.abnormal += len(rows)
            report_abnormal([AbnormalDelivery(*row) for row in rows])

    # ------------------------------------------------------------------------------ after a commit

    def _is_known(self, messages: Sequence[Message]) -> bool:
        return all(message.destination in self._send_queues.destinations for message in messages)

    async def _send(self, messages: list[Message], destination: Destination) -> list[Sent]:
        """Send the checks first: a check without its message is fixed, the reverse is not."""
        checks = self._checks_of(messages, destination)
        for sent in await self._sender.send(checks, self._checks, self._oldest):
            if (error := sent.error) is not None:
                if not isinstance(error, TopicUnusable):
                    error = RetryError(f"the check record was not taken: {named_reason(error)}")
                return [Sent(destination.topic, -1, messages, error=error)]
        return await self._sender.send(messages, destination, self._oldest)

    def _checks_of(self, messages: Sequence[Message], destination: Destination) -> list[Message]:
        if not destination.consumers:
            return []
        due_ns = self._clock.wall_ns() + int(self._checked.check_seconds * 1e9)
        sender, records = self._checked.sender, []
        for begin in range(0, len(messages), CHECKS_MAX):
            ids = [message.message_id for message in messages[begin : begin + CHECKS_MAX]]
            (record_id,) = draw_message_ids(1)
            value = encode_checks(sender, due_ns, destination.consumers, ids)
            records.append(Message(record_id, _CHECKS, value, sender))
        return records
