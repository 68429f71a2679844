"""The relay: sends what was stored, at once if it can, later if it must.

`FireAfterCommit` has no table: a message is sent at once or lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from chain_kernel.clients.topics import TopicDurability
from chain_kernel.clock import SystemClock
from chain_kernel.errors import OrderchainError, SettingError
from chain_kernel.text import printable, reason_of
from outbox.acts import (
    CONSUMER_SILENT_SECONDS,
    UNFINISHED,
    SilentConsumer,
    Unfinished,
    silent_consumers,
    unfinished_of,
)
from outbox.destination import LOSS, OPEN_SECONDS_MAX, topics_of
from outbox.errors import DestinationMissing, PartEnded
from outbox.message import Message, check_message, draw_message_ids, smallest_id, traced
from outbox.parts import Parts, ServiceOfParts, endless
from outbox.sender.config import METRICS, WAITING, RelayStats
from outbox.sender.maintenance import Retention
from outbox.sender.message_sender import MessageSender
from outbox.sender.results import AckWriter, ConfirmIntake
from outbox.sender.send_queues import NO_CLAIM, ClaimedMessages, SendQueues, SentCounter
from outbox.sender.store import RelayStore
from outbox.sender.sweep import Sweep
from outbox.sender.transaction import (
    BusinessTransaction,
    watched_transaction,
)
from outbox.session import OutboxSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
    from uuid import UUID

    from chain_kernel.clients.kafka_config import KafkaConfig
    from chain_kernel.clients.postgres import Connection
    from chain_kernel.clock import Clock
    from chain_kernel.monitoring import Sample
    from outbox.destination import Destination
    from outbox.sender.config import RelayConfig
    from outbox.sender.message_sender import Sent
    from outbox.sender.sweep import ConsumerLog


_log = logging.getLogger(__name__)

_TAKING = frozenset({"sweep", "retention", "confirms"})
"""The parts that take work in: at a stop they end first, and what they took is finished."""

_READ_SECONDS: Final = 15.0
"""Least pause between two counts of the deliveries: a count reads an index entry per delivery."""

_SILENCE_SECONDS: Final = 60.0
"""Pause between two looks for silent consumers: a look reads what waits for long."""


class OutboxFigures:
    """Counts the unfinished deliveries for as long as somebody looks at the samples.

    Consumers that are silent are looked for all the time, since the log names them, too.
    """

    def __init__(self, config: RelayConfig, intake: ConfirmIntake) -> None:
        self._session = OutboxSession(config, "figures")  # the others must not wait for a count
        self._intake = intake
        self._is_wanted = asyncio.Event()
        self._found: list[Unfinished] = []
        self._silent: list[SilentConsumer] = []
        self._look_at = float("-inf")

    def samples(self) -> Iterator[Sample]:
        """Yield what was found last, and have it counted again; nothing at the first time."""
        self._is_wanted.set()
        for unfinished in self._found:
            yield from unfinished.samples()
        for silent in self._silent:
            yield from silent.samples()

    async def run(self) -> None:
        """Count until cancelled. Raises RetryError, ConnectError; then nothing is shown."""
        loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._look_at):
                    await self._is_wanted.wait()
            if self._is_wanted.is_set():
                self._is_wanted.clear()
                self._found = []
                self._found = unfinished_of(await self._session.fetch(UNFINISHED))
            if loop.time() >= self._look_at:
                # Before the look: one that fails for as long as much waits is not made at once.
                self._look_at = loop.time() + _SILENCE_SECONDS
                await self._look_for_silence()
            await asyncio.sleep(_READ_SECONDS)

    async def _look_for_silence(self) -> None:
        """Look for silent consumers; where that fails, none is shown.

        Nor while the relay itself has not listened for as long: what they said may lie unread.
        """
        known, self._silent = set(self._silent), []
        since = self._intake.reads_since
        if since is None or asyncio.get_running_loop().time() - since < CONSUMER_SILENT_SECONDS:
            return
        self._silent = await silent_consumers(self._session)
        for one in self._silent:
            if one not in known:
                _log.warning("destination %s: %s", printable(one.destination), printable(str(one)))

    async def close(self) -> None:
        """Close the connection; never raises."""
        await self._session.close()


class Relay(ServiceOfParts):
    """Sends, sweeps, takes confirms in, and cleans up. Any number may share the tables.

    It may run inside the business's own process: then `transaction` hands its messages over in
    memory, and neither the claim nor the message is read back from the database. The sweep finds
    what others store, and what it loses with its process.

    When a part of it has ended, `transaction` raises PartEnded. A stop sends and writes what was
    handed over, within `stop_seconds`; the rest is swept later.
    """

    def __init__(
        self,
        config: RelayConfig,
        *,
        clock: Clock | None = None,
        consumer_logs: Mapping[str, ConsumerLog] | None = None,
    ) -> None:
        """`consumer_logs`: by consumer, where the relay may look up what it has applied."""
        self.counters = RelayStats()
        """The counters of the parts; `stats` completes them."""
        self._config = config
        self._woken = asyncio.Event()
        self._store = RelayStore(config, self._woken.set)
        self._sender = MessageSender(config.kafka, config.send_seconds)
        self._acks = AckWriter(config, self._store, self.counters)
        self._oldest = smallest_id(0)
        self._send_queues = SendQueues(
            self._sender,
            self._acks,
            self._send,
            rows_max=config.waiting_rows_max,
            round_rows_max=config.send_rows_max,
            probe_seconds=config.probe_seconds,
        )
        self._send_queues.on_room = self._woken.set
        self._sweep = Sweep(
            config,
            self._store,
            self._send_queues,
            self.counters,
            consumer_logs or {},
        )
        self._intake = ConfirmIntake(
            config,
            self._store,
            self._send_queues,
            self._acks,
            self.counters,
            self._sender.topic_errors,
        )
        self._retention = Retention(
            config, self._store.writing, clock or SystemClock(), self.counters
        )
        self._durability = TopicDurability(config.kafka, "relay-topics", LOSS)
        self._figures = OutboxFigures(config, self._intake)
        self._parts = Parts("relay")

    @property
    def waiting(self) -> int:
        """Messages in memory that are still to be sent."""
        return self._send_queues.waiting_rows

    def stats(self) -> RelayStats:
        """Return the counters as they are now."""
        return replace(deepcopy(self.counters), broker_away=self._send_queues.times_away)

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics at this instant.

        Unfinished deliveries are counted at most every 15 s, and only while this is called; silent
        consumers are looked for every minute.
        """
        stats = self.stats()
        for metric in METRICS:
            yield from metric.samples(stats, {})
        yield from WAITING.samples(self.waiting, {})
        yield from self._figures.samples()

    def why_not_ready(self) -> str | None:
        """Return in one line why it sends nothing; None when it does."""
        if self._parts.failure is not None:
            return reason_of(self._parts.failure)
        if not self._parts.are_begun:
            return "the relay has not started"
        return "relay: the broker is away" if self._send_queues.is_broker_away else None

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
            self._send_queues.destinations = await self._store.destinations()
            self._oldest = await self._store.oldest_unfinished()
        except BaseException:
            await self._store.close()
            raise
        self._parts = Parts("relay")
        works: tuple[tuple[str, Callable[[], Awaitable[None]]], ...] = (
            ("acks", self._acks.run),
            ("send", self._send_queues.run),
            ("broker", self._send_queues.watch_broker),
            ("confirms", self._intake.run),
            ("topic errors", self._store_topic_errors),
            ("sweep", self._keep_sweeping),
            ("retention", self._maintain),
            (
                "topics",
                lambda: self._durability.keep_looking(
                    lambda: topics_of(self._send_queues.destinations.values())
                ),
            ),
            ("figures", self._figures.run),
        )
        for name, work in works:
            self._parts.begin(name, endless(name, work))

    async def _stop(self) -> None:
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._figures.close)
            closing.push_async_callback(self._store.close)
            closing.push_async_callback(self._sender.close)
            if self._parts.are_begun:
                self._parts.cancel(_TAKING)
            if self._parts.failure is None:
                await self._last(self.settle)
            await self._parts.end(2 * self._config.stop_seconds)
            self._send_queues.drop_waiting()
            await self._last(self._acks.write)

    async def _last(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something before the end, if that can be done in time."""
        with suppress(TimeoutError, OrderchainError):
            async with asyncio.timeout(self._config.stop_seconds):
                await work()

    @asynccontextmanager
    async def transaction(self, connection: Connection) -> AsyncIterator[BusinessTransaction]:
        """Hold a transaction on the caller's `connection`; what it adds is sent after its commit.

        A send error is never raised here. If it is not certain that the commit will last (the
        connection broke, the session has `synchronous_commit` off, a wait for a standby was cut
        off), nothing is sent from here, and the sweep finds what was stored.

        Errors of the database are raised as the driver's, also if the block has caught an error
        that broke the transaction.

        Raises:
            PartEnded: a part of the relay has ended.
            SettingError: the connection is in a transaction.
        """
        self._parts.check()
        # Claimed for us as it is stored: one write less. If we can't send, it is due at once for
        # any relay that can.
        has_room = self._parts.are_begun and self._send_queues.has_room
        business = BusinessTransaction(connection, uuid4() if has_room else None, self._parts.check)
        async with watched_transaction(connection) as commit:
            yield business
            business.check_awaited()
            commit.matters = business.was_used
        messages = business.kept(commit)
        if messages and business.claim is not None:
            claimed = ClaimedMessages(business.claim, messages)
            if commit.is_certain or (self._config.unsafe_durability and not commit.was_cut):
                self._send_queues.hand_over(claimed)
            else:
                self._acks.released(claimed.claims, "the commit may not last")

    async def sweep(self, *, everything: bool = True) -> int:
        """Sweep now, and return how many deliveries were looked at.

        Raises:
            RetryError: the database is away.
        """
        self._parts.home.check()
        return await self._sweep.sweep(everything=everything)

    async def keep(self) -> None:
        """Make and drop partitions, and read the destinations again, now.

        Raises:
            RetryError: the database is away, or a lock was not available.
        """
        self._parts.home.check()
        await self._read_destinations()
        await self._retention.keep()

    async def _read_destinations(self) -> None:
        self._send_queues.destinations = await self._store.destinations()
        self._intake.refresh()

    async def settle(self) -> None:
        """Return once everything handed over is sent and written.

        Raises:
            RetryError: the database is away.
            PartEnded: a part of the relay has ended.
        """
        await self._parts.during(self._send_queues.finish)
        await self._parts.during(self._acks.write)

    async def _send(self, messages: list[Message], destination: Destination) -> list[Sent]:
        return await self._sender.send(messages, destination, self._oldest)

    async def _keep_sweeping(self) -> None:
        while True:
            await self._sweep.sweep()
            self._oldest = await self._store.oldest_unfinished()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.sweep_seconds):
                    await self._woken.wait()
            self._woken.clear()

    async def _store_topic_errors(self) -> None:
        """Store the topics that cannot be used where people look for them."""
        topic_errors = self._sender.topic_errors
        kept: set[str] = set()
        while True:
            await topic_errors.changed.wait()
            topic_errors.changed.clear()
            try:
                reasons = topic_errors.reasons
                await self._store.save_topic_errors(reasons, kept - set(reasons))
                kept = set(reasons)
            except BaseException:
                topic_errors.changed.set()
                raise
            # For a topic that is usable, or may be tried again: look at what was left.
            self._woken.set()

    async def _maintain(self) -> None:
        while True:
            await self._read_destinations()
            await self._retention.try_to_keep()
            await asyncio.sleep(self._config.upkeep_seconds)


WAITING_MAX: Final = 20_000
"""Messages that may wait in memory to be sent, at most four fifths of them for one destination.
Further ones are lost, and counted."""

_ROUND_MAX: Final = 2_000

_PROBE_SECONDS: Final = 1.0
"""Pause between two tries of a broker that is away."""

_STOP_SECONDS: Final = 10.0


class HeldMessages:
    """Messages of one business transaction that are sent if it commits."""

    def __init__(self, destinations: Mapping[str, Destination]) -> None:
        self._destinations = destinations
        self.messages: list[Message] = []

    def send(
        self,
        destination: str,
        payload: bytes,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> UUID:
        """Keep a message for after the commit.

        It is sent even if a savepoint around this call is rolled back: it is in no table.

        Raises:
            MessageError: the message is not valid.
            DestinationMissing: the destination is not one of `FireAfterCommit`.
        """
        (message_id,) = draw_message_ids(1)
        (message,) = traced([Message(message_id, destination, payload, key, headers)])
        check_message(message)
        if destination not in self._destinations:
            raise DestinationMissing(destination)
        self.messages.append(message)
        return message_id


class FireAfterCommit(ServiceOfParts):
    """Sends messages of committed transactions, once, and forgets them.

    This is the fastest way, and it may lose messages. **What is lost**: messages that were
    committed when the process died before the send (or before the acknowledgement); messages that
    the broker refused; messages that are fired while the broker is away or the topic is missing;
    messages beyond those that may wait. Nothing resends them. Except for a crash, what is lost is
    counted and logged. Destinations are independent: one that is slow, or whose topic is missing,
    loses only its own messages. Their topics are theirs alone: a relay that sends to one, too, may
    have older messages to send than these records say.
    """

    def __init__(
        self,
        kafka: str | KafkaConfig,
        destinations: Iterable[Destination],
        *,
        send_seconds: float = 10.0,
    ) -> None:
        """`kafka`: a KafkaConfig, or the plaintext bootstrap servers.

        Raises:
            SettingError: also for a destination whose consumers confirm: no relay would read it.
        """
        destinations = list(destinations)
        for each in destinations:
            if each.confirm != "none":
                expected = f"none for {each.name}, since nothing waits for a confirm"
                raise SettingError("confirm", each.confirm, expected)
        self._sender = MessageSender(kafka, send_seconds)
        self._sent_counter = SentCounter("lost")
        self._send_queues = SendQueues(
            self._sender,
            self._sent_counter,
            self._send,
            rows_max=WAITING_MAX,
            round_rows_max=_ROUND_MAX,
            probe_seconds=_PROBE_SECONDS,
        )
        self._send_queues.destinations = {each.name: each for each in destinations}
        self._parts = Parts("fire after commit")

    @property
    def sent(self) -> int:
        """Messages that the broker has acknowledged."""
        return self._sent_counter.sent_count

    @property
    def lost(self) -> int:
        """Messages that were not sent, or whose outcome is unknown."""
        return self._sent_counter.unsent_count

    async def start(self) -> None:
        """Begin. The broker may be away."""
        self._parts = Parts("fire after commit")
        self._parts.begin("send", self._send_queues.run())
        self._parts.begin("broker", endless("broker", self._send_queues.watch_broker))

    async def _stop(self) -> None:
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._sender.close)
            closing.callback(self._sent_counter.log)
            closing.callback(self._send_queues.drop_waiting)
            closing.push_async_callback(self._parts.end)
            with suppress(TimeoutError, PartEnded):
                async with asyncio.timeout(_STOP_SECONDS):
                    await self.finish()

    @asynccontextmanager
    async def transaction(self, connection: Connection) -> AsyncIterator[HeldMessages]:
        """Hold a transaction on the caller's `connection`; what it fires is sent after its commit.

        A send error is never raised here.

        Raises:
            PartEnded: nothing is sent any more.
            SettingError: the connection is in a transaction.
        """
        held = HeldMessages(self._send_queues.destinations)
        self._parts.check()
        async with watched_transaction(connection) as commit:
            yield held
            commit.matters = bool(held.messages)
        if commit.was_cut:
            self._sent_counter.give_up(len(held.messages), "the commit may not outlive a failover")
        else:
            self._send_queues.hand_over(ClaimedMessages(NO_CLAIM, held.messages))

    async def finish(self) -> None:
        """Return once nothing waits to be sent.

        Raises:
            PartEnded: nothing is sent any more.
        """
        await self._parts.during(self._send_queues.finish)

    async def _send(self, messages: list[Message], destination: Destination) -> list[Sent]:
        # No table shows what other processes still have to send: only time does.
        oldest = smallest_id(time.time() - OPEN_SECONDS_MAX)
        return await self._sender.send(messages, destination, oldest)
