"""Frames from the topic that the chain's own row names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matcher_receiver.config import KafkaSourceConfig
from matcher_receiver.kafka_source import KafkaFrameSource
from orderchain.errors import SettingError

if TYPE_CHECKING:
    from matcher_receiver.config import ReceiverConfig
    from orderchain.ports import GapSource


class ChainFrames:
    """Implements `orderchain.ports.FrameSource` over the topic and partition of a chain.

    They are read from the database at the start, so nobody has to configure them. Where `config`
    names one of them all the same, the receiver compares it with the chain's row.
    """

    def __init__(self, config: ReceiverConfig, gap_source: GapSource) -> None:
        self._config = config
        self._gap_source = gap_source
        self._frames: KafkaFrameSource | None = None

    @property
    def place(self) -> tuple[str, int] | None:
        """Topic and partition; None before the start."""
        return None if self._frames is None else self._frames.place

    async def start(self) -> None:
        """Read the chain's row, check the topic and go to the live end.

        Raises ConnectError, TopicError, and as `orderchain.ports.GapSource.standing`.
        """
        if self._frames is None:
            head = (await self._gap_source.standing(0)).head
            self._frames = self._frames_of(head.topic, head.partition)
        await self._frames.start()

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        """Return the next records; see `orderchain.ports.FrameSource.records`."""
        if self._frames is None:
            raise SettingError("frame source", "not started", "start() first")
        return await self._frames.records(timeout_seconds)

    async def close(self) -> None:
        """Close; see `orderchain.ports.FrameSource.close`."""
        if self._frames is not None:
            await self._frames.close()

    def _frames_of(self, topic: str, partition: int) -> KafkaFrameSource:
        config = self._config
        if config.kafka is None:
            raise SettingError("kafka", None, "host:port, or a KafkaConfig")
        return KafkaFrameSource(
            KafkaSourceConfig(
                kafka=config.kafka,
                topic=topic if config.topic is None else config.topic,
                partition=partition if config.partition is None else config.partition,
                fetch_bytes=config.fetch_bytes,
                connect_seconds=config.connect_seconds,
                request_seconds=config.request_seconds,
                close_seconds=config.close_seconds,
            )
        )
