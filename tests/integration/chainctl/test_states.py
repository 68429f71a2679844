"""Every state of the runbooks is seen and left by `chainctl` alone, as its page says.

The state is made on real servers, by signals, by faults or by SQL. Then the commands of the page
are run, read from the page itself: one that fails, or that the test has not run, fails the test.
"""

# ruff: noqa: S608 - every value in a statement is a number or a name of this file

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from concurrent.futures import Future
from contextlib import asynccontextmanager
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Literal

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from chain_kernel.errors import BatchDamaged, RowsMissing
from gapfill import GapReader, GapReaderConfig
from matcher_receiver import (
    CheckpointConfig,
    KafkaFrameSource,
    KafkaSourceConfig,
    PostgresCheckpointStore,
    Receiver,
    ReceiverConfig,
)
from sequencer import Order, SequencerConfig, SequencerTuning, open_sequencer
from tests.deadlines import deadline
from tests.integration.chainctl.runbooks import BATCH_ROWS, Background, Runbook, World, settings_of
from tests.pages import ROOT, blocks_of
from tests.stored_pages import LET_TAMPER
from tests.tuned import tuned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from local_stack import KafkaServer, PostgresServer
    from sequencer import Sequencer
    from tests.integration.chainctl.conftest import Call, Start

    Settings = dict[str, str]
    Page = Callable[..., Runbook]


class Frames(KafkaFrameSource):
    """A topic between which and the receiver every second frame gets lost, once it is bad."""

    is_bad = False

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        found = await super().records(timeout_seconds)
        return found[::2] if self.is_bad else found


class Service:
    """A matching service that keeps its checkpoint in the chain's database."""

    def __init__(self, settings: Settings, topic: str, name: str = "matching") -> None:
        kafka = KafkaSourceConfig(kafka=settings["CHAINCTL_KAFKA"], topic=topic)
        self.frames = Frames(kafka)
        self._settings = settings
        self._name = name
        self.ids: list[int] = []

    @asynccontextmanager
    async def _receiver(
        self, until: Literal["head"] | None = None, **tuning: Any
    ) -> AsyncIterator[Receiver]:
        database = self._settings["CHAINCTL_DATABASE"]
        store = CheckpointConfig(database=database, chain_id=1, name=self._name)
        reader = GapReaderConfig(database=self._settings["CHAINCTL_GAP_DATABASE"], chain_id=1)
        async with Receiver(
            tuned(ReceiverConfig(chain_id=1, name=self._name, until=until), **tuning),
            self.frames,
            GapReader(reader),
            PostgresCheckpointStore(store),
        ) as receiver:
            yield receiver

    async def catch_up(self) -> None:
        """Process everything up to the head."""
        async with self._receiver(until="head") as one:
            async for run in one:
                self.ids += [event.id for event in run.events]
                await one.checkpoint(run)

    async def follow(self, is_live: threading.Event, until: Future[int]) -> None:
        """Process the chain live until an id, which is given later."""
        async with self._receiver(poll_after_seconds=0.2) as receiver:
            waiting = asyncio.create_task(receiver.live.wait())
            waiting.add_done_callback(lambda _: is_live.set())
            while not until.done() or self.ids[-1:] != [until.result()]:
                try:
                    async with asyncio.timeout(0.2):
                        run = await anext(receiver)
                except TimeoutError:
                    continue
                self.ids += [event.id for event in run.events]
                await receiver.checkpoint(run)


def receiver_of(status: Any, name: str = "matching") -> Any:
    return next(each for each in status["receivers"] if each["receiver"] == name)


# ------------------------------------------------------------------------------------------ states


def test_dead_leader(page: Page, start: Start, world: World) -> None:
    world.create()
    world.make_orders()
    with page("dead-leader") as runbook:
        leader = start(
            *("sequence", "--chain", 1, "--intake-topic", world.orders), settings=world.settings
        )
        world.send(b"first")
        runbook.until("status", lambda chain: chain["head_persisted"] > 0)
        head = world.head()
        leader.kill()
        leader.wait()
        world.send(b"second")
        state = runbook.until("status", lambda chain: chain["leader_state"] == "silent")
        assert state["head_persisted"] == head, "orders wait"
        assert runbook.json("leader")["last_beat_seconds"] > 2
        runbook.run("leader --chain 1 --check", code=1)

        assert "is free" in runbook.run("takeover").err
        follower = runbook.begin("sequence")
        state = runbook.until("status", lambda chain: chain["head_persisted"] > head)
        assert (state["leader_state"], state["epoch"]) == ("leads", 2)
        runbook.run("lag")
        follower.terminate()
        assert follower.wait() == 143


def test_halted_receiver(page: Page, world: World, background: Background) -> None:
    world.create()
    world.sequence(5 * BATCH_ROWS)
    service = Service(world.settings, world.topic)
    background.run(service.catch_up())
    head = world.sequence(3 * BATCH_ROWS)
    world.must("receive", "--chain", 1, "--output", "journal.jsonl")
    world.sql(LET_TAMPER, f"UPDATE chain_event SET payload = 'x' WHERE id = {head}")
    with pytest.raises(BatchDamaged):
        background.run(Service(world.settings, world.topic).catch_up())

    with page("halted-receiver") as runbook:
        halted = receiver_of(runbook.json("status"))
        assert halted["halted"].startswith("BatchDamaged at ")
        runbook.run("config show")
        runbook.run("verify --local --chain 1 --source database --seals", code=1)
        compared = runbook.run("verify --local --chain 1 --source database --source", code=1)
        assert str(head) in compared.out
        assert "1 batch, 10 rows" in runbook.run("repair", dry_run=True).err
        runbook.run("repair")
        runbook.run("verify --local --chain 1 --source database --seals")
        runbook.run("unhalt")
        background.run(service.catch_up())
        assert service.ids[-1] == head

        # And where the service's own state is what was wrong:
        runbook.run("receivers reset", dry_run=True)
        runbook.run("receivers reset")
        again = Service(world.settings, world.topic)
        background.run(again.catch_up())
        every = [row_id for (row_id,) in world.sql("SELECT id FROM chain_event ORDER BY id")]
        assert again.ids == every, "it has processed every order once more"
        assert receiver_of(runbook.json("status"))["halted"] == ""
        assert [act["act"] for act in runbook.json("acts")] == ["reset", "unhalt", "repair"]


def test_gap_storm(page: Page, world: World, background: Background) -> None:
    world.create()
    first = world.sequence(BATCH_ROWS)
    service = Service(world.settings, world.topic)
    is_live = threading.Event()
    until: Future[int] = Future()
    following = background.begin(service.follow(is_live, until))
    assert is_live.wait()
    service.frames.is_bad = True
    head = world.sequence(30 * BATCH_ROWS)
    until.set_result(head)
    following.result()
    assert len(service.ids) == 31 * BATCH_ROWS, "nothing is missing for it"

    with page("gap-storm", {"5000": first, "6000": head}) as runbook:
        stormy = runbook.until("gaps --chain 1 --since 1h --sum", lambda sums: sums)
        assert sum(each["gaps"] for each in stormy) > 1
        assert {each["outcome"] for each in stormy} == {"filled"}
        assert runbook.json("gaps --chain 1 --open") == []
        assert runbook.json("gaps --chain 1 --name matching")
        assert runbook.json("status")["head_published"] == head

        # Rows that the database lacks, too, are a gap that stays open.
        more = world.sequence(3 * BATCH_ROWS)
        world.sql(f"DELETE FROM chain_page WHERE last_id = {world.ends()[-2]}", "SELECT 1")
        with pytest.raises(RowsMissing):
            background.run(service.catch_up())
        missing = runbook.until("gaps --chain 1 --open", lambda gaps: gaps)
        assert [each["outcome"] for each in missing] == ["missing"]
        runbook.run("repair", dry_run=True)
        runbook.run("repair")
        background.run(service.catch_up())
        assert service.ids[-1] == more

        last = json.loads(runbook.run("fill").out.splitlines()[-1])
        assert last["id"] == head
        assert runbook.until("gaps --chain 1 --open", lambda gaps: not gaps) == []
        runbook.run("lag")


def test_slow_receiver(page: Page, world: World, background: Background) -> None:
    world.create()
    first = world.sequence(BATCH_ROWS)
    service = Service(world.settings, world.topic)
    background.run(service.catch_up())
    world.sequence(3 * BATCH_ROWS)
    with page("slow-receiver", {"100000": 2 * BATCH_ROWS, "5": "60s"}) as runbook:
        slow = "lag --chain 1 --max-seconds 5 --max-rows 100000"
        (line,) = runbook.json(slow, code=1)
        assert (line["receiver"], line["behind_rows"]) == ("matching", 3 * BATCH_ROWS)
        assert receiver_of(runbook.json("status"))["head_delivered"] == first
        assert runbook.json("gaps") == []
        background.run(service.catch_up())
        runbook.run(slow)
        runbook.run("lag --chain 1 --max-seconds 5")


@pytest.fixture
def breakable_world(
    call: Call,
    postgres_server: PostgresServer,
    database_name: str,
    kafka_to_break: KafkaServer,
    suffix: str,
    tmp_path: Path,
) -> World:
    """The chain 1 of this test, created, over a broker that the test may stop."""
    settings = settings_of(postgres_server, database_name, kafka_to_break)
    world = World(call, settings, suffix, tmp_path)
    world.create()
    return world


def sequencer_of(world: World) -> AbstractAsyncContextManager[Sequencer]:
    """Return a sequencer that soon gives up a publish."""
    return open_sequencer(
        SequencerConfig(
            chain_id=1,
            database=world.settings["CHAINCTL_DATABASE"],
            kafka=world.settings["CHAINCTL_KAFKA"],
            tuning=SequencerTuning(publish_seconds=3.0),
        )
    )


def test_lagging_kafka(
    call: Call,
    start: Start,
    breakable_world: World,
    kafka_to_break: KafkaServer,
    background: Background,
) -> None:
    world, settings = breakable_world, breakable_world.settings
    opened = sequencer_of(world)
    sequencer = background.run(opened.__aenter__())

    keys = map(str, count())

    def submit() -> int:
        orders = [Order(key, b"x") for key in islice(keys, BATCH_ROWS)]
        acks = background.run(sequencer.submit_many(orders))
        return int(acks[-1].id)

    def is_published(chain: Any) -> bool:
        submit()  # a commit stores what was published before it
        return bool(chain["head_published"] >= head)

    with Runbook("lagging-kafka", call, start, settings, {}) as runbook:
        head = submit()
        runbook.until("status", is_published)
        kafka_to_break.stop()
        head = submit()
        state = runbook.json("status")
        assert state["head_published"] < state["head_persisted"] == head
        assert state["leader_state"] == "leads", "orders are taken all the same"
        assert state["published"].endswith("wait for the broker")
        runbook.run("lag")
        kafka_to_break.start()
        runbook.until("status", is_published)
        background.run(opened.__aexit__(None, None, None))
        state = runbook.json("status")
        assert state["head_published"] == state["head_persisted"]
        runbook.run("doctor")
        runbook.run("verify")

        # And where the topic is gone with its broker, the page's line makes it.
        asyncio.run(delete_topics(settings["CHAINCTL_KAFKA"], world.topic))
        assert runbook.json("chain create")["topic_created"]
        world.sequence(BATCH_ROWS)
        state = runbook.json("status")
        assert state["head_published"] == state["head_persisted"]


def test_status_shows_by_how_many_rows_and_seconds_published_is_after_persisted(
    call: Call, breakable_world: World, kafka_to_break: KafkaServer, background: Background
) -> None:
    """A broker that is away leaves both to grow; once it is back they are 0 again."""
    world, settings = breakable_world, breakable_world.settings
    published = world.sequence(BATCH_ROWS)

    def status() -> Any:
        return json.loads(call("status", "--chain", 1, "--json", settings=settings).out)

    def unpublished() -> tuple[int, int, float]:
        names = ("unpublished_ids", "unpublished_rows", "unpublished_seconds")
        found = status()
        return tuple(found[name] for name in names)

    assert unpublished() == (0, 0, 0)
    opened = sequencer_of(world)
    sequencer = background.run(opened.__aenter__())
    kafka_to_break.stop()
    keys = map(str, count())
    for batches in (1, 2):
        background.run(sequencer.submit_many([Order(next(keys), b"x") for _ in range(BATCH_ROWS)]))
        assert unpublished()[:2] == (world.head() - published, batches * BATCH_ROWS)
    assert world.head() - published > 2 * BATCH_ROWS, "ids skip numbers at a take-over"
    ((age,),) = world.sql(
        "SELECT extract(epoch FROM clock_timestamp() - min(committed_at))::float8 FROM chain_batch"
        f" WHERE last_id > {published}"
    )
    seconds = unpublished()[2]
    assert age <= seconds < age + 10, "since the first of them was committed"
    (top,) = json.loads(call("top", "--once", "--json", settings=settings).out)["chains"]
    assert top["unpublished_rows"] == 2 * BATCH_ROWS
    kafka_to_break.start()
    background.run(opened.__aexit__(None, None, None))
    assert unpublished() == (0, 0, 0)


async def delete_topics(kafka: str, *topics: str) -> None:
    """Delete topics, and return once the broker has forgotten them."""
    client = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await client.start()
    try:
        async with deadline():
            await client.delete_topics(list(topics))
            while set(topics) & set(await client.list_topics()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        await client.close()


def test_failed_verification(page: Page, world: World) -> None:
    world.create()
    verify = ("verify", "--local", "--chain", 1, "--source", "database", "--since-verified")
    for _ in range(2):
        world.sequence(5 * BATCH_ROWS)
        world.must(*verify)
    first, last = (row[0] for row in world.sql("SELECT until_id FROM chain_verified ORDER BY 1"))
    archive = ("archive", "--chain", 1, "--archive", world.folder / "archive")
    world.must(*archive, "--until", first)
    world.must("receive", "--chain", 1, "--output", "journal.jsonl")
    ends = world.ends()
    world.sql(
        LET_TAMPER,
        f"UPDATE chain_event SET payload = 'x' WHERE id = {ends[2]}",
        f"DELETE FROM chain_page WHERE last_id = {ends[-2]}",
        # Somebody has even rewritten a seal, the head's too; but it was verified before.
        f"UPDATE chain_batch SET seal = sha256(seal) WHERE last_id = {last}",
        f"UPDATE chain_head SET last_seal = (SELECT seal FROM chain_batch WHERE last_id = {last})",
        "SELECT 1",
    )
    with page("failed-verification", {"81234567": last}) as runbook:
        seals = "verify --local --chain 1 --source database --seals"
        assert "A contradicted mark" in runbook.run(seals, code=1).out
        assert "verified mark of chain 1" in runbook.run("doctor", code=1).out
        runbook.run(f"{seals.replace(' --local', '')} --findings", code=1)
        assert (world.folder / "findings.html").stat().st_size > 0
        compared = runbook.run("verify --local --chain 1 --source database --source", code=1)
        assert str(ends[2]) in compared.out
        assert "whole" in runbook.run("archive").out

        # The archive has what was archived; the topic has the rest.
        plan = runbook.json("repair --chain 1 --from archive", dry_run=True, code=1)
        assert (plan["act_id"], plan["left"][0]["until_id"]) == (None, ends[-2])
        runbook.run("repair --chain 1 --from archive", code=1)
        runbook.run("repair --chain 1 --from topic --reason")
        assert runbook.json("repair --chain 1 --from journal")["batches"] == 0
        runbook.run(seals)

        # Rewritten together with its seal, and never verified: an exported seal proves the rows.
        seals_folder = world.folder / "seals"
        head = world.sequence(BATCH_ROWS)
        world.must("seal", "export", "--chain", 1, "--to", seals_folder)
        world.sql(
            f"UPDATE chain_event SET payload = 'x' WHERE id = {head}",
            f"UPDATE chain_batch SET seal = sha256(seal) WHERE last_id = {head}",
            "UPDATE chain_head SET last_seal = "
            f"(SELECT seal FROM chain_batch WHERE last_id = {head})",
            "SELECT 1",
        )
        runbook.run("repair --chain 1 --from topic --reason", code=1)
        runbook.replace({"/mnt/seals": seals_folder})
        runbook.run("repair --chain 1 --from topic --expect-seals")
        runbook.run(seals)

        # A mark is revoked: the next verification begins after the one before.
        listed = "chain verify-mark list"
        assert [mark["holds"] for mark in runbook.json(listed)] == ["yes", "yes"]
        runbook.run("chain verify-mark revoke", dry_run=True)
        assert runbook.json("chain verify-mark revoke")["begins_after"] == first
        assert [mark["until_id"] for mark in runbook.json(listed)] == [first]
        world.must(*verify)
        assert [mark["after_id"] for mark in runbook.json(listed)] == [first, 0]
        acts = [act["act"] for act in runbook.json("acts")]
        assert acts == ["revoke mark", "repair", "repair", "repair"]


def test_forgotten_reader(page: Page, world: World, background: Background) -> None:
    world.create("--partition-ids", 5 * BATCH_ROWS)
    first = world.sequence(BATCH_ROWS)
    background.run(Service(world.settings, world.topic).catch_up())
    head = world.sequence(20 * BATCH_ROWS)
    world.must("verify", "--local", "--chain", 1, "--source", "database", "--since-verified")
    world.must("archive", "--chain", 1, "--archive", world.folder / "archive")
    ends = world.ends()
    samples = {"90000000": ends[-2], "80000000": ends[2]}
    with page("forgotten-reader", samples) as runbook:
        (line,) = runbook.json("lag")
        assert line["head_delivered"] == first
        window = ("--key-window", 0)  # the chain of the test is shorter than the window
        refused = runbook.run("retention", *window, code=2, dry_run=True)
        assert "the checkpoint of receiver 'matching'" in refused.err

        # It comes back at a later place: it is moved, and keeps what it needs.
        runbook.run("receivers move", dry_run=True)
        runbook.run("receivers move")
        (moved,) = runbook.json("receivers list")
        assert (moved["head_delivered"], moved["agrees"]) == (ends[2], "yes")
        runbook.run("retention", *window, code=2, dry_run=True)

        # It never comes back: it is forgotten.
        runbook.run("receivers forget", dry_run=True)
        runbook.run("receivers forget")
        assert runbook.json("receivers list") == []
        assert [act["act"] for act in runbook.json("acts")] == ["forget", "move"]
        plan = runbook.json("retention", *window, dry_run=True)
        assert plan["partitions"]
        assert first < plan["boundary_id"] < head


def test_rejects(page: Page, start: Start, world: World) -> None:
    world.create()
    world.make_orders()
    with page("rejects", {"10m": "500ms"}) as runbook:
        start("sequence", "--chain", 1, "--intake-topic", world.orders, settings=world.settings)
        world.send(b"buy", key="order-1")
        world.send(b"sell", key="order-1")
        world.send(None, key="order-2")

        def rejects_of(status: Any) -> int:
            return sum(intake["rejects"] for intake in status["intakes"])

        runbook.until("status", lambda status: rejects_of(status) == 2)
        found = runbook.json("rejects --chain 1 --since 1h")
        assert {each["key"] for each in found} == {"order-1", "order-2"}
        assert runbook.json("rejects --chain 1 --limit") == found
        world.send(b"sell", key="order-3")
        runbook.until("tail", lambda rows: rows[-1:] and rows[-1]["key"] == "order-3")
        assert runbook.until("rejects --chain 1 --since 10m", lambda rows: not rows) == []


def dump_of(server: PostgresServer, database: str) -> str:
    done = subprocess.run(
        [server.installation.program("pg_dump"), "-d", database],
        env=server.client_environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.fixture
def restored_name(postgres_server: PostgresServer, suffix: str) -> Iterator[str]:
    name = f"test_restored_{suffix}"
    postgres_server.create_database(name)
    yield name
    postgres_server.drop_database(name)


def restore(world: World, server: PostgresServer, dump: str, name: str) -> None:
    """Make the database of a dump, and do what the page on backups leaves to a DBA."""
    server.execute(dump, database=name)
    (shown,) = [
        block.text for block in blocks_of(ROOT / "docs/backup.md") if "REVOKE" in block.text
    ]
    step = shown.strip().replace("orders", name)
    found = world.call("schema", "check", "--json", settings=world.settings)
    assert (found.code, json.loads(found.out)["missing"]) == (1, [f"step {step}"])
    server.execute(step, database=name)
    world.must("schema", "check")


def test_restored_backup(
    page: Page,
    start: Start,
    world: World,
    background: Background,
    postgres_server: PostgresServer,
    kafka_server: KafkaServer,
    database_name: str,
    restored_name: str,
) -> None:
    world.create()
    world.make_orders()
    leader = start(
        *("sequence", "--chain", 1, "--intake-topic", world.orders), settings=world.settings
    )
    follow = ("receive", "--chain", 1, "--output", "journal.jsonl", "--name", "matching")
    with page("restored-backup") as runbook:
        listed = "chain list"

        def holds(rows: int) -> Callable[[Any], bool]:
            return lambda _: world.sql("SELECT sum(row_count) FROM chain_batch")[0][0] == rows

        world.send(*[b"kept"] * 20)
        runbook.until(listed, holds(20))
        background.run(Service(world.settings, world.topic, "other").catch_up())
        world.must(*follow)
        at_backup = world.head()
        dump = dump_of(postgres_server, database_name)
        world.send(*[b"lost"] * 20)
        runbook.until(listed, holds(40))
        world.must(*follow)
        background.run(Service(world.settings, world.topic, "other").catch_up())
        head = world.head()
        (seal,) = world.sql("SELECT last_seal FROM chain_head")[0]
        leader.terminate()
        assert leader.wait() == 143

        # The primary is lost, and the backup is what there is.
        restored = settings_of(postgres_server, restored_name, kafka_server)
        runbook.settings |= restored
        world.settings |= restored
        restore(world, postgres_server, dump, restored_name)
        assert world.call(*follow, settings=restored).code == 3
        assert runbook.json(listed)[0]["head_persisted"] == at_backup
        halted = receiver_of(runbook.json("status"))
        assert halted["halted"].startswith("PrimaryBehind")

        lost = runbook.run("verify --chain 1 --source database --source topic", code=1)
        assert str(head) in lost.out
        plan = runbook.json("repair", dry_run=True)
        assert (plan["head"], plan["head_after"], plan["left"]) == (at_backup, head, [])
        runbook.run("repair")
        exported = runbook.json("seal export")
        assert (exported["id"], exported["seal"]) == (head, seal.hex())
        seals = "verify --local --chain 1 --source database --seals"
        runbook.run(seals)

        # A checkpoint that was restored with the database can be moved to where its service is.
        runbook.replace({"matching": "other", "79999000": head})
        moved = runbook.json("receivers move", dry_run=True)
        assert moved["now"] == f"checkpoint {head}; 20 rows never processed"
        runbook.replace({"matching": "matching"})
        runbook.run("unhalt")
        world.must(*follow)

        # The intake reads the lost part once more, and adds nothing twice.
        world.send(b"new")
        leader = start(
            *("sequence", "--chain", 1, "--intake-topic", world.orders), settings=world.settings
        )
        runbook.until(listed, holds(41))
        world.must(*follow)
        background.run(Service(world.settings, world.topic, "other").catch_up())
        journal = (world.folder / "journal.jsonl").read_text().splitlines()
        assert [json.loads(line)["payload"] for line in journal].count("bG9zdA==") == 20
        runbook.run(seals)
        runbook.run("lag")
        leader.terminate()
        assert leader.wait() == 143
