"""Frames of one chain, from its topic or from the notifications of its database."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from chain_kernel.doors import needs_extra
from chain_kernel.errors import (
    ConnectError,
    OrderchainError,
    RetryError,
    SettingError,
    TopicError,
)
from chain_kernel.text import reason_of
from matcher_receiver.config import KafkaSourceConfig
from matcher_receiver.stores.notified import NotifiedFrames

if TYPE_CHECKING:
    from chain_kernel.model import ChainHead
    from chain_kernel.ports import GapSource
    from matcher_receiver.config import ReceiverConfig
    from matcher_receiver.stores.kafka import KafkaFrameSource

_log = logging.getLogger(__name__)


class ChainFrames:
    """Implements `chain_kernel.ports.FrameSource` over what the chain's leader does.

    That is the topic which the chain's row names, or where the leader has no broker, notifications
    of the database. When nothing comes for a while the row is read again, and the source goes over
    to what it says now: Kafka may be added to a chain, and removed. A receiver without `kafka` only
    listens.
    """

    def __init__(self, config: ReceiverConfig, gap_source: GapSource) -> None:
        self._config = config
        self._gap_source = gap_source
        self._frames: KafkaFrameSource | NotifiedFrames | None = None
        self._is_started = False
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
        """Read the chain's row, check the topic and go to the live end.

        Raises ConnectError, TopicError, and as `chain_kernel.ports.GapSource.standing`.
        """
        if self._frames is None:
            self._frames = self._frames_of((await self._gap_source.standing(0)).head)
        await self._frames.start()
        self._is_started = True

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        """Return the next records."""
        if self._frames is None:
            raise SettingError("frame source", "not started", "start() first")
        try:
            if not self._is_started:
                await self.start()
            found = await self._frames.records(timeout_seconds)
        except (ConnectError, RetryError, TopicError) as error:
            await self._go_over(self._frames)
            raise RetryError(reason_of(error)) from error
        if not found:
            await self._go_over(self._frames)
        return found

    async def close(self) -> None:
        """Close."""
        self._is_started = False
        if self._frames is not None:
            await self._frames.close()

    async def _go_over(self, frames: KafkaFrameSource | NotifiedFrames) -> None:
        """Take other frames from now on if the chain's row says so."""
        now = asyncio.get_running_loop().time()
        if now - self._looked_at < self._config.tuning.poll_after_seconds:
            return
        self._looked_at = now
        try:
            head = (await self._gap_source.standing(0)).head
        except OrderchainError:
            return  # the receiver asks, too, and says what is wrong
        found = self._frames_of(head)
        if found.place == frames.place:
            return
        _log.info("chain %d: goes over to %s", head.chain_id, found)
        await self.close()
        self._frames = found

    def _frames_of(self, head: ChainHead) -> KafkaFrameSource | NotifiedFrames:
        config = self._config
        if config.kafka is None and head.is_published and head.epoch and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "chain %d is published to topic %s, and this receiver has no `kafka`: it polls",
                head.chain_id,
                head.topic,
            )
        if config.kafka is None or not head.is_published:
            return NotifiedFrames(config)
        with needs_extra("kafka", "ReceiverConfig.kafka"):
            from matcher_receiver.stores.kafka import KafkaFrameSource

        return KafkaFrameSource(
            KafkaSourceConfig(
                kafka=config.kafka,
                topic=head.topic,
                partition=head.partition,
                fetch_bytes=config.tuning.fetch_bytes,
                connect_seconds=config.tuning.connect_seconds,
                request_seconds=config.tuning.request_seconds,
                close_seconds=config.tuning.close_seconds,
            )
        )
