"""The demo's scenario: make a chain, sequence, lose, kill, restart, deliver.

Nothing in it is left to chance. The matching service is killed while the first half is sequenced,
because the rest is sequenced only when the service is live again; and the last frame of the chain
is lost live, because it belongs to the rest. The sequencer stays open until the service has applied
the last row: its heartbeats show that the last frame is missing.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_kernel.errors import OrderchainError
from chain_kernel.sql import AUDITOR, GAP_READER, OWNER, RECEIVER_WRITER, SEQUENCER_WRITER, load_sql
from chain_kernel.testing.memory_chain import LinkDial
from chain_kernel.text import counted
from chainctl.admin import apply_schema, create_chain
from chainctl.database import connected_to
from chainctl.monitor_server import Address, watched
from chainctl.output import talk
from chainctl.settings import Settings
from orderchain_demo.feed import DemoInput, OrderFeed
from orderchain_demo.matching import MatchingJob, MatchingReport
from orderchain_demo.programs import Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from chainctl.admin import ChainCreation
    from chainctl.database import Connection
    from chainctl.output import ProgressBar
    from local_stack import LocalStack
    from sequencer import SequencerConfig

SQL: Final = load_sql("orderchain_demo", "queries.sql")

RECEIVER: Final = "demo-matching"
"""The name of the matching service's receiver."""

CHAIN_TRIES: Final = 10
"""Numbers to try when somebody else takes each one at the same moment."""

STALL_SECONDS: Final = 60.0
"""Time without any progress before the demo gives up: far longer than a process takes to start, or
a server to answer, on a slow machine."""

FRAMES_WANTED: Final = 800
BATCH_ROWS_MAX: Final = 1_000
"""Small inputs are cut into small frames, so that shares of a few per cent hit some of them."""

SAVES_WANTED: Final = 20
SAVE_ROWS_MIN: Final = 100
SAVE_ROWS_MAX: Final = 20_000
"""Rows that a killed service has to process again, at most."""


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
        await connection.execute(SQL["make_table"])
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


async def _new_chain(connection: Connection, kafka: str) -> ChainCreation:
    """Make the chain with the next free number."""
    for _ in range(CHAIN_TRIES):
        chain_id = await connection.fetchval(SQL["next_chain"])
        chain = await create_chain(connection, kafka, chain_id)
        if chain.chain_created:
            return chain
    raise OrderchainError(f"somebody else took each of {CHAIN_TRIES} chain numbers in turn")


class Plan(Struct, frozen=True, kw_only=True):
    """The scenario to be played, and where."""

    setup: ChainSetup
    orders: DemoInput
    journal: Path
    dial: LinkDial
    seed: int
    http: Address | None = None
    has_wrong_book: bool = False

    @property
    def batch_rows(self) -> int:
        """Rows of one commit, and of one frame."""
        return min(max(self.orders.rows // FRAMES_WANTED, 1), BATCH_ROWS_MAX)

    @property
    def save_rows(self) -> int:
        """The matching service stores its state after this many rows."""
        return min(max(self.orders.rows // SAVES_WANTED, SAVE_ROWS_MIN), SAVE_ROWS_MAX)

    @property
    def kill_at_row(self) -> int:
        """The matching service is killed once this many rows are delivered.

        It is a quarter of them, halfway from one stored state to the next: so there is work to
        lose.
        """
        saves = self.orders.rows // 4 // self.save_rows
        at = saves * self.save_rows + self.save_rows // 2
        return max(1, min(at, self.orders.rows // 2))

    def sequencer(self) -> SequencerConfig:
        """Return how the sequencer of the demo runs."""
        from sequencer import SequencerConfig, SequencerTuning

        return SequencerConfig(
            chain_id=self.setup.chain_id,
            database=self.setup.sequencer_database,
            kafka=self.setup.kafka,
            owner="chainctl demo",
            tuning=SequencerTuning(batch_rows_max=self.batch_rows),
        )

    def start_matching(self, life: int) -> Program:
        """Start the matching service, for the first time (0) or again."""
        setup = self.setup
        job = MatchingJob(
            database=setup.receiver_database,
            gap_database=setup.gap_database,
            kafka=setup.kafka,
            topic=setup.topic,
            chain_id=setup.chain_id,
            receiver=RECEIVER,
            rows=self.orders.rows,
            journal=str(self.journal),
            save_rows=self.save_rows,
            dial=self.dial,
            seed=f"{self.seed}/{life}",
            last_key=self.orders.last_key,
            http=None if self.http is None else Address(self.http.host, self.http.port + 1),
            wrong_at_row=self.orders.rows // 2 if self.has_wrong_book else 0,
        )
        return Program("matching service", "orderchain_demo.matching", job)


class Outcome(Struct, frozen=True, kw_only=True):
    """The end of the scenario: everything is delivered."""

    rows: int
    """Rows sequenced."""
    frames: int
    """Frames with rows that Kafka has acknowledged."""
    seconds: float
    """Time spent on sequencing."""
    lives: list[MatchingReport]
    """The last report of each life of the matching service."""


async def play(plan: Plan, bar: ProgressBar) -> Outcome:
    """Play to the end. Every program that it starts has ended when this returns or raises.

    Raises OrderchainError when one ends early, or when nothing moves any more.
    """
    from sequencer import open_sequencer

    feed = OrderFeed()
    with plan.start_matching(0) as first:
        await _until(first, lambda now: now.is_live, feed, bar)
        async with watched(plan.http) as watch, open_sequencer(plan.sequencer()) as sequencer:
            watch.add(sequencer)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(feed.run(sequencer, plan.orders, plan.batch_rows))
                killed = await _until(
                    first,
                    # It has stored something, and works on more.
                    lambda now: now.events >= plan.kill_at_row and now.saves > 0,
                    feed,
                    bar,
                )
                first.kill()
                talk(f"Killed the matching service (SIGKILL) at {counted(killed.events, 'row')}")
                with plan.start_matching(1) as second:
                    await _until(second, lambda now: now.is_live, feed, bar)
                    feed.resumed.set()
                    finished = await _until(second, lambda now: bool(now.digest), feed, bar)
    return Outcome(
        rows=feed.rows,
        frames=sequencer.stats().frames,
        seconds=feed.seconds,
        lives=[killed, finished],
    )


async def _until(
    matching: Program,
    is_reached: Callable[[MatchingReport], bool],
    feed: OrderFeed,
    bar: ProgressBar,
) -> MatchingReport:
    """Return the first report of the matching service that `is_reached` accepts.

    Raises OrderchainError when no row moves for STALL_SECONDS before.
    """
    loop, moved = asyncio.get_running_loop(), (0, 0)
    try:
        async with asyncio.timeout(STALL_SECONDS) as deadline:
            while True:
                now = await asyncio.to_thread(matching.read, MatchingReport)
                if is_reached(now):
                    return now
                if now.events:  # a new life must not seem to begin at nothing
                    bar.move_to(now.events, f"delivered, {feed.rows:,} sequenced")
                if (now.events, feed.rows) != moved:
                    moved = now.events, feed.rows
                    deadline.reschedule(loop.time() + STALL_SECONDS)
    except TimeoutError:
        raise OrderchainError(f"no order moved for {STALL_SECONDS:.0f} s") from None
