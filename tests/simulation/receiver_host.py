"""A matching service of the simulated world: what it reads, and where its effects stand."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from chain_kernel.errors import (
    CheckpointLost,
    ConnectError,
    GapError,
    HaltError,
    RetryError,
    StoppedError,
    TopicError,
)
from chain_kernel.testing.memory_chain import LossyLink
from chain_kernel.testing.memory_log import MemoryFrameSource
from chain_kernel.testing.memory_receiver import MemoryTransaction
from gapfill import GapReader, GapReaderConfig, PreferenceConfig, PreferredSources
from matcher_receiver import Receiver, ReceiverConfig, ReceiverTuning
from tests.doubles.wire import WireBroken
from tests.doubles.wired import asking_over

from .gap_connection import MemoryReadConnection
from .hosts import Program
from .notices import HeardNotices
from .plan import CHAIN_ID
from .seen import SeenCheckpoints, SeenGaps, end_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from chain_kernel.model import Event, Run
    from chain_kernel.ports import GapSource
    from chain_kernel.testing.memory_store import CommittedChain
    from tests.doubles.wire import WiredServer

    from .plan import Plan
    from .world import World

POLL_AFTER_SECONDS = 1.0
OUTAGE_POLL_SECONDS = 0.25
RETRY_SECONDS_MAX = 1.0
STANDBY_SECONDS = 0.5
AVOID_SECONDS = 1.0
GAPS_KEPT = 3
PATIENCE_GROWTH = 1.5
IDLE_PATIENCE_SECONDS = 0.1


class ReceiverHost(Program):
    """A matching service whose effects are in the database, in one transaction with its place.

    Or, with the checkpoint apart, in a journal of its own, which is written first.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.effects: list[Event] = []
        # By process: a zombie has one of its own.
        self._receivers: dict[str, Receiver] = {}

    @property
    def receiver(self) -> Receiver | None:
        """The one of the process that is not replaced."""
        return self._receivers.get(self.process.name)

    def ask_to_stop(self) -> bool:
        if self.receiver is None or self.world.random.random() < 0.5:
            return False
        self.receiver.stop()
        return True

    @property
    def head_done(self) -> int:
        return self.effects[-1].id if self.effects else 0

    async def live(self) -> None:
        process = self.process
        while not (process.is_dead or self.is_stopping):
            was_led = self.world.chain.epoch > 0
            try:
                await self._receive(process.name)
            except HaltError as error:
                self.world.on_halt(self.name, error)
                return
            except GapError as error:
                self.world.on_rows_missing(self.name, error)
            except (RetryError, ConnectError, CheckpointLost, StoppedError) as error:
                self.world.note(self.name, "stopped", repr(error))
            except TopicError as error:
                self.world.note(self.name, "refused", repr(error))
                if not self.world.plan.receivers_need_broker:
                    self.world.on_topic_error(self.name, error, was_led=was_led)
            await asyncio.sleep(self.world.random.uniform(0.05, 0.5))

    async def _receive(self, process_name: str) -> None:
        receiver = self._open()
        async with receiver:
            self._receivers[process_name] = receiver
            try:
                await self._work_off(process_name, receiver)
            finally:
                del self._receivers[process_name]

    async def _work_off(self, process_name: str, receiver: Receiver) -> None:
        self.world.judge.saw("receiving", process_name, receiver.head_delivered)
        while (run := await self._next_run(receiver)) is not None:
            self.world.judge.saw("run", process_name, rows_of(run.events), end_of(run))
            if self.world.random.random() < 0.2:
                await asyncio.sleep(self.world.random.uniform(0.0, 0.2))  # works on it
            await self._take_effect(receiver, run)

    async def _next_run(self, receiver: Receiver) -> Run | None:
        """Wait for the next run as a service does that has other things to do, too.

        While nothing comes, it asks less often: half of a world's time would go into that.
        """
        seconds = self.world.plan.patience_seconds
        while True:
            patience = self.world.random.uniform(0.0, seconds)
            try:
                async with asyncio.timeout(patience):
                    return await anext(receiver, None)
            except TimeoutError:
                seconds = max(seconds, min(seconds * PATIENCE_GROWTH, IDLE_PATIENCE_SECONDS))

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
        self.world.judge.saw("journal", self.name, run.first_pid)
        self._add([event for event in run.events if event.id > self.head_done])

    def _add(self, events: list[Event]) -> None:
        self.effects += events
        self.world.judge.saw("effect", self.name, rows_of(events))

    def _open(self) -> Receiver:
        world = self.world
        link = LossyLink(world.link_dial, world.random)
        has_broker = world.plan.has_broker
        return Receiver(
            receiver_config(world.plan, self.name),
            MemoryFrameSource(world.log, link) if has_broker else HeardNotices(world.hosts, link),
            self._gap_reader(),
            SeenCheckpoints(
                world.judge,
                *(world.database, CHAIN_ID, self.name, asking_over(world.database_wire())),
                may_lag=world.plan.keeps_checkpoint_apart,
            ),
            self.clock,
            random=Random(world.random.random()),
        )

    def _gap_reader(self) -> GapSource:
        """What the plan says is read, before the judge."""
        sees_looks = self.world.plan.old_primary == "never replaced"
        return SeenGaps(self._any_reader(), self.world.judge, sees_looks=sees_looks)

    def _any_reader(self) -> GapSource:
        """The primary, a standby, or both, the standby first."""
        sources = self.world.plan.sources
        if sources == "primary":
            return self._reader(is_standby=False)
        if sources == "standby":
            return self._reader(is_standby=True)
        return PreferredSources(
            [self._reader(is_standby=True), self._reader(is_standby=False)],
            PreferenceConfig(standby_seconds=STANDBY_SECONDS, avoid_seconds=AVOID_SECONDS),
            random=Random(self.world.random.random()),
        )

    def _reader(self, *, is_standby: bool) -> GapReader:
        world = self.world
        config = GapReaderConfig(
            database="postgresql://simulated", chain_id=CHAIN_ID, page_rows=world.plan.page_rows
        )
        reader = GapReader(config)
        reader._connection = MemoryReadConnection(  # type: ignore[assignment]
            self._connect_to_standby if is_standby else self._connect_to_primary,
            is_standby=is_standby,
            wire=world.standby_wire() if is_standby else world.database_wire(),
        )
        return reader

    def _connect_to_standby(self) -> tuple[WiredServer, Callable[[], CommittedChain]]:
        return self.world.standby_server, lambda: self.world.replica.chain

    def _connect_to_primary(self) -> tuple[WiredServer, Callable[[], CommittedChain]]:
        database, server = self.world.hosts.newest
        return server, lambda: database.chains[CHAIN_ID]


def receiver_config(plan: Plan, name: str) -> ReceiverConfig:
    """Return the settings that `plan` has drawn for receivers."""
    tuning = ReceiverTuning(
        poll_after_seconds=POLL_AFTER_SECONDS,
        outage_poll_seconds=OUTAGE_POLL_SECONDS,
        retry_seconds_max=RETRY_SECONDS_MAX,
        standby_wait_seconds=10.0,
        gaps_kept=GAPS_KEPT,
        kafka_at_start="required" if plan.receivers_need_broker else "optional",
    )
    return ReceiverConfig(chain_id=CHAIN_ID, name=name, tuning=tuning)
