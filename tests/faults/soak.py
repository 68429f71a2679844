"""A soak: real servers under an open load, one fault after the other, and nothing grows.

Orders, effects and messages are judged, part by part; memory, descriptors, connections, bloat, disk
and lag are sampled. Faults of the second half end none of our processes: what one of them leaks has
time to show.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import asyncpg
import msgspec

from chain_kernel.clients.postgres_errors import DRIVER_ERRORS
from chain_kernel.errors import OrderchainError
from chain_kernel.sql import GAP_READER, RECEIVER_WRITER
from chainctl.schema.parts import PARTS
from local_stack import KafkaServer, PostgresServer
from local_stack.postgres import SUPERUSER
from matcher_receiver import ReceiverConfig
from outbox.consumer.config import ConsumerConfig
from outbox.message import Message, draw_message_ids
from outbox.roles import OUTBOX_RELAY, OUTBOX_WRITER
from outbox.sender.transaction import store_messages, wake
from tests.deadlines import deadline
from tests.integration.outbox.conftest import CONSUMER, Sender, give_logins
from tests.integration.outbox.consumer.rig import CREATE
from tests.judge.deliveries import SEE, judge_deliveries
from tests.judge.judge import Judge

from . import stories
from .chains import chainctl, require_whole
from .flat import Samples
from .inspector import inspect, judge_of
from .many_led import memory_mb
from .processes import Worker
from .rounds import Load, Round, Sequencers

TICK_SECONDS: Final = 0.05
SAMPLE_SECONDS: Final = 10.0
FAULT_SECONDS: Final = 30.0
"""From one fault to the next, which waits until all is well."""
KEEP_SECONDS: Final = 10.0
"""Between two rounds of verification, archive and retention."""
MESSAGES_PER_SECOND: Final = 20.0
PARTS_KEPT: Final = 4
"""Before the last one that was judged: an answer may come late, but within a minute."""
NEVER: Final = frozenset({"KeyConflict", "KeyTooOld", "NumberOutOfOrder", "OrderError"})
"""What no client of a soak may be refused with; the rest says: submit again."""

Act = Callable[["Soak"], Awaitable[None]]


class OpenLoad(Load):
    """Orders fall due by the clock, whatever is away; one without an answer is submitted again."""

    def __init__(self, sequencers: Sequencers, rate: float) -> None:
        super().__init__(sequencers)
        self.open: dict[str, None] = {}
        self.is_over = False
        self._rate = rate
        self._waiting: list[str] = []
        self._used: set[Worker] = set()
        self._last: Worker | None = None

    async def run(self) -> None:
        began = time.monotonic()
        while not (self.is_over and not self.open):
            due = int((time.monotonic() - began) * self._rate) - self._made
            if due > 0 and not self.is_over:
                keys = [f"k{self._made + number}" for number in range(due)]
                self._made += due
                self.open.update(dict.fromkeys(keys))
                self._waiting += keys
            for used in list(self._used):
                self._take(used)
            if (worker := self._sequencers.leading) is not None:
                await self._hand_to(worker)
            await asyncio.sleep(TICK_SECONDS)

    async def _hand_to(self, worker: Worker) -> None:
        if worker is not self._last:
            self._last, self._waiting = worker, list(self.open)
        at_most = int(self._rate * TICK_SECONDS * 4) + 1
        keys, self._waiting = self._waiting[:at_most], self._waiting[at_most:]
        if keys:
            self._used.add(worker)
            with suppress(TimeoutError):  # one that is frozen takes nothing: it has it all the same
                async with asyncio.timeout(1.0):
                    await worker.submit(keys)

    def _take(self, worker: Worker) -> None:
        self.acked |= worker.acked
        for key in worker.acked:
            self.open.pop(key, None)
        for key, report in worker.refused.items():
            assert report.error not in NEVER, report
            if key in self.open and worker is self._last:
                self._waiting.append(key)
        for held in (worker.acked, worker.refused, worker.submitted):
            held.clear()
        if worker.ended is not None:
            self._used.discard(worker)


class Service:
    """A process of ours, started again whenever it ends, as systemd does."""

    def __init__(self, *command: str, line: bytes = b"", **settings: str) -> None:
        self._command, self._line, self._settings = command, line, settings
        self.process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        while True:
            self.process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *self._command, env={**os.environ, **self._settings},
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            try:
                assert process.stdin is not None
                process.stdin.write(self._line)
                await process.wait()
            finally:
                self.kill()
                await process.wait()
            await asyncio.sleep(0.2)

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)


class Messages:
    """A business that stores messages, a relay, and a consumer with effects in its database."""

    def __init__(self, sender: Sender, topic: str) -> None:
        self.dsns, self.topic, self.is_over = sender.dsns, topic, False
        relay = Service(
            *("chainctl", "outbox", "relay", "--history-bytes-max", "8MB"),
            CHAINCTL_DATABASE=self.dsns[OUTBOX_RELAY], CHAINCTL_KAFKA=sender.kafka,
        )  # fmt: skip
        config = ConsumerConfig(
            name=CONSUMER, topics=(topic,), kafka=sender.kafka, database=self.dsns[SUPERUSER]
        )
        plan = msgspec.json.encode({"config": config, "hangs": []}) + b"\n"
        consumer = Service("tests.integration.outbox.consumer.worker", line=plan)
        self.services = {"relay": relay, "consumer": consumer}

    async def trade(self) -> None:
        """Store messages, each with a trade in one transaction."""
        connection: Any = None
        number = 0
        while not self.is_over:
            number += 1
            await asyncio.sleep(1 / MESSAGES_PER_SECOND)
            try:
                async with asyncio.timeout(10.0):
                    connection = connection or await asyncpg.connect(self.dsns[OUTBOX_WRITER])
                    (message_id,) = draw_message_ids(1)
                    async with connection.transaction():
                        trade = "INSERT INTO trade VALUES ($1, $2)"
                        await connection.execute(trade, number, message_id)
                        await store_messages(connection, [Message(message_id, "clearing", b"t")])
                    await wake(connection)
            except (*DRIVER_ERRORS, OrderchainError, TimeoutError):
                if connection is not None:
                    connection.terminate()
                connection = None
        if connection is not None:
            await connection.close()

    async def until_done(self) -> int:
        """Wait until each trade has had its one effect; return how many there are."""
        connection = await asyncpg.connect(self.dsns[SUPERUSER])
        async with deadline(180):
            while await connection.fetchval("SELECT count(*) FROM outbox_pending"):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        counts = await connection.fetchrow(_EFFECTS)
        assert len(set(counts)) == 1, f"G6: {dict(counts)}"
        await judge_deliveries(connection)
        await connection.close()
        return int(counts[0])


@asynccontextmanager
async def messages_in(postgres: PostgresServer, kafka: str, name: str) -> AsyncIterator[Messages]:
    """Set a business up in a database of its own, which is dropped at the end."""
    postgres.create_database(name)
    for part in ("outbox", "inbox"):
        postgres.execute(f"BEGIN;\n{PARTS[part].text()}\nCOMMIT;\n", database=name)
    # A server that crashes forgets how many rows are dead: its own 20,000 would never be reached.
    often = "ALTER TABLE outbox_pending SET (autovacuum_vacuum_threshold = 500)"
    postgres.execute(f"{CREATE};\n{often};\n{SEE}", database=name)
    dsns = give_logins(postgres, name)
    admin = await asyncpg.connect(dsns[SUPERUSER])
    sender = Sender(dsns, kafka, name, admin)
    topic = (await sender.set_up()).topic
    for connection in (*sender.connections, admin):
        await connection.close()
    yield Messages(sender, topic)
    postgres.drop_database(name)


_EFFECTS: Final = """
    SELECT (SELECT count(*) FROM trade) AS trades, (SELECT count(*) FROM effect) AS effects,
           (SELECT count(*) FROM trade JOIN effect USING (message_id)) AS both
"""


class Soak(Round):
    """The chain, all that runs on it, and what it is held to."""

    load: OpenLoad

    def __init__(
        self, world: Round, rate: float, archive: Path, messages: Messages,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        """`archive`: a folder. `say` shows a line of what happens."""
        super().__init__(world.chain, world.postgres, world.kafka, world.random)
        self.load = OpenLoad(self.sequencers, rate)
        self.messages, self.samples = messages, Samples()
        self.rows = 0
        self.ends = deque([0, 0])
        """Where the parts end that were judged, and not forgotten."""
        self._judge: Judge | None = None
        self._shown = 0
        """How many of the journal's events the judge has seen: it keeps the last one."""
        self._archive, self._say = archive, say
        self.kept = dict.fromkeys(("verify", "archive", "retention"), 0)
        self._keeping = asyncio.Lock()
        self._began = time.monotonic()
        database = self.chain.database.rpartition("/")[2]
        configs = [
            ReceiverConfig(
                chain_id=self.chain.chain_id, name=name, kafka=self.chain.config.kafka,
                database=self.postgres.dsn(RECEIVER_WRITER, database),
                gap_databases=(self.postgres.dsn(GAP_READER, database),),
            )
            for name in ("matching", "clearing")
        ]  # fmt: skip
        line = msgspec.json.encode(configs) + b"\n"
        receivers = Service("tests.faults.receivers", line=line)
        self.services = {"receivers": receivers, **messages.services}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Run what a round does not have, too."""
        async with self.running():
            parts = [self.messages.trade(), self.keep(), self.sample()]
            parts += [service.run() for service in self.services.values()]
            self._tasks += [asyncio.create_task(part) for part in parts]
            yield

    async def live_for(self, seconds: float) -> None:
        """Live through one fault after the other, and hold all to what was promised."""
        acts: list[Act] = []
        # Retention may drop only what is some parts old.
        while self.seconds < seconds or len(self.ends) < PARTS_KEPT:
            acts = acts or self.random.sample(PROCESSES + SERVERS, len(PROCESSES + SERVERS))
            if (act := acts.pop()) in SERVERS or self.seconds < seconds / 2:
                await self.live_through(act)
        await self.end()

    async def live_through(self, act: Act) -> None:
        """Have something fail, wait until all is well, and judge what there is by then."""
        begun, self.watch.longest_seconds = self.seconds, 0.0
        await act(self)
        await self.until_committed()
        name, gone = act.__name__.replace("_", " "), self.watch.longest_seconds
        await self.judge()
        self._say(f"{begun:5.0f} s: {name}: {gone:.1f} s without a commit; {self.samples.last()}")
        await self.until(lambda: self.seconds > begun + FAULT_SECONDS)

    # -- verification, archive and retention -----------------------------------------------------

    async def keep(self) -> None:
        while True:
            async with self._keeping:
                await self.keep_once()
            await asyncio.sleep(KEEP_SECONDS)

    async def keep_once(self) -> list[int]:
        """Verify, archive, and drop what was judged; return the exit codes."""
        until = self.ends[-2]
        codes = [
            (await self._command("verify", "--local", "--source", "database", "--seals",
                                 "--since-verified"))[0],
            (await self._command("archive", "--archive", str(self._archive)))[0],
        ]  # fmt: skip
        while until:
            code, shown = await self._command(
                "retention", "--archive", str(self._archive), "--until", str(until), "--drop",
                "--key-window-rows", str(self.chain.config.key_window_rows), "--reason", "soak",
            )  # fmt: skip
            limit = re.search(r"expected at most ([0-9]+)", shown)
            if limit is None:
                return [*codes, code]
            until = int(limit[1])
        return codes

    async def _command(self, name: str, *options: str) -> tuple[int, str]:
        number = str(self.chain.chain_id)
        code, out, err = await chainctl(self.chain, name, "--chain", number, *options)
        assert code != 1, f"{name} has found: {out}{err}"
        self.kept[name] += not code
        return code, err

    # -- what must not grow ----------------------------------------------------------------------

    async def sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self.samples.add(self.seconds, disk_Kafka=_size_mb(self.kafka_folder))
            for name, pid in self._processes():
                with suppress(OSError):
                    count = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208
                    values = {f"memory_{name}": memory_mb(pid), f"descriptors_{name}": count}
                    self.samples.add(self.seconds, **values)
            await self._look(self.chain.database, _LOOK, self.chain.chain_id)
            await self._look(self.messages.dsns[SUPERUSER], _LOOK_AT_MESSAGES, MESSAGES_PER_SECOND)

    async def _look(self, database: str, query: str, value: float) -> None:
        with suppress(*DRIVER_ERRORS, TimeoutError):
            async with asyncio.timeout(5.0):
                connection = await asyncpg.connect(database)
                try:
                    seen = await connection.fetchrow(query, value)
                finally:
                    connection.terminate()
            self.samples.add(self.seconds, **{n: v for n, v in seen.items() if v is not None})

    @property
    def kafka_folder(self) -> Path:
        assert isinstance(self.kafka, KafkaServer)
        return self.kafka.data_directory

    def _processes(self) -> list[tuple[str, int]]:
        leading = self.sequencers.leading
        found = [
            ("leader" if worker is leading else "standby", worker.process)
            for worker in self.sequencers.workers.values()
        ]
        found += [(name, each.process) for name, each in self.services.items() if each.process]
        return [(name, process.pid) for name, process in found if process.returncode is None]

    # -- what is judged --------------------------------------------------------------------------

    async def judge(self) -> int:
        """Judge the history up to now, and drop what is old of it; return the head."""
        self._judge = self._judge or await judge_of(self.chain)
        head = int((await self.chain.head())["last_id"])
        await self.until(lambda: self._delivered_id >= head or self.journal.halted is not None)
        assert self.journal.halted is None, repr(self.journal.halted)
        events = list(self.journal.events)
        new = {"journal": events[self._shown :]}
        self.rows += len(await inspect(self.chain, new, judge=self._judge))
        del self.journal.events[: len(events) - 1]
        self._shown = 1
        self.load.acked.clear()
        self.ends.append(head)
        if len(self.ends) > PARTS_KEPT:
            self._judge.saw("forget", self.ends.popleft())
        return head

    async def end(self) -> None:
        """Let all come to its end, and hold it to what was promised."""
        self.load.is_over = self.messages.is_over = True
        await self.until(lambda: not self.load.open)
        head = await self.judge()
        lowest = "SELECT min(head_delivered) FROM receiver_checkpoint WHERE chain_id = $1"
        async with deadline():
            while await self.chain.value(lowest, self.chain.chain_id) < head:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        trades = await self.messages.until_done()
        async with self._keeping:
            assert not any(await self.keep_once()), self.kept
            await require_whole(self.chain)
            code, shown = await self._command("archive", "--archive", str(self._archive), "--check")
            assert code == 0, shown
        first = "SELECT min(last_id) FROM chain_batch WHERE chain_id = $1"
        assert await self.chain.value(first, self.chain.chain_id), "retention dropped nothing"
        self._say(f"{self.rows} orders and {trades} messages judged, {self.kept}")


_LOOK: Final = """
    SELECT (SELECT count(*) FROM pg_stat_activity
             WHERE application_name LIKE 'orderchain%')::float8 AS connections,
           (pg_total_relation_size('chain_head') + pg_total_relation_size('chain_lease')
              + pg_total_relation_size('receiver_checkpoint')) / 1e6::float8 AS bloat_chain,
           pg_database_size(current_database()) / 1e6::float8 AS disk_database,
           extract(epoch FROM (
               SELECT max(committed_at) - max(committed_at) FILTER (WHERE last_id <= (
                          SELECT min(head_delivered) FROM receiver_checkpoint WHERE chain_id = $1))
                 FROM chain_batch WHERE chain_id = $1))::float8 AS lag_receivers
"""


_LOOK_AT_MESSAGES: Final = """
    SELECT pg_total_relation_size('outbox_pending') / 1e6::float8 AS bloat_outbox,
           count(*) / $1::float8 AS lag_outbox
      FROM outbox_pending
"""


def _size_mb(folder: Path) -> float:
    """Return what files hold, of which some may go meanwhile."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size / 1e6


async def database_frozen(it: Soak) -> None:
    it.postgres.freeze()
    await it.pause(2.0, 8.0)
    it.postgres.thaw()


async def broker_frozen(it: Soak) -> None:
    it.kafka.freeze()
    await it.pause(2.0, 8.0)
    it.kafka.thaw()


async def topic_gone(it: Soak) -> None:
    async with stories.topic_away(it):
        await it.pause(1.0, 5.0)


async def services_killed(it: Soak) -> None:
    for service in it.services.values():
        service.kill()


SERVERS: Final[tuple[Act, ...]] = (
    database_frozen, broker_frozen, topic_gone, Round.end_backends,
    stories.both_servers_gone_database_back_first, stories.both_servers_gone_broker_back_first,
)  # fmt: skip
"""Faults that end none of our processes."""

ELSEWHERE: Final = {
    stories.replication_slot_full_and_the_leader_killed,
    stories.intake_topic_wiped_before_the_next_leader_reads_it,
    stories.logical_replica_promoted_and_the_leader_killed,
}
"""Stories of another chain or server."""

PROCESSES: Final[tuple[Act, ...]] = (
    services_killed, Round.kill_leader, Round.step_down,
    *(story for story in stories.STORIES if story not in {*SERVERS, *ELSEWHERE}),
)  # fmt: skip
