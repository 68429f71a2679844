"""The demo's orders: read once from end to end, applied straight, and put into a chain."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from orderchain_demo.book import Exchange
from orderchain_demo.flow import csv_lines
from sequencer.intake.order_file import FileOptions, OrderFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sequencer import Ack, Sequencer

FLOW_NAME: Final = "orders.csv"

PORTION_ROWS: Final = 5_000
"""Rows read at once. It bounds the memory, and the reaction time to Ctrl-C."""

COMMITS_AHEAD: Final = 3
"""Batches handed over at once: one commits, one is encoded, one is read. More would only wait."""


class DemoInput(Struct, frozen=True, kw_only=True):
    """A file of orders that can be read to its end, and what they come to."""

    path: Path
    rows: int
    last_key: str
    digest: str
    """Digest of the exchange to which they were applied, with nothing in between."""


def read_input(path: Path, show: Callable[[int], None]) -> DemoInput:
    """Read the orders of a file, and apply them straight.

    After each portion, `show` gets the number of rows done. Raises InputError, which names the
    line, for a file that cannot be read to its end.
    """
    exchange, last_key = Exchange(), ""
    with OrderFile(path, FileOptions()) as orders:
        while (portion := orders.read(PORTION_ROWS)) is not None:
            exchange.apply(order.payload for order in portion.orders)
            last_key = portion.orders[-1].key
            show(exchange.events)
    return DemoInput(
        path=path.absolute(), rows=exchange.events, last_key=last_key, digest=exchange.digest()
    )


def generated_input(folder: Path, seed: int, orders: int, show: Callable[[int], None]) -> DemoInput:
    """Write a flow into `folder`, and read it."""
    path = folder / FLOW_NAME
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(csv_lines(seed, orders))
    return read_input(path, show)


class OrderFeed:
    """Puts a file's rows into a chain; waits halfway until `resumed` is set."""

    def __init__(self) -> None:
        self.resumed = asyncio.Event()
        self.rows = 0
        """Rows in the chain."""
        self.seconds = 0.0
        """Time spent; the wait does not count."""

    async def run(self, sequencer: Sequencer, orders: DemoInput, batch_rows: int) -> None:
        """Put all rows of the file into the chain, in batches."""
        commits: deque[asyncio.Task[Sequence[Ack]]] = deque()
        started = time.monotonic()
        with OrderFile(orders.path, FileOptions()) as file:
            # The commits end before the sequencer closes, which would fail them.
            async with asyncio.TaskGroup() as tasks:
                while (portion := file.read(batch_rows)) is not None:
                    if file.position > max(1, orders.rows // 2) and not self.resumed.is_set():
                        self.seconds += time.monotonic() - started
                        await self.resumed.wait()
                        started = time.monotonic()
                    for part in portion.within(sequencer.batch_bytes_max):
                        submitting = sequencer.submit_many(part.orders, intake=part.mark)
                        commits.append(tasks.create_task(submitting))
                        if len(commits) == COMMITS_AHEAD:
                            self.rows += len(await commits.popleft())
                while commits:
                    self.rows += len(await commits.popleft())
        self.seconds += time.monotonic() - started
