"""What `chainctl sequence` needs beside the intakes: where a file stands, and a topic's run."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from chain_kernel.errors import ChainMissing, ConnectError, SettingError, SteppedDown
from chain_kernel.model import IntakeMark
from chain_kernel.sql import SEQUENCER_WRITER
from chainctl.database import SQL, connected_to, database_id
from chainctl.event_loop import report_ready
from chainctl.exits import under_way
from chainctl.monitor_server import Address, Watch, watched
from chainctl.output import Stopwatch, talk

if TYPE_CHECKING:
    from chainctl.output import ProgressBar
    from chainctl.settings import Settings
    from sequencer import Sequencer, SequencerConfig, TopicIntake, TopicIntakeConfig


async def taken_before(settings: Settings, chain_id: int, source: str) -> IntakeMark | None:
    """Return how far `source` was taken into the chain, None if never.

    Call it before the chain is taken over: a file that will be refused must not end another
    leader's term. Raises ChainMissing, SchemaError, ConnectError.
    """
    async with connected_to(
        settings.database_dsn(), settings.connect_seconds, SEQUENCER_WRITER
    ) as connection:
        await database_id(connection)
        if await connection.fetchrow(SQL["chain"], chain_id) is None:
            raise ChainMissing(chain_id)
        row = await connection.fetchrow(SQL["intake"], chain_id, source)
    if row is None:
        return None
    return IntakeMark(source=source, position=row["position"], digest=row["digest"])


def standard_input() -> io.FileIO:
    """Return standard input, to be read and closed. Raises SettingError where there is none."""
    try:
        return io.FileIO(os.dup(sys.stdin.fileno()), "r")
    except (OSError, ValueError, AttributeError):
        raise SettingError("--input", "-", "an open standard input") from None


class TopicIntakeReport(Struct, frozen=True, kw_only=True):
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


class TopicIntakeRun:
    """An intake from a topic under way; `taken` returns what it did, even after a failure."""

    def __init__(self, config: SequencerConfig, topic: TopicIntakeConfig) -> None:
        self._config = config
        self._topic = topic
        self._sequencer: Sequencer | None = None
        self._intake: TopicIntake | None = None
        self._stopwatch = Stopwatch()

    async def run(self, bar: ProgressBar, http: Address | None = None) -> None:
        """Lead the chain and feed it, until cancelled, replaced, or asked to step down.

        Metrics and health are served at `http`, also while it waits as a standby.
        """
        async with watched(http) as watch:
            try:
                await self._run(bar, watch)
            except SteppedDown as error:
                talk(f"chainctl: {error}")

    async def _run(self, bar: ProgressBar, watch: Watch) -> None:
        from sequencer import TopicIntake, check_intake_topic, open_sequencer

        try:
            await check_intake_topic(self._topic)
        except ConnectError as error:
            # A standby is wanted most while something is away: it reads the topic when it leads.
            if not self._config.standby:
                raise
            talk(f"chainctl: {error}; waits as a standby all the same")
        opened = open_sequencer(self._config)
        watch.add(opened)
        if self._config.standby:
            report_ready(f"waits for the leader of chain {self._config.chain_id}")
        async with under_way(opened) as sequencer:
            epoch = sequencer.stats().epoch
            talk(f"chainctl: leading chain {self._config.chain_id}, epoch {epoch}")
            report_ready(f"leads chain {self._config.chain_id}, epoch {epoch}")
            self._stopwatch = Stopwatch()
            self._sequencer = sequencer
            self._intake = TopicIntake(
                self._topic,
                sequencer,
                on_progress=lambda stats: bar.move_to(
                    stats.records, f"id {sequencer.stats().head_persisted}"
                ),
            )
            watch.add(self._intake)
            await self._intake.run()

    def taken(self) -> TopicIntakeReport | None:
        """Return what was done; None where it never led."""
        if self._sequencer is None or self._intake is None:
            return None
        intake, sequencer = self._intake.stats(), self._sequencer.stats()
        return TopicIntakeReport(
            chain=self._config.chain_id,
            topic=self._topic.topic,
            epoch=sequencer.epoch,
            records=intake.records,
            rejects=intake.rejects,
            orders=sequencer.orders,
            last_id=sequencer.head_persisted,
            seconds=self._stopwatch.seconds,
        )


def topic_config(
    settings: Settings, topic: str, start: Literal["earliest", "latest"]
) -> TopicIntakeConfig:
    """Return the config of an intake from `topic`. Raises SettingError."""
    from sequencer import TopicIntakeConfig

    return TopicIntakeConfig(
        kafka=settings.kafka_config(),
        topic=topic,
        start=start,
        batch_rows=settings.batch_rows,
        connect_seconds=settings.connect_seconds,
    )
