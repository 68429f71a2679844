"""A topic of orders that is to become a chain, filled in the background."""

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable
from itertools import chain as flatten
from typing import Any

from aiokafka import AIOKafkaProducer

from tests.deadlines import Deadline
from tests.opened import connected

PARTITIONS = 3

Row = tuple[int, int, str]


class Topic:
    """A topic of orders, filled in the background, and the chain that it is to become."""

    def __init__(self, settings: dict[str, str], name: str, chain: int) -> None:
        self.settings = settings
        self.name = name
        self.chain = chain
        self.sent: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def send(self, count: int) -> None:
        """Send `count` orders, every tenth of them twice, some without a key."""
        asyncio.run(self._send(count))

    def start_load(self) -> None:
        """Send orders in the background, until `stop_load`."""

        def work() -> None:
            while not self._stop.wait(0.1):  # all of it is to be taken in the end
                self.send(300)

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def stop_load(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    async def _send(self, count: int) -> None:
        kafka = self.settings["CHAINCTL_KAFKA"]
        async with AIOKafkaProducer(bootstrap_servers=kafka, linger_ms=2) as producer:
            acks = []
            for number in range(count):
                partition = number % PARTITIONS
                sent = self.sent[partition]
                key = None if number % 7 == 0 else f"p{partition}#{len(sent)}"
                for _ in range(1 + (number % 10 == 0 and key is not None)):
                    acks.append(
                        await producer.send(
                            self.name, b"order", partition=partition, key=key and key.encode()
                        )
                    )
                    offset = self.ends[partition]
                    self.ends[partition] = offset + 1
                sent.append(key or f"{self.name}/{partition}#{offset}")
            await asyncio.gather(*acks)

    def query(self, statement: str, *values: object) -> list[Any]:
        async def fetch() -> list[Any]:
            async with connected(self.settings["CHAINCTL_DATABASE"]) as connection:
                rows: list[Any] = await connection.fetch(statement, self.chain, *values)
                return rows

        return asyncio.run(fetch())

    def rows(self) -> list[Row]:
        found = self.query("SELECT id, pid, key FROM chain_event WHERE chain_id = $1 ORDER BY id")
        return [tuple(row) for row in found]

    def head(self) -> Any:
        (head,) = self.query(
            "SELECT epoch, last_id, owner, released FROM chain_head JOIN chain_lease l "
            "USING (chain_id, epoch) WHERE chain_id = $1"
        )
        return head

    def positions(self) -> dict[int, int]:
        found = self.query("SELECT source, position FROM chain_intake WHERE chain_id = $1")
        return {int(row["source"].rpartition(":")[2]): row["position"] for row in found}

    def until(
        self, condition: Callable[[], bool], process: subprocess.Popen[str] | None = None
    ) -> None:
        """Wait for `condition` while `process` lives."""
        bound = Deadline()
        while not condition():
            assert bound.left() > 0, (self.positions(), self.ends)
            assert process is None or process.poll() is None, process.communicate()
            time.sleep(0.01)

    def until_taken(self, process: subprocess.Popen[str]) -> None:
        self.until(lambda: self.positions() == self.ends, process)

    def assert_is_chain(self) -> None:
        """Every order once, in the order of its partition, in one chain."""
        rows = self.rows()
        assert [pid for _, pid, _ in rows] == [0, *(row_id for row_id, _, _ in rows[:-1])]
        assert sorted(key for _, _, key in rows) == sorted(flatten(*self.sent.values()))
        for partition, sent in self.sent.items():
            prefixes = (f"p{partition}#", f"{self.name}/{partition}#")
            assert [key for _, _, key in rows if key.startswith(prefixes)] == sent
