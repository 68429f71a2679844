"""The consumer: reads destinations' topics and handles each message once.

It is idempotent: each message of its topics takes effect once, and is confirmed.

    async with Consumer(config) as consumer:
        async for delivery in consumer:
            async with delivery.transaction() as connection:
                await connection.execute(...)  # the effect

The id of the message is recorded in the same transaction, so effect and record are committed
together or not at all. Messages come in no particular order; those of one key come one after the
other.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, Self

from orderchain.clients.postgres import DRIVER_ERRORS
from orderchain.clients.topic_durability import TopicDurability
from orderchain.clock import Clock, SystemClock
from orderchain.errors import SettingError
from orderchain.text import reason_of
from outbox.consumer.admission import open_fresh, open_parked
from outbox.consumer.attempts import AWAY
from outbox.consumer.confirm_loop import ConfirmSender, Settling
from outbox.consumer.delivery import Handling
from outbox.consumer.filters import Filter, MemoryFilter
from outbox.consumer.inbox import Inbox
from outbox.consumer.key_queues import Lanes
from outbox.consumer.kit import METRICS, ConsumerKit, ConsumerStats
from outbox.consumer.receiving import Receiving
from outbox.consumer.record_source import DestinationRecords
from outbox.parts import Parts, uninterrupted
from outbox.session import ConsumerConnections

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from types import TracebackType

    from orderchain.monitoring import Sample
    from outbox.consumer.attempts import Attempt
    from outbox.consumer.config import ConsumerConfig
    from outbox.consumer.delivery import Delivery
    from outbox.consumer.progress import Partition

    Handler = Callable[[Delivery, Any], Awaitable[None]]
    """Gets the connection whose transaction the effect joins; None in an idempotent consumer."""
    ManyHandler = Callable[[Sequence[Delivery], Any], Awaitable[None]]


_log = logging.getLogger(__name__)


class InboxRetention:
    """Keeps the inbox's partitions. Each process does it: most rounds find nothing to do."""

    def __init__(self, kit: ConsumerKit, receiving: Receiving) -> None:
        self._kit = kit
        self._receiving = receiving

    async def run(self) -> None:
        """Never returns. The first round was done at the start."""
        while True:
            await asyncio.sleep(self._kit.config.upkeep_seconds)
            await self.try_to_keep()

    async def try_to_keep(self) -> None:
        """Do one round now. A database that is away, or busy, is asked again in the next round."""
        try:
            await self.keep()
        except AWAY as error:
            _log.warning("the inbox's retention has to wait: %s", reason_of(error))

    async def keep(self) -> None:
        """Do one round now. Raises the errors of a database that is away.

        Raises DurabilityError if it was set to lose what it has committed.
        """
        kit = self._kit
        now_ns = kit.clock.wall_ns()
        async with kit.connections.transaction() as connection:
            await kit.connections.check_durability(connection)
            await kit.inbox.extend(connection, now_ns)
        oldest = self._receiving.take_oldest()
        keep_ns = round(kit.config.retention_seconds * 1e9)
        async with kit.connections.transaction() as connection:
            if oldest:
                await kit.inbox.hear_of_senders(connection, oldest)
            await kit.inbox.retire(connection, now_ns - keep_ns)


_LOSS: Final = "confirms that are lost there have their messages sent again"

TURN_SECONDS: Final = 0.2
"""How often a loop checks whether one of its deliveries has ended, in case it is not notified."""


class Consumer:
    """One process of a consumer. Use it in one of three forms, and no two of them at once:

    `async for delivery in consumer`, `await consumer.run(handler)`, `await consumer.run_many(...)`.

    Each of them may be cancelled at any time, and called again: nothing is lost, and nothing takes
    effect twice. When a part of the consumer that must live ends, each of them raises its error,
    and keeps raising it.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        *,
        filter: Filter | None = None,  # noqa: A002 - what everybody calls it
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._filter = filter or MemoryFilter()
        self._connections = ConsumerConnections(config)
        self._lanes: Lanes[Delivery] = Lanes()
        self._source = DestinationRecords(config, self._drop)
        self._confirms = ConfirmSender(config)
        self._started: ConsumerKit | None = None
        self._parts = Parts("consumer", self._wake)
        self._settling: Settling | None = None
        self._settled: asyncio.Task[None] | None = None
        # The delivery that a loop waits for. A cancelled wait leaves it to the next one: if it were
        # cut off each time, one that takes longer than the caller's patience would never come.
        self._opening: asyncio.Task[Delivery | None] | None = None
        self._waiting = asyncio.Lock()
        self._is_stopping = False
        self._handed: set[Handling[Any]] = set()
        self._look_at = 0.0  # by the loop's clock: when parked messages are looked for next
        self._is_fresh_next = False
        self._counters = ConsumerStats()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect, and join the group.

        Raises ConnectError, SchemaError, DurabilityError, RetryError.
        """
        try:
            inbox = await self._open_inbox()
            self._started = kit = ConsumerKit(
                config=self._config, inbox=inbox, connections=self._connections,
                filter=self._filter, clock=self._clock, lanes=self._lanes, source=self._source,
                confirms=self._confirms, stats=self._counters,
            )  # fmt: skip
            receiving, self._settling = Receiving(kit), Settling(kit)
            retention = InboxRetention(kit, receiving)
            await retention.try_to_keep()  # today's partition, before the first message
            await self._confirms.start()
            await self._source.start()
        except BaseException:
            await self.close()
            raise
        self._parts = Parts("consumer", self._wake)
        self._parts.begin("receiving", receiving.run())
        self._parts.begin("retention", retention.run())
        self._parts.begin("topics", self._look_at_topics())
        self._settled = self._parts.begin("settling", self._settling.run())

    def stats(self) -> ConsumerStats:
        """Return the counters as they are now."""
        return deepcopy(self._counters)

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics at this instant; see `orderchain.monitoring`."""
        for metric in METRICS:
            yield from metric.samples(self._counters, {"consumer": self._config.name})

    def why_not_ready(self) -> str | None:
        """Return in one line why it handles no messages; None when it does."""
        name = f"consumer {self._config.name}"
        if self._parts.failure is not None:
            return f"{name}: {reason_of(self._parts.failure)}"
        if self._is_stopping or not self._parts.are_begun:
            return f"{name}: not started" if self._started is None else f"{name}: stopped"
        kit = self._kit()
        if kit.paused_until > asyncio.get_running_loop().time():
            return f"{name}: interrupted, since the database is away"
        return None

    def stop(self) -> None:
        """Hand out nothing more: a loop ends, `run` returns when its handlers are done."""
        self._is_stopping = True
        self._wake()

    async def close(self) -> None:
        """Stop, confirm and commit what is finished, and close; also when cancelled. Never raises.

        What was handed out and is not finished is rolled back, and comes again at the next start.
        """
        self.stop()
        await uninterrupted(self._close())

    async def _close(self) -> None:
        async with AsyncExitStack() as closing:
            for close in (
                self._connections.close, self._filter.close, self._confirms.close,
                self._source.close, self._end_settling, self._abandon_handed,
            ):  # fmt: skip
                closing.push_async_callback(close)
            self._parts.expect_end("settling")
            self._parts.cancel(self._parts.names - {"settling"})

    # -- three forms -----------------------------------------------------------------------------

    async def run(self, handler: Handler) -> None:
        """Give each message to `handler` until `stop`, `at_once` of them at a time.

        If the handler returns, the message is applied. If it raises, the message is parked for a
        retry, or, with `Refused`, becomes a dead letter at once.
        """

        async def each(attempt: Attempt) -> None:
            await handler(attempt.deliveries[0], attempt.connection)

        await self._run(1, each)

    async def run_many(self, handler: ManyHandler) -> None:
        """Give messages to `handler` many at a time, in one transaction, until `stop`.

        If it raises, none of them is applied; they are given to it again one by one, so that only a
        message that fails alone is parked.
        """

        async def all_of(attempt: Attempt) -> None:
            await handler(attempt.deliveries, attempt.connection)

        await self._run(self._config.batch_max, all_of)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """Return the next delivery. If cancelled, it loses none: the next call returns it."""
        async with self._waiting:
            if self._opening is None:
                self._opening = asyncio.create_task(self._hand_out(), name="orderchain next")
            # Not awaited directly: its cancellation and ours must not be mixed up.
            await asyncio.wait([self._opening])
            opening, self._opening = self._opening, None
        delivery = opening.result()
        if delivery is None:
            raise StopAsyncIteration
        return delivery

    async def _hand_out(self) -> Delivery | None:
        await self._await_turn()
        attempt = await self._next(1)
        if attempt is None:
            return None
        (delivery,) = attempt.deliveries
        handling: Handling[Any] = Handling(attempt, self._ended)
        self._handed.add(handling)
        delivery.handling = handling
        return delivery

    # -- work ------------------------------------------------------------------------------------

    async def _run(self, most: int, call: Callable[[Attempt], Awaitable[None]]) -> None:
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._config.at_once):
                    workers.create_task(self._work(most, call))
        except BaseExceptionGroup as group:
            # Handlers' errors are dealt with: these are all one, or the first one counts.
            error = group.exceptions[0]
        else:
            return
        raise error

    async def _work(self, most: int, call: Callable[[Attempt], Awaitable[None]]) -> None:
        while (attempt := await self._next(most)) is not None:
            try:
                async with asyncio.timeout(self._config.handler_seconds):
                    await call(attempt)
            except BaseException as error:
                await attempt.fail(error)
                if not isinstance(error, Exception):
                    raise
            else:
                await attempt.succeed()

    async def _next(self, most: int) -> Attempt | None:
        """Return the next attempt, once there is one; None at the end."""
        kit, loop = self._kit(), asyncio.get_running_loop()
        while not self._is_stopping:
            self._raise_failure()
            pause = kit.paused_until - loop.time()
            if pause > 0:
                await kit.change(pause)
                continue
            attempt = await self._parked(kit) or await self._fresh(kit, most)
            if attempt is not None:
                return attempt
            # Checked again, since all of it may have changed during the call to the database.
            if not (self._lanes.has_ready or self._is_stopping or self._parts.failure):
                await kit.change(self._look_at - loop.time())
        return None

    async def _parked(self, kit: ConsumerKit) -> Attempt | None:
        """Return a parked message whose time has come. A backlog of them leaves others a turn."""
        now = asyncio.get_running_loop().time()
        if now < self._look_at or (self._is_fresh_next and self._lanes.has_ready):
            self._is_fresh_next = False
            return None
        self._look_at = now + self._config.retry_poll_seconds
        attempt = await open_parked(kit)
        if attempt is not None:
            self._look_at = 0.0
            self._is_fresh_next = True
        return attempt

    async def _fresh(self, kit: ConsumerKit, most: int) -> Attempt | None:
        taken = self._lanes.take(most)
        if not taken:
            return None
        end = 1 if taken[0].is_alone else len(taken)
        for at, delivery in enumerate(taken[1:end], start=1):
            if delivery.is_alone:
                end = at
                break
        if end < len(taken):
            kit.put_back(taken[end:])
        return await open_fresh(kit, taken[:end])

    async def _await_turn(self) -> None:
        """Wait until fewer than `at_once` deliveries are handed out and not finished."""
        if self._config.at_once == 1:
            for handling in list(self._handed):
                if not handling.was_entered:
                    expected = "`async with delivery.transaction()`, or `.attempt()`"
                    refusal = SettingError("delivery", "not worked on", expected)
                    await handling.abandon(asyncio.CancelledError())
                    raise refusal
        while len(self._handed) >= self._config.at_once and not self._is_stopping:
            self._raise_failure()
            await self._kit().change(TURN_SECONDS)

    def _ended(self, handling: Handling[Any]) -> None:
        self._handed.discard(handling)
        self._kit().changed.set()

    # -- partitions that go ----------------------------------------------------------------------

    def _drop(self, gone: frozenset[Partition]) -> None:
        self._lanes.drop(lambda delivery: delivery.place in gone)

    # -- start -----------------------------------------------------------------------------------

    async def _open_inbox(self) -> Inbox:
        config = self._config
        connection = await self._connections.take()
        try:
            inbox = await Inbox.open(connection, config.name, config.statement_seconds)
            await inbox.know_topics(connection, config.topics)
        except BaseException as error:
            self._connections.drop(connection)
            if isinstance(error, DRIVER_ERRORS):
                raise self._connections.refusal(error) from error
            raise
        self._connections.give_back(connection)
        return inbox

    async def _look_at_topics(self) -> None:
        durability = TopicDurability(self._config.kafka, "confirm-topics", _LOSS)
        confirms = self._confirms
        await durability.keep_looking(lambda: confirms.topics, confirms.is_topic_new)

    async def _abandon_handed(self) -> None:
        """Roll back what was handed out, or is about to be, and is not finished."""
        if (opening := self._opening) is not None:
            await asyncio.wait([opening], timeout=self._config.close_seconds)
            opening.cancel()
            await asyncio.wait([opening])
            self._opening = None
        for handling in list(self._handed):
            await handling.abandon(asyncio.CancelledError())

    async def _end_settling(self) -> None:
        if self._settling is None or self._settled is None:
            return
        self._settling.end()
        await asyncio.wait([self._settled], timeout=self._config.close_seconds)
        await self._parts.end()
        await self._settling.confirm()
        await self._settling.commit()

    def _raise_failure(self) -> None:
        """Raise the error of a part that must live, if one has ended."""
        if (failure := self._parts.failure) is not None:
            raise failure.__cause__ or failure

    def _wake(self) -> None:
        if self._started is not None:
            self._started.changed.set()

    def _kit(self) -> ConsumerKit:
        if self._started is None:
            raise SettingError("consumer", "not started", "start() first")
        return self._started
