"""Confirms of a consumer: collected, and sent many at once.

They are new messages on the destination's confirm topic, many in one record. A confirm is sent
after the consumer's own commit, at least once. A lost confirm does no harm: the message is resent,
found in the inbox, and confirmed again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from chain_kernel.clients.kafka import AIOKafkaProducer, leave_client, make_producer, start_client
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.kafka_errors import DRIVER_ERRORS, connecting, lasting_refusal
from chain_kernel.errors import OrderchainError, RetryError
from chain_kernel.text import reason_of
from outbox.records import Confirm, Progress, encode_confirms
from outbox.sender.message_sender import TopicErrors, TopicUnusable, partitions_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outbox.consumer.config import ConsumerConfig
    from outbox.consumer.in_flight import Partition
    from outbox.consumer.record_source import DestinationRecords


_log = logging.getLogger(__name__)

RECORD_CONFIRMS_MAX: Final = 5_000
"""Confirms in one record: about 250 kB, far below what a broker takes."""

RECORD_PARTITIONS_MAX: Final = 1_000
"""Partitions whose progress one record reports; the next record reports those after them."""

TOPIC_PAUSE_SECONDS: Final = 5.0
"""Pause of a topic that could not be sent to."""

TOGETHER_SECONDS: Final = 1.0
"""Longest wait of the confirms of other topics for a slow topic."""

WAITING_MAX: Final = 200_000
"""Confirms that may wait for a broker that is away, about 20 MB. Further ones are dropped, and
their messages are resent."""


class ConfirmSender:
    """Collects confirms and sends them."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self._kafka = KafkaConfig.of(config.kafka)
        self._producer: AIOKafkaProducer | None = None
        self._connecting = asyncio.Lock()
        self._topic_errors = TopicErrors()
        self._sending: dict[str, asyncio.Task[None]] = {}  # by topic
        self._waiting: dict[str, list[Confirm]] = {}
        # By topic: the topics whose messages are confirmed there, and the partitions reported.
        self._sources: dict[str, set[str]] = {}
        self._reported: dict[str, int] = {}
        self._paused_until: dict[str, float] = {}  # by topic, by the loop's clock
        self.topics: set[str] = set()  # those that a confirm was meant for
        self.is_topic_new = asyncio.Event()
        self.added = asyncio.Event()  # set by `add`
        self.count = 0  # confirms that wait
        self.sent = 0
        self.forgotten = 0

    async def start(self) -> None:
        """Connect. Raises ConnectError, RetryError."""
        await self._connect()

    def add(self, topic: str, confirm: Confirm, source: str) -> None:
        """Queue a confirm of a message that came from topic `source` for the next `flush`."""
        self.added.set()
        self._sources.setdefault(topic, set()).add(source)
        if self.count >= WAITING_MAX:
            self.forgotten += 1
            return
        self._waiting.setdefault(topic, []).append(confirm)
        self.count += 1

    async def flush(self, progress: Mapping[Partition, int]) -> None:
        """Send what waits; what could not be sent keeps waiting. Never raises a broker's error.

        `progress` holds the smallest unfinished offsets as of now: every confirm of a message below
        them is in this flush, or was in an earlier one.
        """
        if not self._waiting.keys() <= self.topics:
            self.topics |= self._waiting.keys()
            self.is_topic_new.set()
        waits = Counter(source for topic in self._waiting for source in self._sources[topic])
        lines: dict[str, list[Progress]] = {}
        for place, offset in sorted(progress.items()):
            # Past a confirm that waits for another topic, its message would be taken for lost.
            if waits[place[0]] == 1:
                lines.setdefault(place[0], []).append(Progress(*place, offset))
        now = asyncio.get_running_loop().time()
        for topic in self._waiting:
            if topic in self._sending or self._topic_errors.is_paused(topic):
                continue
            if self._paused_until.get(topic, 0.0) > now:
                continue
            self._paused_until.pop(topic, None)
            # Side by side, each for as long as it takes: none waits for another.
            sources = sorted(self._sources[topic] & lines.keys())
            work = self._send_all(topic, [line for source in sources for line in lines[source]])
            self._sending[topic] = asyncio.create_task(work, name="orderchain confirms")
        if self._sending:
            await asyncio.wait(self._sending.values(), timeout=TOGETHER_SECONDS)

    async def close(self) -> None:
        """Close; never raises. What is under way, and then the client, get `close_seconds` each."""
        if sending := list(self._sending.values()):
            await asyncio.wait(sending, timeout=self._config.close_seconds)
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
        await self._renew()

    async def _send_all(self, topic: str, reported: list[Progress]) -> None:
        """Send what waits for one topic. What is cut off stays in the list, and is sent again."""
        confirms = self._waiting[topic]
        most = len(confirms)  # others may come meanwhile: the progress says nothing about them
        try:
            while most > 0:
                part = confirms[: min(most, RECORD_CONFIRMS_MAX)]
                lines = self._next(topic, reported) if len(part) == most else []
                if not await self._send(topic, part, lines):
                    break
                del confirms[: len(part)]
                self.count -= len(part)
                most -= len(part)
        finally:
            self._sending.pop(topic, None)
        if not confirms:
            self._waiting.pop(topic, None)

    def _next(self, topic: str, reported: list[Progress]) -> list[Progress]:
        """Return what the next record to a topic reports: each partition in its turn."""
        if len(reported) <= RECORD_PARTITIONS_MAX:
            return reported
        at = self._reported.get(topic, 0) % len(reported)
        self._reported[topic] = at + RECORD_PARTITIONS_MAX
        return (reported[at:] + reported[:at])[:RECORD_PARTITIONS_MAX]

    async def _renew(self) -> None:
        """Discard the producer: its behavior after an error is not to be relied on."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await leave_client(producer, self._config.close_seconds)

    async def _send(self, topic: str, confirms: list[Confirm], reported: list[Progress]) -> bool:
        name = self._config.name
        value = encode_confirms(name, confirms, reported)
        try:
            producer = self._producer or await self._connect()
            async with asyncio.timeout(self._config.request_seconds):
                await partitions_of(producer, topic, self._topic_errors)
                # One key, so one partition: confirms and the progress after them keep their order.
                await producer.send_and_wait(topic, value, key=name.encode())
        except TopicUnusable:  # which was reported when it was found
            return False
        except (*DRIVER_ERRORS, OrderchainError) as error:
            refusal = lasting_refusal(error, self._kafka, f"write to topic {topic}")
            reason = reason_of(refusal or error)
            _log.warning("confirms to %s could not be sent, and wait: %s", topic, reason)
            self._paused_until[topic] = asyncio.get_running_loop().time() + TOPIC_PAUSE_SECONDS
            await self._renew()
            return False
        self._topic_errors.is_over(topic)
        self.sent += len(confirms)
        return True

    async def _connect(self) -> AIOKafkaProducer:
        async with self._connecting:
            if self._producer is not None:
                return self._producer
            producer = make_producer(
                self._kafka,
                f"confirms-{self._config.name}",
                request_timeout_ms=int(self._config.request_seconds * 1000),
            )
            try:
                async with connecting(self._kafka, self._config.connect_seconds):
                    await start_client(producer)
            except BaseException:
                await leave_client(producer, self._config.close_seconds)
                raise
            self._producer = producer
            return producer


@dataclass(eq=False)
class ConfirmLoop:
    """Sends confirms as they come, many at once, and commits offsets now and then."""

    config: ConsumerConfig
    confirms: ConfirmSender
    source: DestinationRecords
    _is_ending: bool = field(default=False, init=False)

    async def run(self) -> None:
        """Return once `end` was called and the round that was under way has ended."""
        config, loop = self.config, asyncio.get_running_loop()
        commit_at = loop.time() + config.commit_seconds
        while not self._is_ending:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(commit_at):
                    await self.confirms.added.wait()
                    await asyncio.sleep(config.confirm_linger_seconds)
            self.confirms.added.clear()
            await self.confirm()
            if loop.time() >= commit_at:
                commit_at = loop.time() + config.commit_seconds
                await self.commit()

    def end(self) -> None:
        """Make `run` return. If it were cut off in a send, it would send confirms twice."""
        self._is_ending = True
        self.confirms.added.set()

    async def confirm(self) -> None:
        """Send what waits. Call it before `commit`: what is committed is not received again."""
        await self.confirms.flush(self.source.progress.smallest_unfinished())

    async def commit(self) -> None:
        """Commit the smallest unfinished offsets; if the broker is away, it is retried later."""
        try:
            await self.source.commit()
        except RetryError as error:
            _log.warning("%s", reason_of(error))
