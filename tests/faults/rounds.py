"""One round of a pair of faults: two sequencers, a client, a receiver, and somebody who watches."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import msgspec

from chain_kernel.clients.postgres_errors import DRIVER_ERRORS
from chain_kernel.errors import HaltError, OrderchainError
from chain_kernel.model import Event, Mark
from chain_kernel.sql import GAP_READER
from local_stack import PostgresServer
from matcher_receiver import ReceiverConfig, ReceiverTuning
from orderchain import open_receiver
from sequencer import Ack
from tests.builders.created_chain import Chain
from tests.builders.standbys import ServerPair
from tests.deadlines import deadline, stretched

from .brokers import Brokers, Kafka
from .chains import create_chain, promoted, require_whole
from .inspector import inspect, inspect_topic
from .processes import Worker

LED_SECONDS = 15.0
"""Beside the lease: while the database is well, orders are committed again within both."""

CALL_SECONDS = 60.0
"""A caller has an answer within `recover_seconds`, whatever is away."""

LOOK_SECONDS = 0.1
BESIDE = 1_000
"""Added to a chain's number: that of the one beside it."""
ASK_SECONDS = 1.0


class Row(msgspec.Struct):
    """A line of the table."""

    pair: str = ""
    rounds: int = 0
    acknowledged: int = 0
    longest_seconds: float = 0.0
    """Without a commit, whatever the reason."""
    unled_seconds: float = 0.0
    """The longest time without a commit while the database was well."""

    def add(self, other: Row) -> None:
        self.rounds += other.rounds
        self.acknowledged += other.acknowledged
        self.longest_seconds = max(self.longest_seconds, other.longest_seconds)
        self.unled_seconds = max(self.unled_seconds, other.unled_seconds)


class Load:
    """A client that submits without end, and again what has no answer, to the leader."""

    def __init__(self, sequencers: Sequencers) -> None:
        self.acked: dict[str, Ack] = {}
        self.is_over = self.has_ended = False
        self._sequencers = sequencers
        self._open: list[str] = []
        self._made = 0

    async def run(self) -> None:
        while not self.is_over:
            worker = self._sequencers.leading
            if worker is None:
                await asyncio.sleep(LOOK_SECONDS)
            else:
                await self._call(worker)
        self.has_ended = True

    async def _call(self, worker: Worker) -> None:
        keys = self._open or [f"k{self._made + n}" for n in range(10)]
        if not self._open:
            self._made += len(keys)
        self._open = keys
        began = time.monotonic()
        for key in keys:  # an old refusal of this process is no answer
            worker.refused.pop(key, None)
        await worker.submit(keys)
        while worker.ended is None and not self._is_answered(worker, keys):
            assert time.monotonic() - began < stretched(CALL_SECONDS + 15.0), "a caller waits"
            await asyncio.sleep(0.02)
        self.acked |= worker.acked
        self._open = [key for key in keys if key not in self.acked]

    def _is_answered(self, worker: Worker, keys: list[str]) -> bool:
        return all(key in worker.acked or key in worker.refused for key in keys)


class Sequencers:
    """A leader and a standby, each started again whenever it ends, as systemd does."""

    def __init__(self, chain: Chain) -> None:
        self.workers: dict[str, Worker] = {}
        self.ends: list[str] = []
        self._chain = chain
        self._is_over = False

    @property
    def leading(self) -> Worker | None:
        """A process that took over and has not ended; a zombie, too."""
        led = [w for w in self.workers.values() if w.leads is not None and w.ended is None]
        return max(led, key=lambda w: w.leads.epoch if w.leads else 0, default=None)

    async def keep(self, name: str) -> None:
        while not self._is_over:
            config = self._chain.with_settings(standby=True, owner=name)
            worker = self.workers[name] = await Worker.start(config)
            await worker.process.wait()
            await worker._reading
            if worker.ended is not None:
                self.ends.append(f"{worker.ended.error}: {worker.ended.text}")
            await asyncio.sleep(0.2)

    async def stop(self) -> None:
        self._is_over = True
        for worker in self.workers.values():
            worker.thaw() if worker.process.returncode is None else None
            await worker.close()


class Journal:
    """A matching service with a journal of its own, opened again whatever ends it."""

    def __init__(self, chain: Chain, gap_dsn: str) -> None:
        self.events: list[Event] = []
        self.halted: HaltError | None = None
        self._place: Mark | None = None
        self._chain = chain
        self._gap_dsn = gap_dsn

    async def run(self) -> None:
        while self.halted is None:
            try:
                await self._follow()
            except HaltError as error:
                self.halted = error
            except OrderchainError:
                await asyncio.sleep(0.2)

    async def _follow(self) -> None:
        config = ReceiverConfig(
            chain_id=self._chain.chain_id,
            start=self._place,
            gap_databases=(self._gap_dsn,),
            kafka=self._chain.config.kafka,
            checkpoint="reported",
            tuning=ReceiverTuning(
                poll_after_seconds=0.5, kafka_at_start="optional", connect_seconds=2.0
            ),
        )
        async with open_receiver(config) as receiver:
            async for run in receiver:
                self.events += run.events
                self._place = run.end


class CommitWatch:
    """Measures how long no order was committed, and how long of it the database was well."""

    def __init__(self, chain: Chain) -> None:
        self.longest_seconds = self.unled_seconds = 0.0
        self.is_held_up = False
        """Set while something in the database keeps anybody from a commit."""
        self.head = 0
        self.chain = chain

    async def run(self) -> None:
        moved = well = time.monotonic()
        while True:
            head = await self._ask()
            now = time.monotonic()
            if head is None or self.is_held_up:
                well = now
            elif head != self.head:
                self.head, moved, well = head, now, now
            self.longest_seconds = max(self.longest_seconds, now - moved)
            self.unled_seconds = max(self.unled_seconds, now - well)
            await asyncio.sleep(LOOK_SECONDS)

    async def _ask(self) -> int | None:
        """Return the head; None when the database gives no answer."""
        with suppress(*DRIVER_ERRORS):
            async with asyncio.timeout(stretched(ASK_SECONDS)):
                return int((await self.chain.head())["last_id"])
        return None


class Round:
    """What a story has at hand."""

    def __init__(
        self,
        chain: Chain,
        postgres: PostgresServer,
        kafka: Kafka,
        seeded: random.Random,
        pair: ServerPair | None = None,
    ) -> None:
        """`pair`: `postgres` and its standby, where there is one."""
        self.chain, self.postgres, self.kafka, self.random = chain, postgres, kafka, seeded
        self.sequencers = Sequencers(chain)
        self.load = Load(self.sequencers)
        self._pair = pair
        database = chain.database.rpartition("/")[2]
        self.journal = Journal(chain, (pair or postgres).dsn(GAP_READER, database))
        self.watch = CommitWatch(chain)
        self.keeps_topic = True
        """Its topic was never made again."""
        self._tasks: list[asyncio.Task[None]] = []

    async def live(self, story: Callable[[Round], Awaitable[None]]) -> None:
        """Live through the story; raises AssertionError for what must not come of it."""
        async with self.running():
            await story(self)
            await self.finish()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Everything runs; raises what any part raises."""
        work = (
            self.sequencers.keep("a"),
            self.sequencers.keep("b"),
            self.load.run(),
            self.journal.run(),
            self.watch.run(),
        )
        self._tasks = tasks = [asyncio.create_task(part) for part in work]
        try:
            await self.until(lambda: len(self.load.acked) >= 20)
            self.watch.longest_seconds = self.watch.unled_seconds = 0.0
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.sequencers.stop()

    # -- what stories do -----------------------------------------------------------------------

    async def until(self, happened: Callable[[], bool]) -> None:
        """Wait; raises AssertionError without a leader for too long, or a part has failed."""
        async with deadline():
            while not happened():
                self.check()
                await asyncio.sleep(LOOK_SECONDS)

    def check(self) -> None:
        """Raise what a part raised, and AssertionError without a leader for too long."""
        for task in self._tasks:
            if task.done():
                task.result()
        bound = stretched(self.chain.config.tuning.lease_seconds + LED_SECONDS)
        unled = self.watch.unled_seconds
        assert unled <= bound, f"no leader for {unled:.1f} s: {self.sequencers.ends[-3:]}"

    async def until_committed(self, count: int = 30) -> None:
        """Wait for so many orders more."""
        before = len(self.load.acked)
        await self.until(lambda: len(self.load.acked) >= before + count)

    async def pause(self, least: float, most: float) -> None:
        """Let a fault last for a drawn time: it is what the story is about."""
        await asyncio.sleep(self.random.uniform(least, most))

    async def kill_leader(self) -> None:
        if (leader := self.sequencers.leading) is not None:
            await leader.kill()

    async def kill_brokers(self, count: int) -> None:
        """Kill so many of three brokers, drawn."""
        assert isinstance(self.kafka, Brokers)
        for broker in self.random.sample(self.kafka.brokers, count):
            await asyncio.to_thread(broker.kill)

    async def until_published(self) -> None:
        """Wait until what is committed now is published, or on record as skipped."""
        head = (await self.chain.head())["last_id"]
        async with deadline():
            while (await self.chain.head())["published_id"] < head:
                self.check()
                await asyncio.sleep(LOOK_SECONDS)

    async def another_chain(self) -> Chain:
        """Make a chain beside the one of the round."""
        database = self.chain.database.rpartition("/")[2]
        number = self.chain.chain_id + BESIDE
        return await create_chain(self.postgres, database, self.kafka, number)

    async def until_rows(self, chain: Chain, count: int) -> None:
        """Wait until `chain` has so many rows."""
        async with deadline():
            while len(await chain.rows()) < count:
                self.check()
                await asyncio.sleep(LOOK_SECONDS)

    @property
    def pair(self) -> ServerPair:
        """The primary and its standby."""
        assert self._pair is not None
        return self._pair

    async def fail_over(self) -> None:
        """Promote the standby; the chain is the one there from now on."""
        await asyncio.to_thread(self.pair.promote)
        self.chain = self.watch.chain = promoted(self.chain, self.pair)

    async def step_down(self) -> None:
        statement = "UPDATE chain_lease SET step_down = true WHERE chain_id = $1"
        await self.chain.fetch(statement, self.chain.chain_id)

    async def until_taken_over(self, epoch: int) -> None:
        """Wait until the epoch is above `epoch`, whether or not anybody leads under it yet."""
        async with deadline():
            while await self.epoch() <= epoch:
                self.check()
                await asyncio.sleep(0.02)

    async def epoch(self) -> int:
        return int((await self.chain.head())["epoch"])

    async def end_backends(self) -> None:
        """Terminate the connections of the leader, as a DBA or a proxy does."""
        await self.chain.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'orderchain sequencer %'"
        )

    # -- the end -------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Wait until all is well, published and delivered, and judge what came of it."""
        await self.until_committed()
        self.load.is_over = self.watch.is_held_up = True
        await self.until(lambda: self.load.has_ended)
        last = (await self.chain.head())["last_id"]
        await self.until(lambda: self._delivered_id >= last or self.journal.halted is not None)
        assert self.journal.halted is None, repr(self.journal.halted)
        rows = await inspect(self.chain, {"journal": self.journal.events})
        assert len(self.journal.events) == len(rows)
        if self.chain.config.kafka is not None:
            await self.until_published()
            await inspect_topic(self.chain, keeps_all=self.keeps_topic)
        await require_whole(self.chain)

    @property
    def _delivered_id(self) -> int:
        return self.journal.events[-1].id if self.journal.events else 0

    @property
    def row(self) -> Row:
        """What came of it; of a round that did not get to its end, what is known."""
        return Row(
            rounds=1,
            acknowledged=len(self.load.acked),
            longest_seconds=self.watch.longest_seconds,
            unled_seconds=self.watch.unled_seconds,
        )


def table(rows: list[Row]) -> str:
    """Return the rows as a table for people."""
    head = ("pair", "rounds", "acked", "no commit", "unled")
    lines = [
        (
            row.pair, str(row.rounds), str(row.acknowledged), f"{row.longest_seconds:.1f} s",
            f"{row.unled_seconds:.1f} s",
        )
        for row in rows
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in (head, *lines)
    )
