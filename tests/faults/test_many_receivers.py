"""Hundreds of receivers of one chain: they start at once, and share few connections."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from chain_kernel.sql import GAP_READER, RECEIVER_WRITER
from local_stack import KafkaServer, PostgresServer
from matcher_receiver import ReceiverConfig
from sequencer import Sequencer, open_sequencer
from tests.builders.created_chain import Chain
from tests.builders.orders import make_orders
from tests.deadlines import deadline
from tests.pipes import stdin_of, stdout_of

from .conftest import MakeChain
from .inspector import inspect
from .receivers import Taken

PROCESSES = 4
ORDERS = 20
_ROOT = Path(__file__).parents[2]
_COUNT = (
    "SELECT usename, count(*)::integer AS count FROM pg_stat_activity "
    "WHERE usename = ANY($1) GROUP BY usename"
)


@asynccontextmanager
async def receiving(configs: list[ReceiverConfig]) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.faults.receivers", stdin=pipe, stdout=pipe, cwd=_ROOT
    )
    try:
        stdin_of(process).write(msgspec.json.encode(configs) + b"\n")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Crowd:
    """All receivers, and the connections that they hold."""

    def __init__(
        self, chain: Chain, processes: list[asyncio.subprocess.Process], reading: int
    ) -> None:
        """`reading`: connections that each process may hold to read, or to listen."""
        self._reading_max = reading * len(processes)
        self._chain = chain
        self._processes = processes
        self.taken: dict[str, Taken] = {}

    async def until_started(self) -> None:
        assert await self._said() == [b"started\n"] * PROCESSES

    async def until_delivered(self, row_id: int) -> None:
        for process in self._processes:
            stdin_of(process).write(b"%d\n" % row_id)
        for said in await self._said():
            self.taken |= msgspec.json.decode(said, type=dict[str, Taken])

    async def _said(self) -> list[bytes]:
        """Return the next line of each process."""
        async with deadline():
            return await asyncio.gather(*(stdout_of(each).readline() for each in self._processes))

    async def until_idle(self) -> None:
        """Wait until no place holds a connection, and each process few to read."""
        async with deadline():
            while True:
                found = await self._chain.fetch(_COUNT, [GAP_READER, RECEIVER_WRITER])
                count = {row["usename"]: row["count"] for row in found}
                if (
                    count.get(RECEIVER_WRITER, 0) == 0
                    and count.get(GAP_READER, 0) <= self._reading_max
                ):
                    return
                await asyncio.sleep(0.2)


async def submit(sequencer: Sequencer, number: int) -> int:
    acks = await sequencer.submit_many(make_orders(ORDERS, start=number * ORDERS))
    return acks[-1].id


@pytest.mark.parametrize("has_broker", [True, False], ids=["with broker", "no broker"])
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(40, marks=pytest.mark.nightly),
        pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(1_200)]),
    ],
)
async def test_receivers_of_one_chain_start_at_once_and_outlive_broker_and_database(
    chain_on_breakable_servers: MakeChain, postgres_to_break: PostgresServer,
    database_to_break: str, kafka_to_break: KafkaServer, count: int, *, has_broker: bool,
) -> None:  # fmt: skip
    chain = await chain_on_breakable_servers(commit_seconds=10.0, lease_seconds=20.0)
    configs = [
        ReceiverConfig(
            chain_id=chain.chain_id,
            name=f"receiver-{number}",
            database=postgres_to_break.dsn(RECEIVER_WRITER, database_to_break),
            gap_databases=(postgres_to_break.dsn(GAP_READER, database_to_break),),
            kafka=kafka_to_break.bootstrap if has_broker else None,
        )
        for number in range(count)
    ]
    async with AsyncExitStack() as stack:
        config = chain.config if has_broker else replace(chain.config, kafka=None)
        sequencer = await stack.enter_async_context(open_sequencer(config))
        first = await submit(sequencer, 0)
        began = time.monotonic()
        processes = [
            await stack.enter_async_context(receiving(configs[number::PROCESSES]))
            for number in range(PROCESSES)
        ]
        crowd = Crowd(chain, processes, reading=1 if has_broker else 2)
        await crowd.until_started()
        print(f"{count} receivers started in {time.monotonic() - began:.1f} s")  # noqa: T201
        await crowd.until_delivered(first)
        await crowd.until_idle()
        kafka_to_break.kill()
        await crowd.until_delivered(await submit(sequencer, 1))
        kafka_to_break.start()
        await crowd.until_delivered(await submit(sequencer, 2))
        postgres_to_break.kill()
        postgres_to_break.start()
        await crowd.until_delivered(await submit(sequencer, 3))
        await crowd.until_idle()
    whole = Taken(0)
    whole.take(await inspect(chain))
    assert crowd.taken == {str(config.name): whole for config in configs}
