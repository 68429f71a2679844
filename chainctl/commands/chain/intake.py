"""Runs of `chainctl sequence` over topics, one chain or many, and the place of a file's intake."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_kernel.errors import (
    ChainMissing,
    ConnectError,
    HaltError,
    RefusedError,
    RetryError,
    SettingError,
    SteppedDown,
    TopicError,
)
from chain_kernel.model import IntakeMark
from chain_kernel.sql import SEQUENCER_WRITER
from chain_kernel.text import SummedLog, counted, reason_in_chain
from chainctl.database import SQL, connected_to, database_id
from chainctl.event_loop import report_ready
from chainctl.exits import under_way
from chainctl.monitor_server import Address, watched
from chainctl.output import Stopwatch, talk

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from chain_kernel.monitoring import MonitoredPart, Sample
    from chain_kernel.start_at import StartAt
    from chainctl.output import ProgressBar
    from chainctl.settings import Settings
    from sequencer import (
        Sequencer,
        SequencerConfig,
        SharedConnections,
        TopicIntake,
        TopicIntakeConfig,
    )

_log: Final = logging.getLogger(__name__)


async def taken_before(settings: Settings, chain_id: int, source: str) -> IntakeMark | None:
    """Return the place up to which `source` was taken into the chain, None if never.

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
    """The records taken from a topic, in one term as the leader."""

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

    def __init__(
        self,
        config: SequencerConfig,
        topic: TopicIntakeConfig,
        shared: SharedConnections | None = None,
    ) -> None:
        """`shared`: the connections of many; by default it has its own."""
        self.config = config
        self.topic = topic
        self._shared = shared
        self._sequencer: Sequencer | None = None
        self._intake: TopicIntake | None = None
        self._parts: tuple[MonitoredPart, ...] = ()
        self._stopwatch = Stopwatch()

    async def run(self, bar: ProgressBar, http: Address | None = None) -> None:
        """Lead the chain and feed it, until cancelled, replaced, or asked to step down.

        Metrics and health are served at `http`, also while it waits as a standby.
        """
        async with watched(http) as watch:
            watch.add(self)
            await self.check()
            if self.config.standby:
                report_ready(f"waits for the leader of chain {self.config.chain_id}")
            try:
                await self.lead(bar.move_to, report_ready)
            except SteppedDown as error:
                talk(f"chainctl: {error}")

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of sequencer and intake, as far as they exist."""
        for part in self._parts:
            yield from part.samples()

    def why_not_ready(self) -> str | None:
        """Return in one line why the chain is not fed."""
        if not self._parts:
            return f"chain {self.config.chain_id}: not started yet"
        return next((reason for part in self._parts if (reason := part.why_not_ready())), None)

    async def check(self) -> None:
        """Check the topic. A standby whose broker is away raises nothing, and waits."""
        from sequencer import check_intake_topic

        try:
            await check_intake_topic(self.topic)
        except (ConnectError, RetryError) as error:
            # A standby is wanted most while something is away: it reads the topic when it leads.
            if not self.config.standby:
                raise
            talk(f"chainctl: {error}; waits as a standby all the same")

    async def lead(
        self, on_progress: Callable[[int, str], None], on_leading: Callable[[str], None]
    ) -> None:
        """Lead the chain once, and feed it. Raises SteppedDown when asked to hand over."""
        from sequencer import TopicIntake, open_sequencer

        shared = self._shared
        opened = open_sequencer(self.config) if shared is None else shared.sequencer(self.config)
        self._parts = (opened,)
        async with under_way(opened) as sequencer:
            epoch = sequencer.stats().epoch
            talk(f"chainctl: leading chain {self.config.chain_id}, epoch {epoch}")
            on_leading(f"leads chain {self.config.chain_id}, epoch {epoch}")
            self._stopwatch = Stopwatch()
            self._sequencer = sequencer
            self._intake = (TopicIntake if shared is None else shared.intake)(
                self.topic,
                sequencer,
                on_progress=lambda stats: on_progress(
                    stats.records, f"id {sequencer.stats().head_persisted}"
                ),
            )
            self._parts = (sequencer, self._intake)
            await self._intake.run()

    def taken(self) -> list[TopicIntakeReport]:
        """Return what was done in the last term; nothing where it never led."""
        if self._sequencer is None or self._intake is None:
            return []
        intake, sequencer = self._intake.stats(), self._sequencer.stats()
        done = TopicIntakeReport(
            chain=self.config.chain_id,
            topic=self.topic.topic,
            epoch=sequencer.epoch,
            records=intake.records,
            rejects=intake.rejects,
            orders=sequencer.orders,
            last_id=sequencer.head_persisted,
            seconds=self._stopwatch.seconds,
        )
        return [done]


class ManyTopicsRun:
    """Intakes of many chains, each from a topic of its own, over shared connections."""

    def __init__(
        self, chains: Sequence[tuple[SequencerConfig, TopicIntakeConfig]], connections: int | None
    ) -> None:
        """Raises SettingError for a number of `connections` out of bounds."""
        from sequencer import SharedConnections

        configs = [config for config, _ in chains]
        bound = {} if connections is None else {"connections": connections}
        self._shared = SharedConnections(configs, **bound)
        self._runs = [TopicIntakeRun(*each, self._shared) for each in chains]
        self._records: dict[int, int] = {}
        self._failure: Exception | None = None
        self._failed = SummedLog(_log, logging.ERROR)

    async def run(self, bar: ProgressBar, http: Address | None = None) -> None:
        """Lead the chains and feed them until cancelled, or until none of them is led here.

        What ends one chain ends no other; raises it once all have ended.
        """
        async with watched(http) as watch:
            watch.add(*self._runs)
            refused = await self._check()
            async with self._shared:
                if any(run.config.standby for run in self._runs):
                    report_ready(f"waits for the leaders of {counted(len(self._runs), 'chain')}")
                try:
                    # Not `gather`: when cancelled, it does not wait for more than the first to end.
                    async with asyncio.TaskGroup() as group:
                        for run in self._runs:
                            group.create_task(self._keep_leading(run, bar, refused))
                finally:
                    self._failed.log()
        if self._failure is not None:
            raise self._failure

    def taken(self) -> list[TopicIntakeReport]:
        """Return what was done for each chain that was led, in its last term."""
        return [done for run in self._runs for done in run.taken()]

    async def _check(self) -> dict[str, TopicError]:
        """Check all topics before anything is taken over; return the errors of some.

        Raises the first error where none can be read: their name is wrong.
        """
        from sequencer import refused_topics

        try:
            refused = await refused_topics([run.topic for run in self._runs])
        except (ConnectError, RetryError) as error:
            if not self._runs[0].config.standby:
                raise
            talk(f"chainctl: {error}; waits as a standby all the same")
            return {}
        if len(refused) == len(self._runs):
            raise refused[self._runs[0].topic.topic]
        return refused

    async def _keep_leading(
        self, run: TopicIntakeRun, bar: ProgressBar, refused: Collection[str]
    ) -> None:
        """Lead one chain; as a standby again and again, as a supervisor does with a process.

        A chain whose topic is `refused` is not led before it can be read.
        """
        from sequencer import check_intake_topic

        config = run.config
        is_checked = run.topic.topic not in refused
        while True:
            try:
                if not is_checked:
                    # It was missing before: a broker that is away now does not say otherwise.
                    await check_intake_topic(run.topic)
                    is_checked = True
                await run.lead(partial(self._move, bar, config.chain_id), report_ready)
            except SteppedDown as error:
                talk(f"chainctl: {error}")
                if not config.standby:
                    return
            except Exception as error:  # noqa: BLE001 - of this chain alone
                self._log_failure(config.chain_id, reason_in_chain(config.chain_id, error))
                is_checked = is_checked and not isinstance(error, TopicError)
                # A server that is away is waited for: the connections that all share were opened.
                # So is a topic: that of another chain is there.
                is_away = isinstance(error, ConnectError | TopicError)
                is_refused = isinstance(error, RefusedError) and not is_away and not run.taken()
                if not config.standby or is_refused or isinstance(error, HaltError):
                    self._failure = self._failure or error
                    return
            # The chain is for another process first: this one would be back in no time.
            await asyncio.sleep(config.tuning.lease_seconds)

    def _log_failure(self, chain_id: int, why: str) -> None:
        """Log what has ended a chain; what ends many is one line, and a sum later."""

        def line(count: int) -> str:
            return f"{f'chain {chain_id}' if count == 1 else f'{count} more chains'}: {why}"

        self._failed.add(why, 1, line)

    def _move(self, bar: ProgressBar, chain_id: int, records: int, note: str) -> None:
        self._records[chain_id] = records
        bar.move_to(sum(self._records.values()), f"chain {chain_id}, {note}")


def topic_config(settings: Settings, topic: str, start_at: StartAt) -> TopicIntakeConfig:
    """Return the config of an intake from `topic`. Raises SettingError."""
    from sequencer import TopicIntakeConfig

    return TopicIntakeConfig(
        kafka=settings.kafka_config(),
        topic=topic,
        start_at=start_at,
        records_max=settings.batch_rows,
        connect_seconds=settings.connect_seconds,
    )
