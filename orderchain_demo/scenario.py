"""The demo's scenario: make a chain, sequence, lose, kill, restart, deliver.

Nothing in it is left to chance. The matching service is killed while the first part is sequenced,
because the second part is sequenced only when the service is live again; and the last frame of the
chain is lost live, because it belongs to the second part. The sequencer stays open until the
service has processed the last row: its heartbeats show that the last frame is missing.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from chain_kernel.errors import OrderchainError
from chain_kernel.sql import AUDITOR, GAP_READER, OWNER, RECEIVER_WRITER, SEQUENCER_WRITER, load_sql
from chain_kernel.text import counted
from chainctl.admin import apply_schema, create_chain
from chainctl.database import connected_to
from chainctl.monitor_server import Address, watched
from chainctl.output import talk
from chainctl.settings import Settings
from orderchain_demo.lossy_link import LinkFaults
from orderchain_demo.preparation import DemoInput
from orderchain_demo.processes import (
    Child,
    FinishCommand,
    MatchingFinished,
    MatchingJob,
    MatchingLive,
    MatchingProgress,
    MatchingResumed,
)
from orderchain_demo.sequencing import RowsUnderWay, Sequenced
from sequencer.intake.file import FileOptions, OrderFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from chainctl.admin import ChainCreation
    from chainctl.database import Connection
    from chainctl.output import ProgressBar
    from local_stack import LocalStack
    from sequencer import SequencerConfig


SQL: Final = load_sql("orderchain_demo", "queries.sql")

CHAIN_TRIES: Final = 10
"""How many numbers to try when somebody else takes each one at the same moment."""


class ChainSetup(Struct, frozen=True, kw_only=True):
    """A fresh chain, and how each part of the demo reaches it, with no more rights than needed."""

    chain_id: int
    topic: str
    kafka: str
    sequencer_database: str
    receiver_database: str
    gap_database: str
    audit_database: str

    def __repr__(self) -> str:
        """Show the chain alone: the addresses hold passwords."""
        return f"ChainSetup(chain_id={self.chain_id})"


async def set_up_chain(stack: LocalStack) -> ChainSetup:
    """Apply the schema where it is missing, and make a chain and the demo's own table.

    Raises SchemaError when there is a schema of another version.
    """
    environment = stack.environment()
    settings = Settings(
        database=environment["CHAINCTL_DATABASE"], kafka=environment["CHAINCTL_KAFKA"]
    )
    async with connected_to(settings.database, settings.connect_seconds, OWNER) as connection:
        await apply_schema(connection)
        await make_table(connection)
        chain = await _new_chain(connection, settings.kafka)
    return ChainSetup(
        chain_id=chain.chain,
        topic=chain.topic,
        kafka=settings.kafka,
        sequencer_database=stack.dsn(SEQUENCER_WRITER),
        receiver_database=stack.dsn(RECEIVER_WRITER),
        gap_database=stack.dsn(GAP_READER),
        audit_database=stack.dsn(AUDITOR),
    )


async def make_table(connection: Connection) -> None:
    """Make the demo's own table where it is missing, as the role of `connection`."""
    async with connection.transaction():
        # IF NOT EXISTS alone does not keep two concurrent demos apart.
        await connection.execute(SQL["lock_table"])
        await connection.execute(SQL["create_table"])
        await connection.execute(SQL["grant_table"])


async def _new_chain(connection: Connection, kafka: str) -> ChainCreation:
    """Make the chain with the next free number."""
    for _ in range(CHAIN_TRIES):
        chain_id = await connection.fetchval(SQL["next_chain"])
        chain = await create_chain(connection, kafka, chain_id)
        if chain.chain_created:
            return chain
    raise OrderchainError(f"somebody else took each of {CHAIN_TRIES} chain numbers in turn")


_T = TypeVar("_T")

STALL_SECONDS: Final = 60.0
"""How long nothing may move before the demo gives up: far longer than a process takes to start, or
a server to answer, on a slow machine."""

RECEIVER: Final = "demo-matching"

FRAMES_WANTED: Final = 800
BATCH_ROWS_MAX: Final = 1_000
"""Small inputs are cut into small frames, so that shares of a few per cent hit some of them."""

SAVES_WANTED: Final = 20
SAVE_ROWS_MIN: Final = 100
SAVE_ROWS_MAX: Final = 20_000
"""Rows that a killed service has to process again, at most."""


class Plan(Struct, frozen=True, kw_only=True):
    """What is to be played, and where."""

    setup: ChainSetup
    demo_input: DemoInput
    faults: LinkFaults
    journal: Path
    http: Address | None = None

    @property
    def rows(self) -> int:
        """Rows of the input; at least 1."""
        return self.demo_input.expected.rows

    @property
    def batch_rows(self) -> int:
        """Rows of one commit, and of one frame."""
        return min(max(self.rows // FRAMES_WANTED, 1), BATCH_ROWS_MAX)

    def sequencer(self) -> SequencerConfig:
        """Return how the sequencer of the demo runs."""
        from sequencer import SequencerConfig, SequencerTuning

        return SequencerConfig(
            chain_id=self.setup.chain_id,
            database=self.setup.sequencer_database,
            kafka=self.setup.kafka,
            name="chainctl demo",
            tuning=SequencerTuning(batch_rows_max=self.batch_rows),
        )

    @property
    def pause_at_row(self) -> int:
        """Last row of the first part."""
        return max(1, self.rows // 2)

    @property
    def save_rows(self) -> int:
        """The matching service stores its state after this many rows."""
        return min(max(self.rows // SAVES_WANTED, SAVE_ROWS_MIN), SAVE_ROWS_MAX)

    @property
    def kill_at_row(self) -> int:
        """The matching service is killed once this many rows are delivered.

        Half of the first part, and half of the way from one stored state to the next: so there is
        work to lose.
        """
        saves = self.rows // 4 // self.save_rows
        return max(1, min(saves * self.save_rows + self.save_rows // 2, self.pause_at_row))


class ServiceLife(Struct, frozen=True, kw_only=True):
    """What one process of the matching service did."""

    resumed: MatchingResumed
    delivered: MatchingProgress
    """Its last report; for a killed process, the last one before."""


class ScenarioOutcome(Struct, frozen=True, kw_only=True):
    """How the scenario ended: everything is delivered."""

    sequenced: Sequenced
    lives: list[ServiceLife]
    finished: MatchingFinished


async def run_scenario(plan: Plan, bar: ProgressBar) -> ScenarioOutcome:
    """Run to the end. Every process it starts has ended when this returns or raises.

    Raises ChildDied when one ends early, OrderchainError when nothing moves any more.
    """
    async with AsyncExitStack() as exits, asyncio.TaskGroup() as listeners:
        return await _Scenario(plan, bar, exits, listeners).run()


class _Scenario:
    """The running processes, and what they have reported."""

    def __init__(
        self, plan: Plan, bar: ProgressBar, exits: AsyncExitStack, listeners: asyncio.TaskGroup
    ) -> None:
        self._plan = plan
        self._bar = bar
        self._exits = exits
        self._listeners = listeners
        self._changed = asyncio.Event()
        self._lives: list[Child] = []
        self._sequencing: RowsUnderWay | None = None

    async def run(self) -> ScenarioOutcome:
        from sequencer import open_sequencer

        plan = self._plan
        first = await self._start_matching()
        await self._until(lambda: first.last(MatchingLive), "the matching service to be live")
        with OrderFile(plan.demo_input.path, FileOptions()) as intake:
            async with watched(plan.http) as watch, open_sequencer(plan.sequencer()) as sequencer:
                watch.add(sequencer)
                rows = RowsUnderWay(intake, sequencer, plan.batch_rows, self._changed.set)
                self._sequencing = rows
                # Its tasks end before the sequencer closes, which would fail them.
                async with asyncio.TaskGroup() as parts:
                    second, finished = await self._deliver(first, rows, parts)
        lives = [_life(first, first.last(MatchingProgress)), _life(second, finished.delivered)]
        return ScenarioOutcome(sequenced=rows.sequenced(), lives=lives, finished=finished)

    async def _deliver(
        self, first: Child, rows: RowsUnderWay, parts: asyncio.TaskGroup
    ) -> tuple[Child, MatchingFinished]:
        """Sequence both parts, and kill the first service meanwhile; return the second one."""

        def begin(until_row: int | None) -> asyncio.Task[None]:
            task = parts.create_task(rows.part(until_row), name=f"rows up to {until_row}")
            task.add_done_callback(lambda _: self._changed.set())
            return task

        first_part = begin(self._plan.pause_at_row)
        await self._kill(first)
        second = await self._start_matching()
        await self._until(
            lambda: second.last(MatchingLive), "the matching service to be live again"
        )
        await self._until(lambda: first_part.done() or None, "the first part to be sequenced")
        second_part = begin(None)
        await self._until(lambda: second_part.done() or None, "the second part to be sequenced")
        await second.send(FinishCommand(rows.last_id))
        awaited = f"the delivery of id {rows.last_id}"
        return second, await self._until(lambda: second.last(MatchingFinished), awaited)

    async def _kill(self, matching: Child) -> None:
        """Kill the matching service once it has stored something, and works on more."""
        reached = await self._until(
            lambda: _reached(matching, self._plan.kill_at_row), "the first rows to be delivered"
        )
        await matching.kill()
        talk(f"Killed the matching service (SIGKILL) at {counted(reached.events, 'row')}")

    async def _start_matching(self) -> Child:
        plan, setup = self._plan, self._plan.setup
        job = MatchingJob(
            database=setup.receiver_database,
            gap_database=setup.gap_database,
            kafka=setup.kafka,
            chain_id=setup.chain_id,
            topic=setup.topic,
            receiver=RECEIVER,
            journal=str(plan.journal),
            faults=plan.faults,
            last_key=plan.demo_input.expected.last_key,
            life=len(self._lives),
            save_rows=plan.save_rows,
            http=None if plan.http is None else Address(plan.http.host, plan.http.port + 1),
        )
        name = "matching service"
        child = await Child.start(name, "orderchain_demo.matching_service", job)
        self._exits.push_async_callback(child.stop)
        self._listeners.create_task(child.listen(self._changed), name=f"reports of the {name}")
        self._lives.append(child)
        return child

    async def _until(self, find: Callable[[], _T | None], awaited: str) -> _T:
        """Return what `find` finds once it finds something.

        Raises OrderchainError when no row moves for STALL_SECONDS before.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(STALL_SECONDS) as deadline:
                while (found := find()) is None:
                    before = self._rows_moved()
                    self._changed.clear()
                    await self._changed.wait()
                    if self._rows_moved() != before:
                        deadline.reschedule(loop.time() + STALL_SECONDS)
        except TimeoutError:
            message = f"nothing moved for {STALL_SECONDS:.0f} s, awaiting {awaited}"
            raise OrderchainError(message) from None
        return found

    def _rows_moved(self) -> tuple[int, int]:
        """Return rows sequenced and delivered, and show them."""
        reports = [life.last(MatchingProgress) for life in self._lives]
        rows = self._sequencing.rows if self._sequencing else 0
        # The last life that has reported: a new one must not seem to begin at nothing.
        delivered = next((report.events for report in reversed(reports) if report), 0)
        self._bar.move_to(delivered, f"delivered, {rows:,} sequenced")
        return rows, delivered


def _reached(matching: Child, row: int) -> MatchingProgress | None:
    """Return the service's report once it is at `row`, and has stored its state before."""
    delivered = matching.last(MatchingProgress)
    if delivered is None or delivered.events < row or not delivered.saves:
        return None
    return delivered


def _life(child: Child, delivered: MatchingProgress | None) -> ServiceLife:
    resumed = child.last(MatchingResumed)
    if resumed is None or delivered is None:
        raise OrderchainError("a matching service worked without a word")
    return ServiceLife(resumed=resumed, delivered=delivered)
