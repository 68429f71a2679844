"""Many chains in two processes, each a standby of the other's, under orders: are they led in peace?

`python -m tests.faults.many_led --chains 1000 --seconds 120` prints a line every ten seconds: how
many chains are led, how often epochs rose, and how late orders are delivered.
"""

import argparse
import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from chain_kernel.clients.kafka import make_admin, started
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.topics import describe_topics
from chain_kernel.frame import decode_body, decode_header, default_topic
from chain_kernel.seal import genesis_seal
from chain_kernel.sql import SEQUENCER_WRITER
from chainctl.admin import apply_schema
from chainctl.event_loop import run_async
from local_stack import LocalStack
from tests.builders.topics import make_topics
from tests.opened import connected

INTAKE: Final = "in.{chain}"
TOPICS_AT_ONCE: Final = 50
REPORT_SECONDS: Final = 10.0
_STORED: Final = "SELECT coalesce(sum(row_count), 0) FROM chain_batch"
STOPPED: Final = 128 + signal.SIGTERM
"""What a process ends with that was asked to."""


class Report(msgspec.Struct, frozen=True):
    """What happened since the report before."""

    seconds: float
    led: int
    """Chains whose lease was renewed within its time."""
    rises: int
    """How many epochs began."""
    delivered: int
    p50_ms: float
    p99_ms: float
    memory_mb: tuple[int, ...]
    cpu: tuple[float, ...]
    """CPU seconds of each process per second."""
    cpu_of_servers: tuple[float, ...]
    """The same of Kafka and of PostgreSQL."""
    machine: float
    """Processes that wanted a core, on average over the last minute, ours among them."""

    def __str__(self) -> str:
        return (
            f"{self.seconds:5.0f} s: {self.led} led, {self.rises} new epochs, {self.delivered} "
            f"delivered, p50 {self.p50_ms:.0f} ms, p99 {self.p99_ms:.0f} ms, memory "
            f"{self.memory_mb} MB, cpu {self.cpu}, of "
            f"Kafka and PostgreSQL {self.cpu_of_servers}, load {self.machine:.1f}"
        )


class Fleet:
    """The chains, the processes that lead them, and the orders."""

    def __init__(
        self, database: str, writer: str, kafka: str, chains: int, lease: float, directory: Path,
        heard: int,
    ) -> None:  # fmt: skip
        """`heard`: chains whose orders are measured."""
        self._database, self._writer, self._kafka = database, writer, kafka
        self._directory = directory
        self.chains = chains
        self._lease = lease
        self._heard_chains = range(1, chains + 1, -(-chains // heard))
        self.processes: list[asyncio.subprocess.Process] = []
        self._late_ms: list[float] = []
        self._is_sending = False
        self._hears = asyncio.Event()
        self.sent = self._due = 0
        self.heard: set[str] = set()
        """The keys of all orders that were delivered."""
        self._epochs = 0
        self._cpu: dict[int, float] = {}
        self._cpu_of_servers: tuple[float, ...] = (0.0, 0.0)
        self._began = self._reported = time.monotonic()

    async def create(self) -> None:
        """Make the chains, and two topics for each."""
        async with connected(self._database) as connection:
            identity = await connection.fetchval("SELECT database_id FROM schema_version")
            for each in range(1, self.chains + 1):  # each its own transaction, for its locks
                await connection.execute(
                    "SELECT chain_create($1, $2, $3, 0, $4)",
                    each, genesis_seal(identity, each), default_topic(each), 2**23,
                )  # fmt: skip
        names = [default_topic(each) for each in range(1, self.chains + 1)]
        names += [INTAKE.replace("{chain}", str(each)) for each in range(1, self.chains + 1)]
        kafka = KafkaConfig.of(self._kafka)
        async with started(make_admin(kafka, "fleet")) as admin:
            for at in range(0, len(names), TOPICS_AT_ONCE):
                some = names[at : at + TOPICS_AT_ONCE]
                await make_topics(self._kafka, *some)
                while not all(
                    each.is_there for each in (await describe_topics(admin, kafka, some)).values()
                ):
                    await make_topics(self._kafka, *some)

    async def start(self, *options: str) -> None:
        """Start one more process for all chains."""
        environment = {
            **os.environ, "CHAINCTL_DATABASE": self._writer, "CHAINCTL_KAFKA": self._kafka,
        }  # fmt: skip
        self.processes.append(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "chainctl", "sequence", "--chains", f"1-{self.chains}",
                "--intake-topic", INTAKE, "--standby", "--lease-seconds", str(self._lease),
                *options, env=environment,
            )
        )  # fmt: skip

    async def stop(self) -> None:
        """End all processes."""
        for process in self.processes:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            await process.wait()

    async def look(self) -> Report:
        """Return what happened since the last look."""
        async with connected(self._database) as connection:
            led, epochs = await connection.fetchrow(
                "SELECT count(*) FILTER (WHERE beat_at > clock_timestamp() - make_interval("
                "secs => $1) AND NOT released AND epoch > 0), sum(epoch) FROM chain_lease",
                self._lease,
            )
        rises, self._epochs = int(epochs) - self._epochs, int(epochs)
        late, self._late_ms = sorted(self._late_ms), []
        now = time.monotonic()
        since, self._reported = now - self._reported, now
        alive = [each.pid for each in self.processes if each.returncode is None]
        used = {pid: _cpu_seconds(pid) for pid in alive}
        servers = tuple(_cpu_of_server(self._directory / name) for name in ("kafka", "postgres"))
        cpu = tuple(round((used[pid] - self._cpu.get(pid, 0.0)) / since, 2) for pid in alive)
        of_servers = tuple(
            round((now - before) / since, 2)
            for now, before in zip(servers, self._cpu_of_servers, strict=True)
        )
        self._cpu, self._cpu_of_servers = used, servers
        return Report(
            now - self._began, led, rises, len(late), _part(late, 0.5), _part(late, 0.99),
            tuple(map(memory_mb, alive)), cpu, of_servers, os.getloadavg()[0],
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def load(self, rate: float) -> AsyncIterator[None]:
        """Send orders to the chains in turn, and measure how late their frames are."""
        receiving = asyncio.create_task(self._receive())
        await asyncio.wait(
            [receiving, asyncio.create_task(self._hears.wait())],
            return_when=asyncio.FIRST_COMPLETED,
        )
        self._is_sending = True
        tasks = [receiving, asyncio.create_task(self._send(rate))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Exception):
                    raise outcome

    async def settle(self) -> None:
        """Send no more, and wait until all that was sent is delivered, or stored where no one
        hears.
        """
        self._is_sending = False
        await self.until_heard(self._due)
        async with connected(self._database) as connection:
            while await connection.fetchval(_STORED) < self.sent:
                self._require_alive()
                await asyncio.sleep(0.1)

    async def until_heard(self, count: int) -> None:
        """Wait until so many orders were delivered."""
        while len(self.heard) < count:
            self._require_alive()
            await asyncio.sleep(0.1)

    def _require_alive(self) -> None:
        if self.ended:
            raise RuntimeError(f"processes have ended: {self.ended}")

    @property
    def ended(self) -> list[int]:
        """What processes have ended with that nobody stopped."""
        found = [each.returncode for each in self.processes]
        return [code for code in found if code not in (None, STOPPED)]

    async def _send(self, rate: float) -> None:
        run = secrets.token_hex(4)
        topics = [INTAKE.replace("{chain}", str(each)) for each in range(1, self.chains + 1)]
        async with AIOKafkaProducer(bootstrap_servers=self._kafka, linger_ms=0) as producer:
            await producer.client.set_topics(topics)  # else each first order waits for all before
            began = time.monotonic()
            while True:
                await asyncio.sleep(max(0.0, began + self.sent / rate - time.monotonic()))
                if not self._is_sending:  # asked here, so that nothing is sent after `settle`
                    return
                topic = topics[self.sent % self.chains]
                key = f"{run}-{self.sent}".encode()
                self._due += self.sent % self.chains + 1 in self._heard_chains
                self.sent += 1
                await producer.send(topic, str(time.time_ns()).encode(), key=key)

    async def _receive(self) -> None:
        """Read with several consumers: an answer has an entry for each partition, quiet or not."""
        every = self._heard_chains
        async with contextlib.AsyncExitStack() as stack:
            consumers = []
            for at in range(0, len(every), TOPICS_AT_ONCE):
                consumer = AIOKafkaConsumer(bootstrap_servers=self._kafka, enable_auto_commit=False)
                consumers.append(await stack.enter_async_context(consumer))
                some = every[at : at + TOPICS_AT_ONCE]
                consumer.assign([TopicPartition(default_topic(each), 0) for each in some])
                await consumer.seek_to_end()
            self._hears.set()
            await asyncio.gather(*map(self._hear, consumers))

    async def _hear(self, consumer: AIOKafkaConsumer) -> None:
        while True:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    header = decode_header(record.value)
                    if header.is_heartbeat:
                        continue
                    for event in decode_body(record.value, header):
                        if event.key not in self.heard:
                            self.heard.add(event.key)
                            self._late_ms.append((time.time_ns() - int(event.payload)) / 1e6)


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep the machine busy with so many processes that never wait."""
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in others:
            process.kill()
            process.wait()


def say(what: object) -> None:
    """Write one line."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def _part(values: list[float], part: float) -> float:
    return values[int(len(values) * part)] if values else float("nan")


def memory_mb(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def _cpu_seconds(pid: int | str) -> float:
    fields = _fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _cpu_of_server(directory: Path) -> float:
    """Return the CPU seconds of the process that was started in `directory`, and its children."""
    used, parents = 0.0, set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(directory) in (process / "cmdline").read_text():
                parents.add(process.name)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.name in parents or _fields(process.name)[1] in parents:
                used += _cpu_seconds(process.name)
    return used


def _fields(pid: int | str) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


@contextlib.asynccontextmanager
async def fleet_in(
    directory: Path, chains: int, lease: float, heard: int | None = None
) -> AsyncIterator[Fleet]:
    """Make chains in a stack of their own, which is removed at the end, as are its processes."""
    stack = LocalStack(directory)
    stack.reset()
    stack.up()
    try:
        environment = stack.environment()
        async with connected(environment["CHAINCTL_DATABASE"]) as connection:
            await apply_schema(connection)
        fleet = Fleet(
            environment["CHAINCTL_DATABASE"], stack.dsn(SEQUENCER_WRITER),
            environment["CHAINCTL_KAFKA"], chains, lease, directory, min(heard or chains, chains),
        )  # fmt: skip
        await fleet.create()
        try:
            yield fleet
        finally:
            await fleet.stop()
    finally:
        stack.reset()


async def run(options: argparse.Namespace) -> None:
    """Lead chains twice, and report."""
    async with fleet_in(options.directory, options.chains, options.lease, options.heard) as fleet:
        say("created")
        await fleet.start(*options.option)
        await until_led(fleet, say)
        async with fleet.load(options.rate):
            if not options.alone:
                await fleet.start(*options.option)
            reports = int(options.seconds / REPORT_SECONDS)
            for part in range(3):
                with busy(options.busy if part == 1 else 0):
                    for _ in range(reports // 3):
                        await asyncio.sleep(REPORT_SECONDS)
                        say(await fleet.look())
            await fleet.settle()
            say(f"all {fleet.sent} orders are there")
    say(f"ended with {[each.returncode for each in fleet.processes]}")


async def until_led(fleet: Fleet, report: Callable[[Report], None]) -> None:
    """Wait until each chain is led; report each look."""
    while True:
        found = await fleet.look()
        report(found)
        if found.led == fleet.chains:
            return
        if any(each.returncode is not None for each in fleet.processes):
            raise RuntimeError("the process has ended")
        await asyncio.sleep(2.0)


def main() -> None:
    """Read the options, and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chains", type=int, default=200)
    parser.add_argument("--rate", type=float, default=200.0, help="orders per second, over all")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--lease", type=float, default=5.0)
    parser.add_argument(
        "--busy", type=int, default=0, help="processes that take the machine in the middle third"
    )
    parser.add_argument(
        "--heard", type=int, default=100, help="chains whose orders are measured: to hear all of a "
        "thousand takes a third of the machine, and as much of the broker"
    )  # fmt: skip
    parser.add_argument("--alone", action="store_true", help="start no second process")
    parser.add_argument("--option", action="append", default=[], help="one more of `sequence`")
    parser.add_argument("--directory", type=Path, default=Path("/tmp/orderchain-many"))  # noqa: S108
    run_async(run(parser.parse_args()))


if __name__ == "__main__":
    main()
