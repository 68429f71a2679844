"""Programs of the simulated world: sequencers and receivers, killed, paused and started again."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from chain_kernel.errors import (
    ClockError,
    ConnectError,
    HaltError,
    RetryError,
    StoppedError,
    TopicError,
    UnknownOutcome,
)
from chain_kernel.testing.virtual_loop import Process
from sequencer import Sequencer, SequencerConfig, SequencerTuning, TopicIntake, TopicIntakeConfig
from tests.doubles.wired import (
    WiredChainStore,
    WiredFrameSink,
    WiredKeyStore,
    WiredLease,
    WiredRecordSource,
)
from tests.tuned import scaled_down

from .orders_topic import TOPIC
from .plan import CHAIN_ID

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from .plan import Plan
    from .world import World

LEASE_SECONDS = 1.0
COMMIT_SECONDS = 0.8
STOP_SECONDS = 2.0
HEARTBEAT_SECONDS = 0.25
RECOVER_SECONDS = 8.0
INTAKE_STOP_SECONDS = 1.0
KAFKA_AWAY_SECONDS = 0.5


class DriftingClock:
    """A machine's clocks: the wall clock may step either way."""

    def __init__(self, world: World) -> None:
        self._loop = world.loop
        self.offset_ns = 0

    def monotonic_ns(self) -> int:
        return self._loop.monotonic_ns()

    def wall_ns(self) -> int:
        return self._loop.wall_ns() + self.offset_ns


class Program(ABC):
    """A program and what starts it again, always as a new process."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.clock = DriftingClock(world)
        self.process = Process(name)
        self.lives = 0

        self.task: asyncio.Task[None] | None = None
        self.is_stopping = False

    def start(self) -> None:
        self.lives += 1
        self.process = Process(f"{self.name}.{self.lives}")
        self.world.processes.append(self.process)
        self.task = self.process.run(self.world.guarded(self.live))

    @property
    def is_over(self) -> bool:
        """Whether its process has come to its end, or never began."""
        return self.task is None or self.task.done()

    def stop(self) -> None:
        """Have it end in good order: as it is asked to, or cancelled as by SIGTERM."""
        self.is_stopping = True
        if not self.ask_to_stop() and self.task is not None:
            self.task.cancel()

    @abstractmethod
    def ask_to_stop(self) -> bool:
        """Ask what runs to end; say whether there was something to ask."""

    def kill(self) -> None:
        self.world.note(self.name, "killed")
        self.process.kill()

    def restart(self) -> None:
        if self.process.is_dead:
            self.world.note(self.name, "restarted")
            self.start()

    @abstractmethod
    def live(self) -> Coroutine[Any, Any, None]:
        """Do what this host's process does, until it is killed."""


@dataclass(eq=False)
class Leader:
    """A sequencer that takes orders, or believes that it may."""

    process: Process
    sequencer: Sequencer
    until_stopped: asyncio.Future[None]

    def stop(self) -> None:
        """Have it stop gracefully; its host starts another one."""
        self.until_stopped.cancel()


@dataclass(eq=False)
class Start:
    """A sequencer that waits for the chain, or has taken it over and is not open yet."""

    sequencer: Sequencer
    took_over_at: float | None = None


class SequencerHost(Program):
    """A sequencer that is started again whatever ended it."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._starts: dict[str, Start] = {}
        """By the names of processes: one that was paused goes on beside the next one."""

    def on_term(self, owner: str) -> None:
        """Note that `owner` has taken over."""
        start = self._starts.get(owner)
        if start is not None:
            start.took_over_at = start.took_over_at or self.world.loop.time()

    async def live(self) -> None:
        world, process = self.world, self.process
        while not (process.is_dead or self.is_stopping):
            start = self._starts[process.name] = Start(self._open(process.name))
            was_led, began = world.chain.epoch > 0, world.loop.time()
            try:
                async with start.sequencer as sequencer:
                    world.judge.saw("looked", sequencer.stats().head_persisted, began)
                    await self._lead(process, sequencer)
            except (RetryError, ConnectError, StoppedError, UnknownOutcome, ClockError) as error:
                world.note(process.name, "stopped", repr(error))
                world.on_end(process.name, error)
                self._require_patience(process, error)
            except TopicError as error:
                world.note(process.name, "refused", repr(error))
                world.on_topic_error(process.name, error, was_led=was_led)
            except HaltError as error:
                world.on_halt(process.name, error)
            await asyncio.sleep(world.random.uniform(0.05, 0.5))

    def _require_patience(self, process: Process, error: Exception) -> None:
        """G15: between take-over and open it ends by what another leader does, or by an outage."""
        is_ours = self.process is process and not (process.is_dead or self.is_stopping)
        start = self._starts.get(process.name)
        if not is_ours or start is None or start.took_over_at is None:
            return
        seconds = self.world.loop.time() - start.took_over_at
        is_leader = start.sequencer._leadership.term is not None
        if (
            is_leader
            and isinstance(error, RetryError | ConnectError)
            and seconds < RECOVER_SECONDS / 2
        ):
            self.world.on_end_of_start(process.name, error, seconds)

    def ask_to_stop(self) -> bool:
        led = [leader for leader in self.world.leaders if leader.process is self.process]
        for leader in led:
            leader.stop()
        return bool(led)

    async def _lead(self, process: Process, sequencer: Sequencer) -> None:
        self.world.note(process.name, "leads")
        del self._starts[process.name]
        until_stopped = asyncio.ensure_future(sequencer.until_stopped())
        leader = Leader(process, sequencer, until_stopped)
        self.world.leaders.append(leader)
        try:
            await self._feed(sequencer, until_stopped)
            if not until_stopped.cancelled():
                until_stopped.result()
        finally:
            self.world.leaders.remove(leader)
            until_stopped.cancel()

    async def _feed(self, sequencer: Sequencer, until_stopped: asyncio.Future[None]) -> None:
        """Take orders from the topic, if there is one, for as long as this one leads."""
        if not self.world.orders.is_used:
            await asyncio.wait([until_stopped])
            return
        config = TopicIntakeConfig(
            kafka="simulated:1", topic=TOPIC, records_max=5, stop_seconds=INTAKE_STOP_SECONDS
        )
        source = WiredRecordSource(self.world.orders.topic, self.world.broker_wire())
        feeding = asyncio.ensure_future(
            TopicIntake(config, sequencer, source=source, random=self._random()).run()
        )
        try:
            await asyncio.wait([feeding, until_stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
        if not feeding.cancelled():
            feeding.result()

    def _random(self) -> Random:
        """The jitter of one process: the same in each run of a seed, and none of another's."""
        return Random(f"{self.world.plan.seed} {self.process.name}")

    def _open(self, name: str) -> Sequencer:
        world, plan = self.world, self.world.plan
        config = sequencer_config(plan, name)
        store_wire, lease_wire, key_wire = (world.database_wire() for _ in range(3))
        return Sequencer(
            scaled_down(
                config,
                queue_bytes_max=plan.queue_bytes_max,
                publish_queue_bytes_max=plan.publish_queue_bytes_max,
            ),
            store=WiredChainStore(
                world.hosts,
                CHAIN_ID,
                store_wire,
                world.commit_wire(),
                is_published=plan.has_broker,
            ),
            keys=WiredKeyStore(world.hosts, CHAIN_ID, key_wire),
            lease=WiredLease(world.hosts, CHAIN_ID, lease_wire),
            sink=WiredFrameSink(world.log, world.broker_wire()) if plan.has_broker else None,
            clock=self.clock,
            random=self._random(),
        )


def sequencer_config(plan: Plan, name: str) -> SequencerConfig:
    """Return the settings that `plan` has drawn for sequencers."""
    refuses = plan.refuses_without_kafka and plan.broker_in_the_end == "there" and plan.has_broker
    return SequencerConfig(
        chain_id=CHAIN_ID,
        database="postgresql://simulated",
        kafka="simulated:1" if plan.has_broker else None,
        owner=name,
        standby=plan.stands_by,
        id_strategy="time" if plan.is_time_ids else "sequential",
        key_window_rows=plan.key_window_rows,
        when_kafka_is_away="refuse" if refuses else "continue",
        tuning=sequencer_tuning(plan),
    )


def sequencer_tuning(plan: Plan) -> SequencerTuning:
    """Return the tuning that `plan` has drawn for sequencers."""
    return SequencerTuning(
        batch_rows_max=plan.batch_rows_max,
        linger_seconds=plan.linger_seconds,
        heartbeat_seconds=HEARTBEAT_SECONDS,
        lease_seconds=LEASE_SECONDS,
        commit_seconds=COMMIT_SECONDS,
        recover_seconds=RECOVER_SECONDS,
        stop_seconds=STOP_SECONDS,
        takeover_skip_ids=plan.takeover_skip_ids,
        kafka_at_start="required" if plan.starts_need_broker else "optional",
        kafka_away_seconds=KAFKA_AWAY_SECONDS,
        publish_wait_seconds=plan.publish_wait_seconds,
        publish_interval_seconds=plan.publish_interval_seconds,
        tail_rows_max=plan.tail_rows_max,
    )
