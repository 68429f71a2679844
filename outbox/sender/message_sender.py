"""Sends messages to their topics, and reports the outcome of each.

It sends many messages in one batch of a partition, with one await per batch. Destinations are sent
side by side, so that none waits for another.

A topic cannot be used if it is missing, or hidden or closed to our login. It costs one look, not
the deadline of a send, and is then remembered for a while, so that it is not asked for at every
turn. What goes to it waits, and that is no try; what goes elsewhere goes on. After a pause it is
asked for again, by one message at first.

The producer is not idempotent on purpose: repeats are harmless here, and an idempotent producer of
this library refuses every later send on the partition after one failure (aiokafka issue 1017).
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections import Counter
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_kernel.clients.kafka import (
    AIOKafkaProducer,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
    end_client,
    make_producer,
    start_client,
)
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.kafka_errors import (
    DRIVER_ERRORS,
    connecting,
    is_broker_there,
    lasting_refusal,
)
from chain_kernel.clock import Backoff
from chain_kernel.errors import OrderchainError, RetryError
from chain_kernel.text import printable
from outbox.message import Message
from outbox.records import Headers, MacMaker, common_headers, record_headers, token_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from random import Random
    from uuid import UUID

    from chain_kernel.clients.kafka import BatchBuilder
    from outbox.destination import Destination


_log = logging.getLogger(__name__)

MISSING: Final = "is not there, or hidden from this login"
CLOSED: Final = "may not be written to by this login"
WRONG_TIME: Final = "refuses the time of this machine: its clock or the broker's is wrong"

_LOOKS: Final = 5
"""Looks at a topic that is not known: a broker that creates topics on request needs a moment."""

_LOOK_SECONDS: Final = 0.1
"""Pause between two looks."""

PAUSE_SECONDS_MIN: Final = 5.0
"""Pause after the first look: a topic that was forgotten is most often made within minutes."""

PAUSE_SECONDS_MAX: Final = 60.0
"""Longest time until a new topic is noticed."""


class TopicUnusable(RetryError):
    """A topic cannot be used. Nothing was sent to it; a retry may succeed later."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"topic {topic} {reason}")
        self.topic = topic


class _Known(Struct):
    reason: str
    pauses: Backoff
    until: float


class TopicErrors:
    """The topics that cannot be used, by name: at most as many as destinations have."""

    def __init__(
        self, now: Callable[[], float] | None = None, random: Random | None = None
    ) -> None:
        """`now`: seconds of a clock that never goes back; by default that of the running loop."""
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._random = random
        self._known: dict[str, _Known] = {}
        self.changed = asyncio.Event()
        """Set whenever an error is found, or is over."""

    def __bool__(self) -> bool:
        """True if any topic cannot be used."""
        return bool(self._known)

    def __contains__(self, topic: str) -> bool:
        """True if the topic could not be used at its last look."""
        return topic in self._known

    @property
    def reasons(self) -> dict[str, str]:
        """The error of each topic."""
        return {topic: known.reason for topic, known in self._known.items()}

    def is_paused(self, topic: str) -> bool:
        """Return whether it was found unusable so recently that it is left alone."""
        known = self._known.get(topic)
        return known is not None and self._now() < known.until

    def pause_of(self, topic: str) -> TopicUnusable | None:
        """Return what is wrong with a topic that is left alone for now, None for any other."""
        return TopicUnusable(topic, self._known[topic].reason) if self.is_paused(topic) else None

    def found(self, topic: str, reason: str) -> TopicUnusable:
        """Remember a topic for a while, twice as long after each pause; return what to raise."""
        error = TopicUnusable(topic, reason)
        known = self._known.get(topic)
        if known is None:
            _log.error("%s; retried later", printable(str(error)))
            pauses = Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX, random=self._random)
        elif self.is_paused(topic):  # found by several sends that were under way together
            return error
        else:
            pauses = known.pauses
        self._known[topic] = _Known(reason, pauses, self._now() + pauses.next_seconds())
        self.changed.set()
        return error

    def look_at(
        self, topics: Iterable[str], partitions_of: Callable[[str], Collection[int] | None]
    ) -> None:
        """Report those of `topics` that are not there: a consumer's client waits for them."""
        for topic in topics:
            if partitions_of(topic):
                self.is_over(topic)
            elif not self.is_paused(topic):
                self.found(topic, MISSING)

    def is_over(self, topic: str) -> None:
        """Forget a topic that can be used again."""
        if self._known.pop(topic, None) is not None:
            _log.warning("topic %s can be used again", printable(topic))
            self.changed.set()


async def partitions_of(
    producer: AIOKafkaProducer, topic: str, topic_errors: TopicErrors
) -> list[int]:
    """Return the partitions of a topic, as a started producer knows them or finds them out.

    Raises TopicUnusable; ConnectionError if no broker answers. Call it with a deadline.
    """
    # The library's own question waits for the topic until the deadline of a request.
    client, looks = producer.client, 0
    while not (known := client.cluster.partitions_for_topic(topic)):
        if topic in client.cluster.unauthorized_topics:
            raise topic_errors.found(topic, CLOSED)
        if looks == _LOOKS:
            raise topic_errors.found(topic, MISSING)
        if looks:
            await asyncio.sleep(_LOOK_SECONDS)
        client.add_topic(topic)
        if not await client.force_metadata_update():
            raise ConnectionError(f"no broker has answered for topic {topic}")
        looks += 1
    return sorted(known)


_BATCH_BYTES_MAX: Final = 900_000
"""Below the largest batch that brokers take by default, with room for the largest message."""

_CLOSE_SECONDS: Final = 2.0
"""Longest wait for the client's own stop. With the broker away the stop waits until its records
have expired; then it is left to end by itself."""

_ID: Final = attrgetter("message_id")

SEND_ERRORS: Final = (*DRIVER_ERRORS, OrderchainError)

_INVALID_TIMESTAMP: Final = 32
"""Kafka's number of the error: the batch's time is too far from the broker's."""


def _why_refused(error: Exception) -> str | None:
    """Return why a broker has stored nothing of a batch; None if it may have stored it."""
    if isinstance(error, (TopicAuthorizationFailedError, InvalidTopicError)):
        return CLOSED
    # Only errors that a broker answers with have a number.
    number = getattr(error, "errno", None) if isinstance(error, KafkaError) else None
    return WRONG_TIME if number == _INVALID_TIMESTAMP else None


class Sent(Struct):
    """Messages of one batch, and their outcomes.

    Tracked by the garbage collector: an error refers to the frames it passed, which may refer to
    this.
    """

    topic: str
    partition: int
    messages: list[Message]
    first_offset: int = -1
    """Offset of the first one; the others follow without a gap."""
    error: Exception | None = None
    was_refused: bool = False
    """True if the broker has stored nothing of it: it says so, or the client did not take it."""
    producer: AIOKafkaProducer | None = None
    """The client that sent it."""

    @property
    def was_tried(self) -> bool:
        """True if the broker may have seen it: it was given to the client for a partition."""
        return self.partition >= 0 and not self.was_refused


class MessageSender:
    """A producer, discarded after an error and created again at the next send."""

    def __init__(self, kafka: str | KafkaConfig, send_seconds: float) -> None:
        self._kafka = KafkaConfig.of(kafka)
        self._send_seconds = send_seconds
        self.topic_errors = TopicErrors()
        self.confirm_key: bytes | None = None
        """Key of the tokens and MACs that go with messages; None: they have none, and no confirm of
        them is asked for."""
        self._producer: AIOKafkaProducer | None = None
        self._users: Counter[AIOKafkaProducer] = Counter()  # sends under way
        self._opening = asyncio.Lock()
        self._turn = 0
        # Stops that go on in the background. Each ends by itself, so only a few are ever under way.
        self._leaving: set[asyncio.Task[None]] = set()

    async def send(
        self, messages: Sequence[Message], destination: Destination, oldest_unfinished: UUID
    ) -> list[Sent]:
        """Send messages, and return their outcomes; never raises an error of the broker.

        Nothing below `oldest_unfinished` is sent any more, except some of these messages. An error
        in one batch does not affect others.
        """
        if (unusable := self.topic_errors.pause_of(destination.topic)) is not None:
            return [Sent(destination.topic, -1, list(messages), error=unusable)]
        try:
            async with asyncio.timeout(self._send_seconds):
                producer = self._producer or await self._open()
        except SEND_ERRORS as error:
            refused = self._refused(destination.topic, error)
            return [Sent(destination.topic, -1, list(messages), error=refused)]
        with self._used(producer):
            done = await self._send_by(producer, messages, destination, oldest_unfinished)
        return await self._split_too_large(destination, done, oldest_unfinished)

    async def _send_by(
        self,
        producer: AIOKafkaProducer,
        messages: Sequence[Message],
        destination: Destination,
        oldest_unfinished: UUID,
    ) -> list[Sent]:
        topic = destination.topic
        try:
            async with asyncio.timeout(self._send_seconds):
                partitions = await partitions_of(producer, topic, self.topic_errors)
        except SEND_ERRORS as error:
            why = error if isinstance(error, TopicUnusable) else self._refused(topic, error)
            return [Sent(topic, -1, list(messages), error=why, producer=producer)]
        key = self.confirm_key if destination.confirm == "required" else None
        oldest_sent = min(oldest_unfinished, *map(_ID, messages))
        headers = common_headers(destination, oldest_sent, can_confirm=key is not None)
        database_key = self.confirm_key
        macs = None if database_key is None else MacMaker(database_key, destination, headers)
        shares = [
            _build(producer, topic, partition, share, headers, key, macs)
            for partition, share in self._shares(messages, partitions)
        ]
        await asyncio.gather(*(self._send_in_turn(producer, batches) for batches in shares))
        return [sent for batches in shares for sent, _ in batches]

    async def look_at(self, topic: str) -> TopicUnusable | None:
        """Ask the broker for a topic; return what is wrong with it, None if nothing is known."""
        try:
            async with asyncio.timeout(self._send_seconds):
                await partitions_of(self._producer or await self._open(), topic, self.topic_errors)
        except TopicUnusable as error:
            return error
        except SEND_ERRORS:
            return None
        return None

    async def is_broker_there(self, seconds: float) -> bool:
        """Return whether a new connection gets an answer from a broker."""
        return await is_broker_there(self._kafka, seconds)

    async def renew(self, failed: AIOKafkaProducer | None) -> None:
        """Discard the producer if a send by it has `failed`; the next send makes a new one.

        It is stopped once it has no send under way: what waits in it for an earlier batch of the
        same partition would never be sent.
        """
        if failed is not None and failed is self._producer:
            self._producer = None
            if not self._users[failed]:
                await self._leave(failed)

    @contextmanager
    def _used(self, producer: AIOKafkaProducer) -> Iterator[None]:
        """Keep a producer from being stopped; if it was discarded, its last user stops it."""
        self._users[producer] += 1
        try:
            yield
        finally:
            self._users[producer] -= 1
            if not self._users[producer]:
                del self._users[producer]
                if producer is not self._producer:
                    self._begin_stop(producer)

    async def close(self) -> None:
        """Discard the producer, and wait until all have ended, within the deadline of a send."""
        await self.renew(self._producer)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=self._send_seconds + 1.0)

    async def _send_in_turn(
        self, producer: AIOKafkaProducer, batches: list[tuple[Sent, BatchBuilder]]
    ) -> None:
        """Send the batches of one partition. After one without an answer, the others are not sent.

        The client would let them wait for each other, but not until its deadline: at every turn it
        subtracts the whole wait so far.
        """
        error: Exception | None = None
        for sent, built in batches:
            if error is not None:
                sent.error, sent.was_refused = error, True
                continue
            await self._send_batch(producer, sent, built)
            if not isinstance(sent.error, MessageSizeTooLargeError):
                error = sent.error

    async def _send_batch(
        self, producer: AIOKafkaProducer, sent: Sent, built: BatchBuilder
    ) -> None:
        was_taken = False
        try:
            # The client's own deadline counts from its next try; ours holds whatever it does.
            async with asyncio.timeout(self._send_seconds + 1.0):
                ack = await producer.send_batch(built, sent.topic, partition=sent.partition)
                was_taken = True
                sent.first_offset = (await ack).offset
            if self.topic_errors:
                self.topic_errors.is_over(sent.topic)
        except SEND_ERRORS as error:
            sent.error = self._refused(sent.topic, error)
            why = _why_refused(error)
            sent.was_refused = why is not None or not was_taken
            if why is not None:
                self.topic_errors.found(sent.topic, why)

    def _refused(self, topic: str, error: Exception) -> Exception:
        """Return `error` in words if the broker's access control has refused the topic."""
        return lasting_refusal(error, self._kafka, f"write to topic {topic}") or error

    async def _split_too_large(
        self, destination: Destination, done: list[Sent], oldest: UUID
    ) -> list[Sent]:
        """Send the halves of batches that were too large for the topic: most of them will fit."""
        kept: list[Sent] = []
        for sent in done:
            count = len(sent.messages)
            if isinstance(sent.error, MessageSizeTooLargeError) and count > 1:
                for half in (sent.messages[: count // 2], sent.messages[count // 2 :]):
                    kept += await self.send(half, destination, oldest)
            else:
                kept.append(sent)
        return kept

    def _shares(
        self, messages: Sequence[Message], partitions: list[int]
    ) -> list[tuple[int, Sequence[Message]]]:
        """Return messages by partition: one key, one partition; others go to one in turn."""
        self._turn += 1
        keyless = partitions[self._turn % len(partitions)]
        if len(partitions) == 1:
            return [(keyless, messages)]
        shares: dict[int, list[Message]] = {}
        for message in messages:
            key = message.key
            if key is None:
                chosen = keyless
            else:
                chosen = partitions[zlib.crc32(key.encode()) % len(partitions)]
            shares.setdefault(chosen, []).append(message)
        return list(shares.items())

    async def _open(self) -> AIOKafkaProducer:
        async with self._opening:
            if self._producer is not None:
                return self._producer
            producer = make_producer(
                self._kafka,
                "relay",
                max_batch_size=_BATCH_BYTES_MAX,
                max_request_size=_BATCH_BYTES_MAX + 4_096,
                request_timeout_ms=int(self._send_seconds * 1_000),
            )
            try:
                async with connecting(self._kafka, self._send_seconds):
                    await start_client(producer)
            except BaseException:
                await self._leave(producer)
                raise
            self._producer = producer
            return producer

    async def _leave(self, producer: AIOKafkaProducer) -> None:
        await asyncio.wait([self._begin_stop(producer)], timeout=_CLOSE_SECONDS)

    def _begin_stop(self, producer: AIOKafkaProducer) -> asyncio.Task[None]:
        # If its stop were cut off, the client would keep its sender, records and connections for
        # good.
        stop = asyncio.create_task(end_client(producer), name="orderchain producer stop")
        self._leaving.add(stop)
        stop.add_done_callback(self._leaving.discard)
        return stop


def _build(
    producer: AIOKafkaProducer,
    topic: str,
    partition: int,
    messages: Sequence[Message],
    common: Headers,
    confirm_key: bytes | None,
    macs: MacMaker | None,
) -> list[tuple[Sent, BatchBuilder]]:
    built: list[tuple[Sent, BatchBuilder]] = []
    timestamp_ms = time.time_ns() // 1_000_000
    batch, sent = producer.create_batch(), Sent(topic, partition, [], producer=producer)
    for message in messages:
        key = None if message.key is None else message.key.encode()
        token = None if confirm_key is None else token_of(confirm_key, message.message_id.bytes)
        headers = record_headers(message.message_id, message.headers, common, token)
        if macs is not None:
            macs.add(headers, message, key)
        if (
            batch.append(timestamp=timestamp_ms, key=key, value=message.payload, headers=headers)
            is None
        ):  # full
            built.append((sent, batch))
            batch, sent = producer.create_batch(), Sent(topic, partition, [], producer=producer)
            batch.append(timestamp=timestamp_ms, key=key, value=message.payload, headers=headers)
        sent.messages.append(message)
    built.append((sent, batch))
    return built
