"""Makes the pictures of `docs/console.md`: `python tools/console_pictures.py`.

A stack of its own runs two chains that live, and the five faults of the runbooks: a gap, a message
that is stuck, a dead leader, a halted receiver, a rewritten history. All of it is real; only the
faults in stored rows are made with SQL. A Chromium watches until the charts are full, which takes
three minutes. `CHROMIUM` names another than the system's.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import math
import os
import random
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import asyncpg
from PIL import Image
from playwright.async_api import async_playwright

import outbox
from chain_kernel.testing.memory_chain import LinkDial
from local_stack import LocalStack
from matcher_receiver import KafkaFrameSource, KafkaSourceConfig
from orderchain import Order, ReceiverConfig, SequencerConfig, errors, open_receiver, open_sequencer
from orderchain_demo.link import BadLink
from outbox import Consumer, ConsumerConfig, Refused

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from outbox import Delivery

DOCS: Final = Path(__file__).parents[1] / "docs"
CHAINCTL: Final = str(Path(sys.executable).with_name("chainctl"))
WATCH_SECONDS: Final = 185.0
"""As long as the charts reach back."""

COLORS: Final = 128
"""A page has few; a picture with a palette has a third of the bytes."""

DAMAGED: Final = 4
"""The chain with the faults in stored rows."""

BATCH_ROWS: Final = 50
PAUSE_SECONDS: Final = 0.1

draw: Final = random.Random(7)  # noqa: S311 - pictures


class World:
    """A stack, with what runs on it."""

    def __init__(self, folder: Path, stack: LocalStack) -> None:
        self.folder = folder
        environment = stack.environment()
        self.database = environment["CHAINCTL_DATABASE"]
        self.kafka = environment["CHAINCTL_KAFKA"]
        self._environment = os.environ | environment
        self._processes: list[asyncio.subprocess.Process] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def call(self, *arguments: object, code: int = 0) -> None:
        """Run `chainctl` to its end, which must be `code`."""
        process = await self.start(*arguments)
        _, err = await process.communicate()
        if process.returncode != code:
            raise SystemExit(
                f"chainctl {arguments} ended with {process.returncode}: {err.decode()}"
            )

    async def start(
        self, *arguments: object, stdin: int = DEVNULL, stderr: int = PIPE
    ) -> asyncio.subprocess.Process:
        """Run `chainctl` until the world ends."""
        line = [CHAINCTL, *map(str, arguments)]
        process = await asyncio.create_subprocess_exec(
            *line, cwd=self.folder, env=self._environment,
            stdin=stdin, stdout=DEVNULL, stderr=stderr,
        )  # fmt: skip
        self._processes.append(process)
        return process

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until the world ends."""
        self._tasks.append(asyncio.create_task(work))

    async def sql(self, *statements: str) -> Any:  # noqa: ANN401 - a value of any type
        """Execute statements as a superuser; return the first value of the last."""
        connection = await asyncpg.connect(self.database)
        try:
            for statement in statements[:-1]:
                await connection.execute(statement)
            return await connection.fetchval(statements[-1])
        finally:
            await connection.close()

    async def end(self) -> None:
        """End what runs. Raises what has ended a part before its time."""
        over = [task for task in self._tasks if task.done()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        for task in over:
            task.result()


async def until(world: World, query: str) -> None:
    """Wait until the value of `query` is true."""
    while not await world.sql(query):  # noqa: ASYNC110 - another process makes it true
        await asyncio.sleep(PAUSE_SECONDS)


# -- what lives ------------------------------------------------------------------------------------


def orders(chain: int, batch: int, rows: int) -> list[Order]:
    """Return the orders of one batch."""
    return [Order(f"gateway-{chain}#{batch * 10_000 + row + 1}", b"order") for row in range(rows)]


async def lead(world: World, chain: int, name: str, rows: int) -> None:
    """Sequence orders, about ten batches per second of about `rows` each, in waves."""
    config = SequencerConfig(chain_id=chain, database=world.database, kafka=world.kafka, name=name)
    async with open_sequencer(config) as sequencer:
        for batch in itertools.count():
            wave = 1 + 0.3 * math.sin(batch / 90) + draw.uniform(-0.2, 0.2)
            await sequencer.submit_many(orders(chain, batch, round(rows * wave)))
            await asyncio.sleep(PAUSE_SECONDS)


async def follow(world: World, chain: int, name: str, loss: float, slow: float) -> None:
    """Receive a chain over a link that loses a share `loss` of the frames; of the runs, a share
    `slow` takes seconds.
    """
    topic = KafkaSourceConfig(kafka=world.kafka, topic=f"orderchain.{chain}")
    link = BadLink(KafkaFrameSource(topic), LinkDial(lost=loss), seed=str(chain))
    config = ReceiverConfig(chain_id=chain, name=name, database=world.database)
    async with open_receiver(config, frames=link) as receiver:
        async for run in receiver:
            await receiver.checkpoint(run)
            if draw.random() < slow:
                await asyncio.sleep(draw.uniform(0.5, 3))


async def refuse_some(deliveries: list[Delivery]) -> None:
    """Apply messages of the ledger, but for those of one currency."""
    if any(each.key == "XTS" for each in deliveries):
        raise Refused("no ledger for currency XTS")


async def consume(world: World) -> None:
    """Work as the ledger's service."""
    config = ConsumerConfig(
        name="ledger-service", topics=("ledger",), kafka=world.kafka, database=world.database
    )
    async with Consumer(config) as consumer:
        await consumer.run_many(lambda deliveries, _: refuse_some(list(deliveries)))


# -- the faults ------------------------------------------------------------------------------------


async def read_to_head(world: World, chain: int, name: str) -> None:
    """Receive what there is; what ends the receiver is stored for the console."""
    config = ReceiverConfig(
        chain_id=chain, name=name, database=world.database, kafka=world.kafka, until="head"
    )
    with suppress(errors.OrderchainError):
        async with open_receiver(config) as receiver:
            async for run in receiver:
                await receiver.checkpoint(run)


async def dead_leader(world: World, chain: int) -> None:
    """Kill a leader that reads from a pipe."""
    read, write = os.pipe()
    os.write(write, b"symbol\n" + b"ALPHA\n" * 6_508)
    name = ("--input", "-", "--input-name", "orders.csv", "--format", "csv")
    leader = await world.start(
        "sequence", "--chain", chain, "--name", "seq-c.fra:4103", *name, stdin=read
    )
    await until(world, f"SELECT last_id FROM chain_head WHERE chain_id = {chain}")  # noqa: S608
    leader.kill()
    await read_to_head(world, chain, "matching")


async def damaged_rows(world: World) -> None:
    """Remove rows of a chain that was verified, and change the seal of its last batch."""
    config = SequencerConfig(
        chain_id=DAMAGED, database=world.database, kafka=world.kafka, name="seq-d.fra:4104"
    )
    async with open_sequencer(config) as sequencer:
        for batch in range(400):
            await sequencer.submit_many(orders(DAMAGED, batch, BATCH_ROWS))
            if batch == 100:
                await read_to_head(world, DAMAGED, "clearing")
            if batch == 398:
                await read_to_head(world, DAMAGED, "ledger")
    verify = ("verify", "--local", "--source", "database", "--actor", "audit@exchange")
    await world.call(*verify, "--all-chains", "--since-verified")
    of_last = f"WHERE chain_id = {DAMAGED} AND last_id = {400 * BATCH_ROWS}"
    await world.sql(
        f"DELETE FROM chain_page WHERE chain_id = {DAMAGED} "  # noqa: S608 - numbers
        f"AND last_id > {150 * BATCH_ROWS} AND last_id <= {180 * BATCH_ROWS}",
        f"UPDATE chain_batch SET seal = sha256(seal) {of_last}",  # noqa: S608
        f"UPDATE chain_head SET last_seal = (SELECT seal FROM chain_batch {of_last}) "  # noqa: S608
        f"WHERE chain_id = {DAMAGED}",
        "SELECT 1",
    )
    for name in ("clearing", "ledger"):
        await read_to_head(world, DAMAGED, name)
    why = ("--reason", "compared with db2, ticket 512", "--actor", "eve@ops")
    await world.call("unhalt", "--chain", DAMAGED, "--name", "ledger", *why)
    await read_to_head(world, DAMAGED, "ledger")
    both = ("--source", "database", "--source", "topic", "--seals", "--report", "report.html")
    await world.call("verify", "--local", "--chain", DAMAGED, *both, code=1)


async def messages(world: World) -> None:
    """Messages of which three have no consumer, and two are refused."""
    once = ("--tries-max", 1, "--resend-seconds", 1, "--no-resend-filter")
    for name in ("clearing", "ledger"):
        destination = (name, "--topic", name, "--create-topics", "--consumer", f"{name}-service")
        await world.call(
            "outbox", "destination", "set", *destination, *once[: 5 * (name == "clearing")]
        )
    await world.start("outbox", "relay", "--sweep-seconds", "200ms", stderr=DEVNULL)
    world.begin(consume(world))
    ids = iter(outbox.draw_message_ids(1_065))
    keys = [("clearing", "88-4411")] * 3 + [("ledger", "XTS")] * 2 + [("ledger", "EUR")] * 1_060
    connection = await asyncpg.connect(world.database)
    async with connection.transaction():
        await outbox.add_many(
            connection, [outbox.Message(next(ids), name, b"trade", key) for name, key in keys]
        )
    await connection.close()


# -- the pictures ----------------------------------------------------------------------------------


def save(name: str, picture: bytes) -> None:
    """Store a picture with a palette, in which rare colors stay what they are."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    chosen = image.quantize(COLORS, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    chosen.save(DOCS / f"{name}.png", optimize=True)


async def take_pictures(url: str) -> None:
    """Watch the console, and take the pictures."""
    path = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with AsyncExitStack() as open_:
        playwright = await open_.enter_async_context(async_playwright())
        browser = await playwright.chromium.launch(executable_path=path, args=sandbox)
        open_.push_async_callback(browser.close)
        light = await browser.new_page(viewport={"width": 1280, "height": 1480})
        phone = await browser.new_page(
            viewport={"width": 390, "height": 1500}, device_scale_factor=1.5, is_mobile=True
        )
        for page in (light, phone):
            await page.goto(url)
        await asyncio.sleep(WATCH_SECONDS)
        save("console-light", await light.screenshot())
        save("console-phone", await phone.screenshot())


async def run(world: World) -> None:
    """Bring the world into its state, and take the pictures."""
    for part in ("chain", "outbox", "inbox"):
        await world.call("schema", "apply", "--part", part)
    for chain in range(1, DAMAGED + 1):
        await world.call("chain", "create", chain)
    world.begin(lead(world, 1, "seq-a.fra:4101", 250))
    world.begin(lead(world, 2, "seq-b.fra:4102", 40))
    await messages(world)
    await dead_leader(world, 3)
    await damaged_rows(world)
    for chain, name, loss, slow in (
        (1, "matching", 0.002, 0.0), (1, "risk", 0.002, 0.0), (1, "surveillance", 0.0, 0.02),
        (2, "matching", 0.002, 0.0), (2, "market-data", 0.0, 0.0),
    ):  # fmt: skip
        world.begin(follow(world, chain, name, loss, slow))
    read, write = os.pipe()
    given = ("--port", 0, "--report", "report.html")
    await world.start("console", *given, stderr=write)
    os.close(write)
    with os.fdopen(read) as said:
        url = (await asyncio.to_thread(said.readline)).split()[-1]
        await take_pictures(url)


async def live(folder: Path, stack: LocalStack) -> None:
    """Run a world, and end it."""
    world = World(folder, stack)
    try:
        await run(world)
    finally:
        await world.end()


def main() -> None:
    """Make all pictures."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)  # the servers have a user of their own
        stack = LocalStack(folder / "stack")
        stack.up()
        try:
            asyncio.run(live(folder, stack))
        finally:
            stack.down()


if __name__ == "__main__":
    main()
