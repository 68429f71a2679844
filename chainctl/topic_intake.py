"""Takes orders from a Kafka topic for as long as it leads the chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from chainctl.exits import under_way
from chainctl.output import Stopwatch, talk

if TYPE_CHECKING:
    from chainctl.output import ProgressBar
    from chainctl.settings import Settings
    from sequencer import Sequencer, SequencerConfig, TopicIntake, TopicIntakeConfig


class Taken(Struct, frozen=True, kw_only=True):
    """What `sequence` took from a topic, in one term as the leader."""

    chain: int
    topic: str
    epoch: int
    records: int
    """Records read and settled: orders, repeats and rejects."""
    rejects: int
    """Records that became no order; see the table chain_intake_reject."""
    orders: int
    """Orders added to the chain."""
    last_id: int
    """Head of the chain at the end."""
    seconds: float


class Taking:
    """An intake from a topic under way; `taken` returns what it did, even after a failure."""

    def __init__(self, config: SequencerConfig, topic: TopicIntakeConfig) -> None:
        self._config = config
        self._topic = topic
        self._sequencer: Sequencer | None = None
        self._intake: TopicIntake | None = None
        self._stopwatch = Stopwatch()

    async def run(self, bar: ProgressBar) -> None:
        """Lead the chain and feed it, until cancelled or replaced; then hand over."""
        from sequencer import TopicIntake, check_intake_topic, open_sequencer

        await check_intake_topic(self._topic)
        async with under_way(open_sequencer(self._config)) as sequencer:
            epoch = sequencer.stats().epoch
            talk(f"chainctl: leading chain {self._config.chain_id}, epoch {epoch}")
            self._stopwatch = Stopwatch()
            self._sequencer = sequencer
            self._intake = TopicIntake(
                self._topic,
                sequencer,
                on_progress=lambda stats: bar.move_to(
                    stats.records, f"id {sequencer.stats().head_persisted}"
                ),
            )
            await self._intake.run()

    def taken(self) -> Taken | None:
        """Return what was done; None where it never led."""
        if self._sequencer is None or self._intake is None:
            return None
        intake, sequencer = self._intake.stats(), self._sequencer.stats()
        return Taken(
            chain=self._config.chain_id,
            topic=self._topic.topic,
            epoch=sequencer.epoch,
            records=intake.records,
            rejects=intake.rejects,
            orders=sequencer.rows,
            last_id=sequencer.head_persisted,
            seconds=self._stopwatch.seconds,
        )


def topic_config(settings: Settings, topic: str, start: str) -> TopicIntakeConfig:
    """Return the config of an intake from `topic`. Raises SettingError."""
    from sequencer import TopicIntakeConfig

    return TopicIntakeConfig(
        kafka=settings.kafka_config(),
        topic=topic,
        start="latest" if start == "latest" else "earliest",
        batch_rows=settings.batch_rows,
        connect_seconds=settings.connect_seconds,
    )
