"""The consumer: reads destinations' topics and handles each message once.

It is idempotent: each message of its topics takes effect once, and is confirmed.

    async def handler(delivery, connection):
        await connection.execute(...)  # the effect

    async with Consumer(config) as consumer:
        await consumer.run(handler)

The id of the message is recorded in the same transaction, so effect and record are committed
together or not at all. Messages come in no particular order; those of one key come one after the
other.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from chain_kernel.clients.postgres_errors import DRIVER_ERRORS
from chain_kernel.clients.session import ClosedAtExit
from chain_kernel.clients.topics import TopicDurability
from chain_kernel.clock import Clock, SystemClock
from chain_kernel.errors import SettingError
from chain_kernel.handlers import NotAsync, check_handler, result_of
from chain_kernel.tasks import of_others, uninterrupted
from chain_kernel.text import printable, reason_of
from chain_kernel.tracing import following
from outbox.consumer.admission import Admission
from outbox.consumer.attempts import Outcomes
from outbox.consumer.config import METRICS, ConsumerStats
from outbox.consumer.confirm_loop import ConfirmLoop, ConfirmSender
from outbox.consumer.delivery import Pace
from outbox.consumer.filters import Filter, MemoryFilter
from outbox.consumer.in_flight import KeyQueues
from outbox.consumer.inbox import AWAY, ConsumerConnections, Inbox
from outbox.consumer.record_source import DestinationRecords, RecordIntake
from outbox.parts import Parts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from chain_kernel.monitoring import Sample
    from outbox.consumer.attempts import Attempt
    from outbox.consumer.config import ConsumerConfig
    from outbox.consumer.delivery import Delivery

    Handler = Callable[[Delivery, Any], Awaitable[None]]
    """Gets the connection whose transaction the effect joins; None in an idempotent consumer."""
    ManyHandler = Callable[[Sequence[Delivery], Any], Awaitable[None]]


_log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class InboxRetention:
    """Keeps the inbox's partitions. Each process does it: most rounds find nothing to do."""

    config: ConsumerConfig
    inbox: Inbox
    connections: ConsumerConnections
    clock: Clock
    intake: RecordIntake

    async def run(self) -> None:
        """Never returns. The first round was done at the start."""
        while True:
            await asyncio.sleep(self.config.upkeep_seconds)
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
        connections, inbox = self.connections, self.inbox
        now_ns = self.clock.wall_ns()
        async with connections.transaction() as connection:
            await connections.check_durability(connection)
            await inbox.extend(connection, now_ns)
            # Before the ends of partitions are asked for: see `RecordIntake.floors`.
            highest = await inbox.highest_floors(connection)
        floors = await self.intake.floors(highest)
        keep_ns = round(self.config.retention_seconds * 1e9)
        async with connections.transaction() as connection:
            await inbox.know_topics(connection, self.config.topics)
            await inbox.know_partitions(connection, self.intake.source.partitions())
            await inbox.keep_floors(connection, floors)
            await inbox.retire(connection, now_ns - keep_ns)


_LOSS: Final = "confirms that are lost there have their messages sent again"


class Consumer(ClosedAtExit):
    """One process of a consumer: `await consumer.run(handler)`, or `run_many`, not both at once.

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
        self._counters = ConsumerStats()
        self._pace = Pace(self._counters)
        self._queues: KeyQueues[Delivery] = KeyQueues(self._pace.wake)
        self._source = DestinationRecords(
            config, lambda gone: self._queues.drop(lambda delivery: delivery.place in gone)
        )
        self._confirms = ConfirmSender(config)
        self._admission: Admission | None = None
        self._parts = Parts("consumer", self._pace.wake)
        self._confirm_loop: ConfirmLoop | None = None
        self._confirming: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        """Connect, and join the group.

        Raises:
            ConnectError: a server refuses the login, or its certificate does not hold.
            SchemaError: the database has no inbox, or one of another version.
            DurabilityError: the database may lose what it has committed.
            RetryError: the database or the broker is away.
        """
        try:
            inbox = await self._open_inbox()
            outcomes = Outcomes(
                config=self._config, inbox=inbox, connections=self._connections, clock=self._clock,
                progress=self._source.progress, confirms=self._confirms, fast_filter=self._filter,
                queues=self._queues, pace=self._pace, stats=self._counters,
            )  # fmt: skip
            self._admission = Admission(outcomes=outcomes)
            self._confirm_loop = ConfirmLoop(self._config, self._confirms, self._source)
            receiving = RecordIntake(
                config=self._config, source=self._source, queues=self._queues, pace=self._pace,
                clock=self._clock, stats=self._counters,
            )  # fmt: skip
            retention = InboxRetention(
                config=self._config, inbox=inbox, connections=self._connections, clock=self._clock,
                intake=receiving,
            )  # fmt: skip
            await retention.try_to_keep()  # today's partition, before the first message
            await self._confirms.start()
            await self._source.start()
            await self._begin_topics(inbox)
        except BaseException:
            await self.close()
            raise
        if not self._config.keys:
            _log.warning(
                "consumer %s has no `keys` (chainctl outbox destination key), so it believes "
                "everyone who may write to its topics", printable(self._config.name),
            )  # fmt: skip
        self._parts = Parts("consumer", self._pace.wake)
        self._parts.begin("receiving", receiving.run())
        self._parts.begin("retention", retention.run())
        durability = TopicDurability(self._config.kafka, "confirm-topics", _LOSS)
        confirms = self._confirms
        looking = durability.keep_looking(lambda: confirms.topics, confirms.is_topic_new)
        self._parts.begin("topics", looking)
        self._confirming = self._parts.begin("confirms", self._confirm_loop.run())

    def stats(self) -> ConsumerStats:
        """Return the counters as they are now."""
        return deepcopy(self._counters)

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics at this instant."""
        for metric in METRICS:
            yield from metric.samples(self._counters, {"consumer": self._config.name})

    def why_not_ready(self) -> str | None:
        """Return in one line why it handles no messages; None when it does."""
        name = f"consumer {self._config.name}"
        if self._parts.failure is not None:
            return f"{name}: {reason_of(self._parts.failure)}"
        if self._pace.is_stopping:
            return f"{name}: stopped"
        if not self._parts.are_begun:
            return f"{name}: not started"
        if self._pace.pause_seconds > 0:
            return f"{name}: interrupted, since the database is away"
        return None

    def stop(self) -> None:
        """Begin nothing more: `run` returns when its handlers are done.

        Raises:
            SettingError: as every other call, in another event loop or thread than the one that
                started it: `loop.call_soon_threadsafe(consumer.stop)`.
        """
        self._parts.home.check()
        self._pace.stop()

    async def close(self) -> None:
        """Stop, confirm and commit what is finished, and close; also when cancelled.

        What was begun and is not finished comes again at the next start.

        Raises:
            SettingError: in another event loop or thread than the one that started it.
        """
        self.stop()
        await uninterrupted(self._close())

    async def _close(self) -> None:
        async with AsyncExitStack() as closing:
            if self._admission is not None:
                closing.callback(self._admission.outcomes.log_rest)
            for close in (
                self._connections.close, self._filter.close, self._confirms.close,
                self._source.close, self._end_confirms,
            ):  # fmt: skip
                closing.push_async_callback(close)
            self._parts.expect_end("confirms")
            self._parts.cancel(self._parts.names - {"confirms"})

    # -- two forms -----------------------------------------------------------------------------

    async def run(self, handler: Handler) -> None:
        """Give each message to `handler` until `stop`, `at_once` of them at a time.

        If the handler returns, the message is applied. If it raises, the message is parked for a
        retry, or, with `Refused`, becomes a dead letter at once.

        Raises:
            NotAsync: the handler is no async function.
        """
        check_handler(handler)

        async def each(attempt: Attempt) -> None:
            await result_of(handler(attempt.deliveries[0], attempt.connection))

        await self._run(1, each)

    async def run_many(self, handler: ManyHandler) -> None:
        """Give messages to `handler` many at a time, in one transaction, until `stop`.

        If it raises, none of them is applied; they are given to it again one by one, so that only a
        message that fails alone is parked.

        Raises:
            NotAsync: the handler is no async function.
        """
        check_handler(handler)

        async def all_of(attempt: Attempt) -> None:
            await result_of(handler(attempt.deliveries, attempt.connection))

        await self._run(self._config.batch_max, all_of)

    # -- work ------------------------------------------------------------------------------------

    async def _run(self, most: int, call: Callable[[Attempt], Awaitable[None]]) -> None:
        self._parts.home.check()
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
        # A group of tasks takes one that was cancelled for one that has ended, as at a stop.
        with of_others("a worker of the consumer"):
            while (attempt := await self._next(most)) is not None:
                try:
                    async with asyncio.timeout(self._config.handler_seconds):
                        # Each of several messages may belong to a trace of its own.
                        with (
                            following(attempt.deliveries[0].headers if most == 1 else {}),
                            attempt.outcomes.heartbeats(attempt.deliveries),
                        ):
                            await call(attempt)
                except BaseException as error:
                    # A mistake in the program is no message's fault: it costs none of them a try.
                    is_mistake = isinstance(error, NotAsync)
                    await attempt.fail(asyncio.CancelledError() if is_mistake else error)
                    if is_mistake or not isinstance(error, Exception):
                        raise
                else:
                    await attempt.succeed()

    async def _next(self, most: int) -> Attempt | None:
        """Return the next attempt, once there is one; None at the end."""
        admission, pace = self._admission, self._pace
        if admission is None:
            raise SettingError("consumer", "not started", "start() first")
        while not pace.is_stopping:
            if (failure := self._parts.failure) is not None:
                raise failure.__cause__ or failure
            if (pause := pace.pause_seconds) > 0:
                await pace.wait(pause)
                continue
            attempt = await admission.open(most)
            if attempt is not None:
                return attempt
            # Checked again, since all of it may have changed during the call to the database.
            if not (self._queues.has_ready or pace.is_stopping or self._parts.failure):
                await pace.wait(admission.look_seconds)
        return None

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

    async def _begin_topics(self, inbox: Inbox) -> None:
        """Choose where to begin in topics that were never begun; each is begun once."""
        topics = self._config.topics
        try:
            async with self._connections.transaction() as connection:
                starts = await inbox.starts(connection, topics)
            if new := [topic for topic in topics if topic not in starts]:
                chosen = await self._source.first_starts(new)
                async with self._connections.transaction() as connection:
                    await inbox.begin(connection, chosen)
                # Read again, since another process may have been first.
                async with self._connections.transaction() as connection:
                    starts = await inbox.starts(connection, topics)
        except DRIVER_ERRORS as error:
            raise self._connections.refusal(error) from error
        self._source.begin_at(starts, new)

    async def _end_confirms(self) -> None:
        if self._confirm_loop is None or self._confirming is None:
            return
        self._confirm_loop.end()
        await asyncio.wait([self._confirming], timeout=self._config.close_seconds)
        await self._parts.end()
        await self._confirm_loop.confirm()
        await self._confirm_loop.commit()
