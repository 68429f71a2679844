"""The pipelined example: an order that is refused costs its client no number."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from chain_kernel.limits import PAYLOAD_BYTES_MAX
from sequencer import Sequencer, SequencerConfig, SequencerTuning, open_sequencer
from tests.deadlines import deadline, until
from tests.lock_waits import WAITING

CHAIN = 7
LARGE = PAYLOAD_BYTES_MAX - 1_000
"""Bytes of an order: two of them are more than the queue of this test holds."""

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


class Client:
    """Sends lines without waiting, and reads the answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, *numbers: int, size: int = 0) -> None:
        for number in numbers:
            line = json.dumps({"key": f"anna#{number}", "text": "x" * size})
            self.writer.write(line.encode() + b"\n")

    async def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(await self._reader.readline())
        return answer


@pytest.mark.orderchain(chains=[CHAIN])
async def test_order_that_finds_no_room_is_taken_later_with_all_that_followed_it(
    orderchain_environment: dict[str, str], load: Callable[[str], Any]
) -> None:
    module = load("pipelined_gateway")
    dsn = orderchain_environment["CHAINCTL_DATABASE"]
    tuning = SequencerTuning(queue_bytes_max=PAYLOAD_BYTES_MAX, lease_seconds=60, commit_seconds=50)
    kafka = orderchain_environment["CHAINCTL_KAFKA"]
    config = SequencerConfig(chain_id=CHAIN, database=dsn, kafka=kafka, tuning=tuning)
    doors: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        doors.append(module.Door(sequencer))
        await doors[-1].serve(reader, writer)

    async def connect() -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", port))

    sequencer: Sequencer
    admin = await asyncpg.connect(dsn)
    async with deadline(), open_sequencer(config) as sequencer:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=module.LINE_BYTES_MAX)
        port = server.sockets[0].getsockname()[1]
        client = await connect()
        async with admin.transaction():
            await admin.execute("SELECT FROM chain_head FOR UPDATE")
            client.send(1)
            await until(lambda: admin.fetchval(WAITING))
            client.send(2, 3, size=LARGE)
            client.send(4)  # for this one there is room
            await until(lambda: doors[0].refused)
        first = [await client.answer() for _ in range(4)]
        client.send(5)
        late = await client.answer()
        client.writer.close()
        again = await connect()
        again.send(3, size=LARGE)
        again.send(4, 5)
        again.writer.write(b"no order\n")
        again.send(6)
        again.writer.write_eof()
        second = [await again.answer() for _ in range(5)]
        again.writer.close()
        server.close()
    assert ["id" in answer for answer in first] == [True, True, False, False]
    why = first[2]["refused"]
    assert why.startswith("anna#3: ")
    assert first[3] == {"key": "anna#4", "refused": why}
    assert late == {"key": "anna#5", "refused": why}
    assert [answer["key"] for answer in second if "id" in answer] == ["anna#3", "anna#4", "anna#5"]
    assert second[3]["refused"].startswith("no order: ")
    assert second[4] == {"key": "anna#6", "refused": second[3]["refused"]}
    rows = await admin.fetch("SELECT key FROM chain_event WHERE chain_id = $1 ORDER BY id", CHAIN)
    assert [row["key"] for row in rows] == [f"anna#{number}" for number in range(1, 6)]
    await admin.close()
