"""Frames of one chain, from its topic or from the notifications of its database."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from chain_kernel.doors import needs_extra
from chain_kernel.errors import OrderchainError, RetryError, SettingError
from chain_kernel.tasks import HomeLoop
from matcher_receiver.config import KafkaSourceConfig
from matcher_receiver.listening import OptionalFrames
from matcher_receiver.stores.notified import NotifiedFrames, listened_to

if TYPE_CHECKING:
    from chain_kernel.model import ChainHead
    from chain_kernel.ports import FrameSource, GapSource
    from matcher_receiver.config import ReceiverConfig
    from matcher_receiver.stores.kafka import KafkaFrameSource

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 30.0


class ChainFrames:
    """Implements `chain_kernel.ports.FrameSource` over what the chain's leader does.

    That is the topic which the chain's row names, or where the leader has no broker, notifications
    of the database. When nothing comes for a while the row is read again, and the source goes over
    to what it says now: Kafka may be added to a chain, and removed. A receiver without `kafka` only
    listens.
    """

    def __init__(self, config: ReceiverConfig, gap_source: GapSource) -> None:
        """Raises SettingError without `kafka` and a database; ModuleNotFoundError where `kafka` is
        set and its extra is missing.
        """
        self._config = config
        self._gap_source = gap_source
        # Read now: a file of theirs may be replaced when the chain loses its broker.
        self._databases = listened_to(config)
        if config.kafka is not None:
            _require_kafka()
        elif not self._databases:
            expected = "a primary that is read, and listened to, or `kafka`"
            raise SettingError("gap_databases", "none that means one", expected)
        self._frames: KafkaFrameSource | NotifiedFrames | OptionalFrames | None = None
        self._home = HomeLoop("frame source")
        self._looked_at = 0.0
        self._has_warned = False

    @property
    def place(self) -> tuple[str, int] | None:
        """Topic and partition; None before the start, and where the leader has no broker."""
        return None if self._frames is None else self._frames.place

    @property
    def has_rows(self) -> bool:
        """True if frames bring rows."""
        return self._frames is not None and self._frames.has_rows

    async def start(self) -> None:
        """Read the chain's row, check the topic and go to the live end, or listen.

        Raises ConnectError, TopicError, and as `chain_kernel.ports.GapSource.standing`.
        """
        self._home.join()
        place = self._place_of((await self._gap_source.standing(0)).head)
        frames = self._frames
        if frames is None or frames.place != place:  # it may change between two tries
            if frames is not None:
                await frames.close()
            frames = self._frames = self._frames_of(place)
        await frames.start()
        self._looked_at = asyncio.get_running_loop().time()

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        """Return the next records."""
        self._home.check()
        if self._frames is None:
            raise SettingError("frame source", "not started", "start() first")
        try:
            found = await self._frames.records(timeout_seconds)
        except RetryError:
            await self._go_over(self._frames)
            raise
        await self._go_over(self._frames, has_frames=bool(found))
        return found

    async def close(self) -> None:
        """Close. Raises SettingError in another event loop."""
        self._home.check()
        self._home.leave()
        if self._frames is not None:
            await self._frames.close()

    async def _go_over(self, frames: FrameSource, *, has_frames: bool = False) -> None:
        """Take other frames from now on if the chain's row says so.

        It is read again soon when nothing comes, and now and then while frames do: a leader that
        was replaced may go on where its successor does not. Without `kafka` only a warning depends
        on it.
        """
        now, tuning = asyncio.get_running_loop().time(), self._config.tuning
        is_rare = has_frames or self._config.kafka is None
        pause = _LOOK_SECONDS if is_rare else tuning.poll_after_seconds
        if now - self._looked_at < pause:
            return
        self._looked_at = now
        try:
            head = (await self._gap_source.standing(0)).head
        except OrderchainError:
            return  # the receiver asks, too, and says what is wrong
        if (place := self._place_of(head)) == frames.place:
            return
        where = f"topic {place[0]}" if place else "notifications of the database"
        _log.info("chain %d: goes over to %s", head.chain_id, where)
        # Started beside: a broker that is silent must not hold up what the database has.
        self._frames = OptionalFrames(self._frames_of(place), tuning.outage_poll_seconds)
        try:
            await self._frames.start()
        finally:
            await frames.close()

    def _place_of(self, head: ChainHead) -> tuple[str, int] | None:
        """Return the topic to read, None to listen."""
        if self._config.kafka is None:
            if head.is_published and head.epoch and not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "chain %d is published to topic %s, and this receiver has no `kafka`: it polls "
                    "the database until that is set",
                    head.chain_id,
                    head.topic,
                )
            return None
        return (head.topic, head.partition) if head.is_published or not self._databases else None

    def _frames_of(self, place: tuple[str, int] | None) -> KafkaFrameSource | NotifiedFrames:
        config = self._config
        if place is None or config.kafka is None:
            return NotifiedFrames(config, self._databases)
        topic, partition = place
        return _require_kafka()(
            KafkaSourceConfig(
                kafka=config.kafka,
                topic=topic,
                partition=partition,
                fetch_bytes=config.tuning.fetch_bytes,
                connect_seconds=config.tuning.connect_seconds,
                request_seconds=config.tuning.request_seconds,
                close_seconds=config.tuning.close_seconds,
            )
        )


def _require_kafka() -> type[KafkaFrameSource]:
    """Return the source over Kafka, whose client a receiver without it does not need."""
    with needs_extra("kafka", "ReceiverConfig.kafka"):
        from matcher_receiver.stores.kafka import KafkaFrameSource
    return KafkaFrameSource
