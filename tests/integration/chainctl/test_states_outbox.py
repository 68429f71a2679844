"""The states of the runbooks that concern messages too: a full disk, and a message that is stuck.

As in `test_states.py`: the state is real, and the commands are those of the page.
"""

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import outbox
from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER
from orderchain import errors, open_sequencer
from outbox import Consumer, ConsumerConfig, Message, Refused, draw_message_ids
from outbox.consumer.delivery import Delivery
from sequencer import SequencerConfig, SequencerTuning
from tests.integration.chainctl.conftest import Start
from tests.integration.chainctl.runbooks import Runbook, World
from tests.opened import connected
from tests.programs import completed

Page = Callable[..., Runbook]

DISK_MB = 64
ORDER_BYTES = 20_000
ORDERS = 400
PARTITION_IDS = 100


class Disk:
    """A small disk of its own for the tables of one database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Use up all that is left."""
        with self._ballast.open("wb") as file, suppress(OSError):
            while True:
                file.write(bytes(2**16))
                file.flush()

    def free(self, bytes_: int) -> None:
        """Give some of it back: a forgotten dump."""
        os.truncate(self._ballast, max(0, self._ballast.stat().st_size - bytes_))


@pytest.fixture
def disk(postgres_server: PostgresServer, server_folder: Path, suffix: str) -> Iterator[Disk]:
    """A disk on which PostgreSQL has a tablespace: its log is elsewhere, as it should be."""
    folder = server_folder / "small"
    folder.mkdir()
    account = postgres_server.account
    owner = f"size={DISK_MB}m,uid={account.user_id},gid={account.group_id},mode=700"
    mount = ["mount", "-t", "tmpfs", "-o", owner, "tmpfs", str(folder)]
    done = completed(*mount)
    if done.returncode != 0:
        pytest.skip(f"a file system of its own cannot be mounted here: {done.stderr.strip()}")
    try:
        tables = folder / "tables"
        tables.mkdir(mode=0o700)
        account.own(tables)
        postgres_server.execute(f"CREATE TABLESPACE small_{suffix} LOCATION '{tables}'")
        yield Disk(folder)
        postgres_server.execute(f"DROP TABLESPACE small_{suffix}")
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def small_database(
    postgres_server: PostgresServer, template: Callable[..., str], disk: Disk, suffix: str
) -> Iterator[str]:
    """A database on that disk, with a chain and an outbox."""
    name = f"test_small_{suffix}"
    source = template("chain", "outbox")
    postgres_server.execute(
        f"CREATE DATABASE {name} TEMPLATE {source} TABLESPACE small_{suffix} STRATEGY file_copy"
    )
    yield postgres_server.dsn(SUPERUSER, name)
    postgres_server.drop_database(name)


async def fill_up(world: World) -> None:
    """Submit large orders until the disk is full."""
    config = SequencerConfig(
        chain_id=1, database=world.settings["CHAINCTL_DATABASE"],
        kafka=world.settings["CHAINCTL_KAFKA"], tuning=SequencerTuning(recover_seconds=1.0),
    )  # fmt: skip
    async with open_sequencer(config) as sequencer:
        for number in range(ORDERS):
            await sequencer.submit(f"until-full#{number}", bytes(ORDER_BYTES))


def test_disk_full(page: Page, world: World, disk: Disk, small_database: str) -> None:
    world.settings["CHAINCTL_DATABASE"] = small_database
    world.settings["CHAINCTL_GAP_DATABASE"] = small_database
    world.create("--partition-ids", PARTITION_IDS)
    orders = world.folder / "o.csv"
    orders.write_text("n\n" + "".join(f"{n}{'x' * ORDER_BYTES}\n" for n in range(ORDERS)))
    sequence = ("sequence", "--chain", 1, "--batch-rows", 10, "--input", orders)
    world.must(*sequence)
    limited = world.call("outbox", "keep", "--outbox-bytes-max", 1, settings=world.settings)
    assert limited.code == 1, limited

    with page("disk-full", {"90000000": 3 * PARTITION_IDS}) as runbook:
        disk.fill()
        with pytest.raises(errors.OrderchainError, match=r"disk full|No space left"):
            asyncio.run(fill_up(world))
        # A login after a change of tables writes a file: a disk without a byte left lets none in.
        disk.free(2**19)
        head = runbook.json("status")["head_persisted"]
        disk.fill()
        assert "No space left on device" in runbook.run("doctor --chain 1", code=1).out
        runbook.run("outbox keep", code=1)

        disk.free(4 * 2**20)
        runbook.run("outbox keep --history-bytes-max", code=1)
        runbook.run("outbox keep --outbox-bytes-max")
        assert "chain_page" in runbook.run("sizes").out
        runbook.run("sizes --over 1d")
        runbook.run("verify")
        runbook.run("archive")
        window = ("--key-window-rows", 0)  # the chain of the test is shorter than the window
        plan = runbook.json("retention", *window, dry_run=True)
        assert (plan["is_done"], len(plan["partitions"])) == (False, 3)
        done = runbook.json("retention", *window)
        freed = sum(table["bytes"] for table in done["dropped"])
        assert freed > 2 * PARTITION_IDS * ORDER_BYTES

        more = [f"n{n}{'x' * ORDER_BYTES}\n" for n in range(2 * PARTITION_IDS)]
        orders.with_name("more.csv").write_text("n\n" + "".join(more))
        world.must(*sequence[:-1], orders.with_name("more.csv"))
        assert runbook.json("status")["head_persisted"] > head
        assert "it has room" in runbook.run("doctor").out
        runbook.run("outbox keep")


# ------------------------------------------------------------------------------------ stuck message


@pytest.fixture
def messages(
    postgres_server: PostgresServer, template: Callable[..., str], world: World, suffix: str
) -> Iterator[str]:
    """A business's database with an outbox, which is its consumer's, too."""
    name = f"test_messages_{suffix}"
    postgres_server.copy_database(template("outbox", "inbox"), name)
    world.settings["CHAINCTL_DATABASE"] = postgres_server.dsn(SUPERUSER, name)
    yield world.settings["CHAINCTL_DATABASE"]
    postgres_server.drop_database(name)


class Clearing:
    """A clearing service whose handler has an error, until it is corrected."""

    def __init__(self, world: World, topic: str) -> None:
        config = ConsumerConfig(
            name="clearing-service", topics=(topic,), kafka=world.settings["CHAINCTL_KAFKA"],
            database=world.settings["CHAINCTL_DATABASE"], retry_poll_seconds=0.2,
        )  # fmt: skip
        self.is_correct = False
        self._consumer = Consumer(config)
        self.applied: list[bytes] = []

    async def handle(self, delivery: Delivery, connection: Any) -> None:
        del connection
        if not self.is_correct and delivery.payload == b"refused":
            raise Refused("no such account")
        self.applied.append(delivery.payload)

    async def work_beside(self, steps: Callable[[], None]) -> None:
        """Work until `steps`, in a thread, are done."""
        async with self._consumer as consumer:
            working = asyncio.create_task(consumer.run(self.handle))
            await asyncio.to_thread(steps)
            consumer.stop()
            await working


async def add(dsn: str, *messages: Message) -> None:
    async with connected(dsn) as connection, connection.transaction():
        await outbox.add_many(connection, list(messages))


def test_stuck_message(page: Page, start: Start, world: World, messages: str, suffix: str) -> None:
    topic = f"clearing-{suffix}"
    world.must(
        *("outbox", "destination", "set", "clearing", "--topic", topic, "--create-topics"),
        *("--consumer", "clearing-service", "--tries-max", 1, "--resend-seconds", 1),
        *("--no-resend-filter",),
    )
    ids = draw_message_ids(3)
    lost, wrong, refused = (
        Message(message_id, "clearing", payload, key)
        for message_id, payload, key in zip(
            ids, (b"lost", b"wrong", b"refused"), ("T-1042", "T-1043", "T-1044"), strict=True
        )
    )
    samples = {"orders-outbox": f"outbox-{suffix}"}
    with page("stuck-message", samples) as runbook:
        # Nobody confirms: the consumer is away.
        asyncio.run(add(messages, lost, wrong))
        words = runbook.words("outbox relay")
        relay = start(*words, "--sweep-seconds", 0.2, settings=world.settings)
        runbook.until(
            "outbox status",
            lambda rows: [row["deliveries"] for row in rows if row["status"] == "abnormal"] == [2],
        )
        runbook.run("outbox status", code=1)
        assert len(runbook.json("outbox list --status abnormal")) == 2
        (row,) = runbook.json("outbox list --key T-1042")
        runbook.replace({"019ae3a0-7c1b-7000-8000-000000000001": row["message_id"]})
        shown = runbook.json("outbox show")
        assert (shown["message_id"], shown["key"]) == (str(lost.message_id), "T-1042")

        # One must never be applied; the other gets new tries.
        runbook.replace({"019ae3a0-7c1b-7000-8000-000000000001": wrong.message_id})
        runbook.run("outbox abandon")
        tried = runbook.json("outbox retry", dry_run=True)
        assert [each["message_id"] for each in tried] == [str(lost.message_id)]
        runbook.run("outbox retry")

        # The consumer comes back, and its handler refuses one.
        clearing = Clearing(world, topic)
        finished = {"consumed", "abandoned"}

        def apply_all() -> None:
            asyncio.run(add(messages, refused))
            letters = runbook.until("outbox dead list --consumer", lambda rows: rows)
            assert [letter["message_id"] for letter in letters] == [str(refused.message_id)]
            clearing.is_correct = True
            runbook.run("outbox dead retry")
            runbook.until("outbox status", lambda rows: {row["status"] for row in rows} == finished)

        asyncio.run(clearing.work_beside(apply_all))
        runbook.run("outbox status")
        assert runbook.json("outbox dead list") == []
        assert {each["act"] for each in runbook.json("outbox acts")} == {"abandon", "retry"}
        assert [each["act"] for each in runbook.json("outbox dead acts")] == ["retry"]
        assert {b"lost", b"refused"} <= set(clearing.applied)
        relay.terminate()
        assert relay.wait() == 143
