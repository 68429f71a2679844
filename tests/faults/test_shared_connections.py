"""Hundreds of chains in four processes: they share few connections, and are handed over singly."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
import msgspec
import pytest

from chain_kernel.seal import genesis_seal
from chain_kernel.sql import SEQUENCER_WRITER
from local_stack import KafkaServer, PostgresServer
from local_stack.postgres import SUPERUSER
from sequencer import SequencerConfig, SequencerTuning
from tests.builders.topics import make_topics
from tests.deadlines import deadline
from tests.pipes import stdin_of, stdout_of

PROCESSES = 4
CONNECTIONS_MAX = 60
ROUNDS = 3
HANDED = 1
_ROOT = Path(__file__).parents[2]
_COUNT = (
    "SELECT count(*)::integer FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name LIKE 'orderchain %'"
)
_UNCHAINED = """
    SELECT count(*) FROM (
        SELECT pid, lag(id, 1, 0::bigint) OVER (PARTITION BY chain_id ORDER BY id) AS before
          FROM chain_event) AS row WHERE pid <> before
"""
_ROWS = """
    SELECT chain_id, split_part(key, '/', 1) AS process, count(*)::integer AS count,
           count(DISTINCT key)::integer AS keys FROM chain_event GROUP BY 1, 2
"""
TUNING = SequencerTuning(lease_seconds=20.0, commit_seconds=10.0, heartbeat_seconds=5.0)


class Process:
    """One process, which leads some chains."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process
        self.acked: dict[int, int] = {}

    async def hear(self) -> bytes:
        async with deadline():
            return await stdout_of(self._process).readline()

    async def submit(self, chain_id: int) -> None:
        """Submit to each chain that it leads, once it leads `chain_id`."""
        stdin_of(self._process).write(b"%d\n" % chain_id)
        self.acked = msgspec.json.decode(await self.hear(), type=dict[int, int])

    async def end(self) -> None:
        stdin_of(self._process).close()
        async with deadline():
            assert await self._process.wait() == 0


@asynccontextmanager
async def leading(configs: list[SequencerConfig]) -> AsyncIterator[Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.faults.sequencers", stdin=pipe, stdout=pipe, cwd=_ROOT
    )
    try:
        stdin_of(process).write(msgspec.json.encode(configs) + b"\n")
        yield Process(configs[0].owner, process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def create_chains(admin: asyncpg.Connection, kafka: str, topic: str, count: int) -> None:
    """Make chains 1 to `count`, each with a topic."""
    identity = await admin.fetchval("SELECT database_id FROM schema_version")
    names = {number: f"{topic}.{number}" for number in range(1, count + 1)}
    for number, name in names.items():
        seal = genesis_seal(identity, number)
        await admin.execute("SELECT chain_create($1, $2, $3, 0, $4)", number, seal, name, 2**23)
    await make_topics(kafka, *names.values())


async def most_connections(admin: asyncpg.Connection, work: asyncio.Future[list[None]]) -> int:
    """Return the most connections that were there until `work` was done."""
    most = 0
    while not work.done():
        most = max(most, await admin.fetchval(_COUNT))
        await asyncio.wait([work], timeout=0.05)
    await work
    return most


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(40, marks=pytest.mark.nightly),
        pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(1_200)]),
    ],
)
async def test_chains_of_four_processes_share_few_connections_and_are_handed_over_by_command(
    postgres_server: PostgresServer, database_name: str, kafka_server: KafkaServer, count: int
) -> None:
    owner = postgres_server.dsn(SUPERUSER, database_name)
    admin = await asyncpg.connect(owner)
    await create_chains(admin, kafka_server.bootstrap, database_name, count)

    def config(chain_id: int, process: int, *, standby: bool = False) -> SequencerConfig:
        return SequencerConfig(
            chain_id=chain_id,
            database=postgres_server.dsn(SEQUENCER_WRITER, database_name),
            kafka=kafka_server.bootstrap,
            owner=f"process-{process}",
            standby=standby,
            tuning=TUNING,
        )

    shares = [
        [config(chain_id, process) for chain_id in range(process + 1, count + 1, PROCESSES)]
        for process in range(PROCESSES)
    ]
    shares[1].append(config(HANDED, 1, standby=True))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(admin.close)
        processes = []
        for share in shares:  # one by one: else the standby may lead before the first process does
            processes.append(await stack.enter_async_context(leading(share)))
            assert await processes[-1].hear() == b"leading\n"

        async def submit(first: int = HANDED) -> None:
            """Submit to all chains, the first process to one that it leads."""
            chains = [first, HANDED + 1, HANDED + 2, HANDED + 3]
            work = asyncio.gather(*map(Process.submit, processes, chains))
            most = await most_connections(admin, asyncio.ensure_future(work))
            print(f"{count} chains, {PROCESSES} processes: {most} connections")  # noqa: T201
            assert PROCESSES * 3 <= most <= CONNECTIONS_MAX

        for _ in range(ROUNDS):
            await submit()
        step_down = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "chainctl", "step-down", "--chain", str(HANDED),
            "--reason", "a drill", "--wait", "600s", "--database", owner, cwd=_ROOT,
        )  # fmt: skip
        async with deadline():
            assert await step_down.wait() == 0
        await processes[1].submit(HANDED)
        await submit(HANDED + PROCESSES)
        assert all(processes[number].acked[HANDED] for number in (0, 1))
        for process in processes:
            await process.end()
        acked = Counter({
            (chain_id, process.name): orders
            for process in processes for chain_id, orders in process.acked.items() if orders
        })  # fmt: skip
        rows = await admin.fetch(_ROWS)
        assert {(row["chain_id"], row["process"]): row["count"] for row in rows} == acked
        assert all(row["keys"] == row["count"] for row in rows)
        assert await admin.fetchval(_UNCHAINED) == 0
        epochs = await admin.fetch("SELECT chain_id, epoch FROM chain_head WHERE epoch > 1")
        assert [tuple(row) for row in epochs] == [(HANDED, 2)]
