"""Programs of the simulated world: sequencers and receivers, killed, paused and started again."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from gapfill.config import GapReaderConfig
from gapfill.reader import GapReader
from matcher_receiver import Receiver, ReceiverConfig
from orderchain.errors import (
    CheckpointLost,
    ConnectError,
    GapError,
    HaltError,
    RetryError,
    StoppedError,
    UnknownOutcome,
)
from orderchain.simulation.lossy_link import LossyLink
from orderchain.simulation.memory_checkpoints import MemoryCheckpointStore, MemoryTransaction
from orderchain.simulation.memory_log import MemoryFrameSource
from orderchain.simulation.process import Process
from orderchain.simulation.wire import WireBroken
from orderchain.simulation.wired_log import WiredFrameSink
from orderchain.simulation.wired_store import WiredChainStore, WiredKeyStore, WiredLease
from sequencer import Sequencer, SequencerConfig

from .gap_connection import MemoryReadConnection
from .plan import CHAIN_ID

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from orderchain.event import Event
    from orderchain.run import Run

    from .world import World

LEASE_SECONDS = 1.0
COMMIT_SECONDS = 0.8
STOP_SECONDS = 2.0
HEARTBEAT_SECONDS = 0.25
POLL_AFTER_SECONDS = 1.0
OUTAGE_POLL_SECONDS = 0.25
RETRY_SECONDS_MAX = 1.0
RECOVER_SECONDS = 8.0


class DriftingClock:
    """A machine's clocks: the wall clock may step either way."""

    def __init__(self, world: World) -> None:
        self._loop = world.loop
        self.offset_ns = 0

    def monotonic_ns(self) -> int:
        return self._loop.monotonic_ns()

    def wall_ns(self) -> int:
        return self._loop.wall_ns() + self.offset_ns


class Host(ABC):
    """A program and what starts it again, always as a new process."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.clock = DriftingClock(world)
        self.process = Process(name)
        self.lives = 0

    def start(self) -> None:
        self.lives += 1
        self.process = Process(f"{self.name}.{self.lives}")
        self.world.processes.append(self.process)
        self.process.run(self.world.guarded(self.live))

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


class SequencerHost(Host):
    """A sequencer that is started again whatever ended it."""

    async def live(self) -> None:
        world, process = self.world, self.process
        while not process.is_dead:
            try:
                async with self._open() as sequencer:
                    await self._lead(process, sequencer)
            except (RetryError, ConnectError, StoppedError, UnknownOutcome) as error:
                world.note(process.name, "stopped", repr(error))
            except HaltError as error:
                world.on_halt(process.name, error)
            await asyncio.sleep(world.random.uniform(0.05, 0.5))

    async def _lead(self, process: Process, sequencer: Sequencer) -> None:
        self.world.note(process.name, "leads")
        until_stopped = asyncio.ensure_future(sequencer.until_stopped())
        leader = Leader(process, sequencer, until_stopped)
        self.world.leaders.append(leader)
        try:
            await asyncio.wait([until_stopped])
            if not until_stopped.cancelled():
                until_stopped.result()
        finally:
            self.world.leaders.remove(leader)
            until_stopped.cancel()

    def _open(self) -> Sequencer:
        world, plan = self.world, self.world.plan
        database = world.database
        store_wire, lease_wire, key_wire = (world.database_wire() for _ in range(3))
        return Sequencer(
            SequencerConfig(
                chain_id=CHAIN_ID,
                database="simulated",
                kafka="simulated",
                owner=self.process.name,
                standby=True,
                batch_rows_max=plan.batch_rows_max,
                heartbeat_seconds=HEARTBEAT_SECONDS,
                lease_seconds=LEASE_SECONDS,
                commit_seconds=COMMIT_SECONDS,
                recover_seconds=RECOVER_SECONDS,
                stop_seconds=STOP_SECONDS,
                takeover_skip_ids=plan.takeover_skip_ids,
                id_strategy="time" if plan.is_time_ids else "sequential",
                kafka_at_start="optional",
            ),
            store=WiredChainStore(database, CHAIN_ID, store_wire, world.commit_wire()),
            keys=WiredKeyStore(database, CHAIN_ID, key_wire),
            lease=WiredLease(database, CHAIN_ID, lease_wire),
            sink=WiredFrameSink(world.log, world.broker_wire()),
            clock=self.clock,
        )


class ReceiverHost(Host):
    """A matching service whose effects stand in the database, in one transaction with its place.

    Or, with the checkpoint apart, in a journal of its own, which is written first.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.effects: list[Event] = []

    @property
    def head_done(self) -> int:
        return self.effects[-1].id if self.effects else 0

    async def live(self) -> None:
        process = self.process
        while not process.is_dead:
            try:
                await self._receive()
            except HaltError as error:
                self.world.on_halt(self.name, error)
                return
            except GapError as error:
                self.world.on_rows_missing(self.name, error)
            except (RetryError, ConnectError, CheckpointLost, StoppedError) as error:
                self.world.note(self.name, "stopped", repr(error))
            await asyncio.sleep(self.world.random.uniform(0.05, 0.5))

    async def _receive(self) -> None:
        receiver = self._open()
        head_delivered: int | None = None
        async with receiver:
            async for run in receiver:
                head_delivered = run.first_pid if head_delivered is None else head_delivered
                self.world.checker.on_run(self.process.name, head_delivered, run)
                head_delivered = run.last_id
                if self.world.random.random() < 0.2:
                    await asyncio.sleep(self.world.random.uniform(0.0, 0.2))  # works on it
                await self._take_effect(receiver, run)

    async def _take_effect(self, receiver: Receiver, run: Run) -> None:
        if self.world.plan.keeps_checkpoint_apart:
            self._write_journal(run)
            await receiver.checkpoint(run)
            return
        transaction = MemoryTransaction()
        transaction.add(lambda: self._add(run.events))
        await receiver.checkpoint(run, connection=transaction)
        try:
            await self.world.commit_wire().call(transaction.commit)
        except WireBroken as error:
            # Whether it was committed is found at the next start.
            raise RetryError(str(error)) from error

    def _write_journal(self, run: Run) -> None:
        """Append what the journal lacks: its end may be ahead of the checkpoint."""
        self.world.checker.require(
            run.first_pid <= self.head_done, "S5 hole in the journal", run.first_pid, self.head_done
        )
        self._add([event for event in run.events if event.id > self.head_done])

    def _add(self, events: list[Event]) -> None:
        self.effects += events
        self.world.checker.on_effect(self.name, self.effects, len(events))

    def _open(self) -> Receiver:
        world = self.world
        return Receiver(
            ReceiverConfig(
                chain_id=CHAIN_ID,
                name=self.name,
                poll_after_seconds=POLL_AFTER_SECONDS,
                outage_poll_seconds=OUTAGE_POLL_SECONDS,
                retry_seconds_max=RETRY_SECONDS_MAX,
                standby_wait_seconds=10.0,
                kafka_at_start="optional" if world.plan.is_broker_optional else "required",
            ),
            MemoryFrameSource(world.log, LossyLink(world.link_dial, world.random)),
            self._gap_reader(),
            MemoryCheckpointStore(world.database, CHAIN_ID, self.name, world.database_wire()),
            self.clock,
            random=Random(world.random.random()),
        )

    def _gap_reader(self) -> GapReader:
        world = self.world
        config = GapReaderConfig(
            database="simulated", chain_id=CHAIN_ID, page_rows=world.plan.page_rows
        )
        reader = GapReader(config)
        reader._connection = MemoryReadConnection(  # type: ignore[assignment]
            (lambda: world.replica.chain) if world.plan.is_standby_read else (lambda: world.chain),
            is_standby=world.plan.is_standby_read,
            wire=world.database_wire(),
        )
        return reader
