"""One message on its way through the handler, and the pace of the workers that handle messages."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast
from uuid import UUID

from msgspec import Struct

from chain_kernel.clients.postgres import DriverUUID
from chain_kernel.clock import Backoff
from chain_kernel.errors import SettingError
from chain_kernel.text import SummedLog, reason_of
from chain_kernel.tracing import following
from outbox.errors import BadRecord
from outbox.records import read_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from chain_kernel.clients.kafka import ConsumerRecord
    from chain_kernel.clients.postgres import Connection
    from outbox.consumer.config import ConsumerStats, TrustedSenders


_log = logging.getLogger(__name__)

PAUSE_SECONDS_MIN: Final = 0.05
"""Pause after the first interruption: a broken connection is most often back at once."""

PAUSE_SECONDS_MAX: Final = 2.0
"""Longest pause while a database stays away: how late its return may be noticed."""

Given = TypeVar("Given")


class Attempt(Protocol):
    """Messages that a handler works on now."""

    @property
    def deliveries(self) -> Sequence[Delivery]:
        """What the handler is given."""
        ...

    @property
    def connection(self) -> Connection | None:
        """In the transaction that the effect joins; None for an idempotent handler."""
        ...

    async def succeed(self) -> None:
        """Commit, and take note. Raises nothing for a database that is away."""
        ...

    async def fail(self, error: BaseException) -> None:
        """Roll back, and ask for a retry. Raises nothing for a database that is away.

        If there are several messages, one of them has failed, and it is not known which: they come
        again, each alone.
        """
        ...


class HandlerScope(Generic[Given]):
    """`async with` it: at the end of the block the message is applied, or its retry is asked for.

    An error that the block raises is the message's failure: it is counted and logged, its message
    is parked, and the loop goes on. Only what is no `Exception`, such as a cancellation, passes
    through.
    """

    def __init__(self, attempt: Attempt, ended: Callable[[HandlerScope[Given]], None]) -> None:
        self.was_entered = False
        self._attempt = attempt
        self._ended = ended
        self._trace = following(attempt.deliveries[0].headers)

    @property
    def is_idempotent(self) -> bool:
        """Whether the effect joins no transaction of ours."""
        return self._attempt.connection is None

    async def __aenter__(self) -> Given:
        if self.was_entered:
            raise SettingError("delivery", "worked on before", "one block for each delivery")
        self.was_entered = True
        self._trace.__enter__()
        return cast("Given", self._attempt.connection)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._trace.__exit__(None, None, None)
        try:
            if error is None:
                await self._attempt.succeed()
            else:
                await self._attempt.fail(error)
        finally:
            self._ended(self)
        return isinstance(error, Exception)

    async def abandon(self, error: BaseException) -> None:
        """End a message whose block was never entered, or never left."""
        await self._attempt.fail(error)
        self._ended(self)


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
    """Where to confirm; None if no confirm is asked for."""
    confirm_token: bytes | None = None
    """Proves a confirm; without it none is sent."""
    oldest_unfinished: UUID | None = None
    """Its sender had nothing left to send below it. None: the record does not say."""
    failures: int = 0
    """How often its handler has failed so far."""
    is_alone: bool = False
    """Whether it is tried alone: a message of its batch has failed."""
    looked_before: bool = False
    """Whether another worker held it, and was given time."""
    queue_key: bytes = b""
    """What it is worked on in turn with: its key, or itself if it has none."""
    scope: Any = None
    """The block of `transaction` or `attempt`, if a loop got this delivery."""

    def transaction(self) -> HandlerScope[Connection]:
        """`async with delivery.transaction() as connection`: the effect, and its record, as one.

        Only for deliveries of `async for`. An error that the block raises is this message's
        failure, and does not reach the loop.
        """
        scope: HandlerScope[Connection] = self._scope(is_idempotent=False)
        return scope

    def attempt(self) -> HandlerScope[None]:
        """`async with delivery.attempt()`: the same for a consumer that says it is idempotent."""
        scope: HandlerScope[None] = self._scope(is_idempotent=True)
        return scope

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

    def _scope(self, *, is_idempotent: bool) -> Any:  # noqa: ANN401
        if self.scope is None:
            raise SettingError("delivery", "a handler's", "one that `async for` has given")
        if self.scope.is_idempotent != is_idempotent:
            expected = "`attempt` if the consumer is idempotent, else `transaction`"
            raise SettingError("block", "the other one", expected)
        return self.scope


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
    """When the workers of one consumer go on."""

    def __init__(self, busy_seconds: float, stats: ConsumerStats) -> None:
        """`busy_seconds`: how long a message that another worker has is left alone."""
        self.is_stopping = False
        self._busy_seconds = busy_seconds
        self._stats = stats
        self._changed = asyncio.Event()  # set when there may be work, or room, or the end
        self._paused_until = 0.0  # by the loop's clock: nothing is begun before it
        self._pauses = Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX)
        self._outage = SummedLog(_log, logging.WARNING)

    @property
    def pause_seconds(self) -> float:
        """How long nothing may be begun; 0 or less if work may go on."""
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

    def leave_alone(self, take_back: Callable[[], None]) -> None:
        """Call `take_back` later: another worker has a message, and is given time."""
        self._stats.waits += 1
        asyncio.get_running_loop().call_later(self._busy_seconds, take_back)

    def interrupted(self, error: BaseException) -> None:
        """Begin nothing for a while: the database is away, or in trouble. Longer each time."""
        kind, reason = type(error).__name__, reason_of(error)
        self._outage.repeat(f"work was broken off, and is done again: {kind}: {reason}")
        self._stats.interruptions += 1
        pause = self._pauses.next_seconds()
        self._paused_until = asyncio.get_running_loop().time() + pause

    def worked(self) -> None:
        """Record that the database is there."""
        self._pauses.reset()
        self._outage.log()
