"""One message on its way through the handler, and the pace of the workers that handle messages."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec import Struct

from chain_kernel.clients.postgres import DriverUUID
from chain_kernel.clock import Backoff
from chain_kernel.text import SummedLog, reason_of
from outbox.errors import BadRecord
from outbox.records import read_headers

if TYPE_CHECKING:
    from chain_kernel.clients.kafka import ConsumerRecord
    from outbox.consumer.config import ConsumerStats, TrustedSenders


_log = logging.getLogger(__name__)

PAUSE_SECONDS_MIN: Final = 0.05
"""Pause after the first interruption: a broken connection is most often back at once."""

PAUSE_SECONDS_MAX: Final = 2.0
"""Longest pause while a database stays away: how late its return may be noticed."""


class Delivery(Struct, eq=False):
    """A received message. Only `message_id` identifies it: it may come several times."""

    message_id: UUID
    destination: str
    payload: bytes
    """As it was sent. For a record without a value it is empty bytes."""
    key_bytes: bytes | None
    headers: dict[str, bytes]
    """The sender's own headers; ours are removed."""
    topic: str
    partition: int
    offset: int
    received_at: datetime
    confirm_topic: str | None = None
    """The topic to confirm on; None if no confirm is asked for."""
    confirm_token: bytes | None = None
    """Proves a confirm; without it none is sent."""
    oldest_unfinished: UUID | None = None
    """Its sender had nothing left to send below it. None: the record does not say."""
    failures: int = 0
    """Failures of its handler so far."""
    is_alone: bool = False
    """True if it is tried alone: a message of its batch has failed."""
    looked_before: bool = False
    """True if another worker held it, or one of its key, and was given time."""
    interruptions: int = 0
    """Interruptions of its handler by others, in a row."""
    queue_key: bytes = b""
    """The queue that it is worked on in turn with: its key, or itself if it has none."""

    def __post_init__(self) -> None:
        """Name the queue: keys begin with a letter, so none is taken for an id of 16 bytes."""
        key = self.key_bytes
        self.queue_key = self.message_id.bytes if key is None else b"key " + key

    @property
    def key(self) -> str | None:
        """The key as text; bytes that are no UTF-8 are shown with backslashes."""
        return None if self.key_bytes is None else self.key_bytes.decode(errors="backslashreplace")

    @property
    def size(self) -> int:
        """Bytes that it holds in memory, apart from what every delivery costs."""
        return len(self.payload) + len(self.key_bytes or b"")

    @property
    def place(self) -> tuple[str, int]:
        """The topic and partition that it came from."""
        return self.topic, self.partition


def read_delivery(
    record: ConsumerRecord, received_at: datetime, trusted: TrustedSenders
) -> Delivery:
    """Return the content of a record.

    Raises BadRecord if it is not one of our messages, or not one of a sender that is trusted.
    """
    read = read_headers(record.headers, make_id=DriverUUID)
    if trusted.keys and not read.is_made_with(trusted.keys, record.key, record.value):
        raise BadRecord("mac", "it was made with none of this consumer's `keys`")
    if read.confirm_topic is not None and read.confirm_topic not in trusted.confirm_topics:
        raise BadRecord(
            "confirm topic", f"{read.confirm_topic} is none of this consumer's `confirm_topics`"
        )
    return Delivery(
        message_id=read.message_id,
        destination=read.destination,
        payload=record.value if record.value is not None else b"",
        key_bytes=record.key,
        headers=read.own,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        received_at=received_at,
        confirm_topic=read.confirm_topic,
        confirm_token=read.confirm_token,
        oldest_unfinished=read.oldest_unfinished,
    )


class Pace:
    """Pauses and the stop of the workers of one consumer."""

    def __init__(self, stats: ConsumerStats) -> None:
        self.is_stopping = False
        self._stats = stats
        self._changed = asyncio.Event()  # set when there may be work, or room, or the end
        self._paused_until = 0.0  # by the loop's clock: nothing is begun before it
        self._pauses = Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX)
        self._outage = SummedLog(_log, logging.WARNING)

    @property
    def pause_seconds(self) -> float:
        """Seconds in which nothing may be begun; 0 or less if work may go on."""
        return self._paused_until - asyncio.get_running_loop().time()

    def wake(self) -> None:
        """End every `wait`: there may be work, or room, or the end."""
        self._changed.set()

    def stop(self) -> None:
        """Begin nothing more."""
        self.is_stopping = True
        self.wake()

    async def wait(self, seconds: float) -> None:
        """Wait until there may be something to do, or until `seconds` have passed."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                await self._changed.wait()

    def broken_off(self, error: BaseException) -> None:
        """Record that work is done again."""
        kind, reason = type(error).__name__, reason_of(error)
        self._outage.repeat(f"work was broken off, and is done again: {kind}: {reason}")
        self._stats.interruptions += 1

    def interrupted(self, error: BaseException) -> None:
        """Begin nothing for a while: the database is away, or in trouble. Longer each time."""
        self.broken_off(error)
        pause = self._pauses.next_seconds()
        self._paused_until = asyncio.get_running_loop().time() + pause

    def worked(self) -> None:
        """Record that the database is there."""
        self._pauses.reset()
        self._outage.log()
