"""The states of the runbooks are seen and left by `chainctl` alone, as their pages say.

The state is made on real servers, by signals, by faults or by SQL. Then the commands of the page
are run, read from the page itself: one that fails, or that the test has not run, fails the test.
"""

# ruff: noqa: S608 - every value in a statement is a number or a name of this file

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chain_kernel.errors import BatchDamaged, RowsMissing, TopicError
from gapfill import GapReader, GapReaderConfig
from local_stack import KafkaServer, PostgresServer
from matcher_receiver import (
    CheckpointConfig,
    KafkaFrameSource,
    KafkaSourceConfig,
    PostgresCheckpointStore,
    Receiver,
)
from orderchain import ReceiverConfig, open_receiver
from outbox import Consumer, ConsumerConfig, StartAt
from tests.builders.topics import damage_batch
from tests.deadlines import deadline
from tests.integration.chainctl.conftest import Call, Start
from tests.integration.chainctl.runbooks import BATCH_ROWS, Runbook, World, settings_of
from tests.opened import administering
from tests.pages import ROOT, blocks_of
from tests.programs import output_of
from tests.stored_pages import LET_TAMPER
from tests.tuned import tuned

Settings = dict[str, str]
Page = Callable[..., Runbook]

# Some pages run Spark in this process: it leaves the socket of every `collect` to the collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


STORM_ROWS = 30 * BATCH_ROWS


def catch_up(settings: Settings, name: str = "matching") -> list[int]:
    """Process everything up to the head, as a matching service does; return the ids."""
    config = ReceiverConfig(
        chain_id=1, name=name, database=settings["CHAINCTL_DATABASE"],
        gap_databases=(settings["CHAINCTL_GAP_DATABASE"],), kafka=settings["CHAINCTL_KAFKA"],
        until="head",
    )  # fmt: skip

    async def run() -> list[int]:
        ids = []
        async with open_receiver(config) as receiver:
            async for each in receiver:
                ids += [event.id for event in each.events]
                await receiver.checkpoint(each)
        return ids

    return asyncio.run(run())


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
        assert (
            "chain 1 has no leader: silent" in runbook.run("leader --chain 1 --check", code=1).err
        )

        assert "is free" in runbook.run("takeover").err
        follower = start(*runbook.words("sequence"), settings=world.settings)
        state = runbook.until("status", lambda chain: chain["head_persisted"] > head)
        assert (state["leader_state"], state["epoch"]) == ("leads", 2)
        runbook.run("lag")
        follower.terminate()
        assert follower.wait() == 143


class Lossy(KafkaFrameSource):
    """A topic between which and the receiver every second frame gets lost, once it is bad."""

    is_bad = False

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        found = await super().records(timeout_seconds)
        return found[::2] if self.is_bad else found


async def live_through_a_storm(world: World) -> tuple[int, int]:
    """Have the receiver `matching` follow while frames get lost; return what it began after, and
    the head, up to which nothing is missing for it.
    """
    settings = world.settings
    frames = Lossy(KafkaSourceConfig(kafka=settings["CHAINCTL_KAFKA"], topic=world.topic))
    config = ReceiverConfig(chain_id=1, name="matching", database=settings["CHAINCTL_DATABASE"])
    reader = GapReaderConfig(database=settings["CHAINCTL_GAP_DATABASE"], chain_id=1)
    store = CheckpointConfig(database=settings["CHAINCTL_DATABASE"], chain_id=1, name="matching")
    ids: list[int] = []
    async with Receiver(
        tuned(config, poll_after_seconds=0.2), frames, GapReader(reader),
        PostgresCheckpointStore(store),
    ) as receiver:  # fmt: skip
        first, frames.is_bad = receiver.head_at_start, True
        sequencing = asyncio.create_task(asyncio.to_thread(world.sequence, STORM_ROWS))
        while not sequencing.done() or ids[-1:] != [sequencing.result()]:
            try:
                async with asyncio.timeout(0.2):
                    run = await anext(receiver)
            except TimeoutError:
                continue
            ids += [event.id for event in run.events]
            await receiver.checkpoint(run)
    assert len(ids) == BATCH_ROWS + STORM_ROWS, "nothing is missing for it"
    return first, sequencing.result()


def test_gap_storm(page: Page, world: World) -> None:
    world.create()
    world.sequence(BATCH_ROWS)
    first, head = asyncio.run(live_through_a_storm(world))
    with page("gap-storm", {"5000": first, "6000": head}) as runbook:
        stormy = runbook.until("gaps --chain 1 --since 1h", lambda gaps: len(gaps) > 1)
        assert {each["outcome"] for each in stormy} == {"filled"}
        assert runbook.json("gaps --chain 1 --open") == []
        assert runbook.json("gaps --chain 1 --name matching")
        assert runbook.json("status")["head_published"] == head

        # Rows that the database lacks, too, are a gap that stays open.
        more = world.sequence(3 * BATCH_ROWS)
        world.sql(f"DELETE FROM chain_page WHERE last_id = {world.ends()[-2]}", "SELECT 1")
        with pytest.raises(RowsMissing):
            catch_up(world.settings)
        missing = runbook.until("gaps --chain 1 --open", lambda gaps: gaps)
        assert [each["outcome"] for each in missing] == ["missing"]
        runbook.run("repair", dry_run=True)
        runbook.run("repair")
        assert catch_up(world.settings)[-1] == more

        last = json.loads(runbook.run("fill").out.splitlines()[-1])
        assert last["id"] == head
        assert runbook.until("gaps --chain 1 --open", lambda gaps: not gaps) == []
        runbook.run("lag")


def test_slow_receiver(page: Page, world: World) -> None:
    world.create()
    first = world.sequence(BATCH_ROWS)
    catch_up(world.settings)
    world.sequence(3 * BATCH_ROWS)
    with page("slow-receiver", {"100000": 2 * BATCH_ROWS, "5": "60s"}) as runbook:
        slow = "lag --chain 1 --max-seconds 5 --max-rows 100000"
        (line,) = runbook.json(slow, code=1)
        assert (line["receiver"], line["behind_rows"]) == ("matching", 3 * BATCH_ROWS)
        assert receiver_of(runbook.json("status"))["head_delivered"] == first
        assert runbook.json("gaps") == []
        catch_up(world.settings)
        runbook.run(slow)
        runbook.run("lag --chain 1 --max-seconds 5")


def test_lagging_kafka(
    call: Call, postgres_server: PostgresServer, database_name: str, kafka_to_break: KafkaServer,
    suffix: str, tmp_path: Path,
) -> None:  # fmt: skip
    settings = settings_of(postgres_server, database_name, kafka_to_break)
    world = World(call, {**settings, "CHAINCTL_STOP_SECONDS": "3"}, suffix, tmp_path)
    world.create()
    published = world.sequence(BATCH_ROWS)
    with Runbook("lagging-kafka", call, world.settings, {}) as runbook:
        assert runbook.json("status")["published"] == "everything"
        kafka_to_break.stop()
        done = call(*world.sequence_of(2 * BATCH_ROWS), settings=world.settings)
        assert done.code in (0, 3), done
        state = runbook.json("status")
        assert state["head_published"] == published < state["head_persisted"]
        assert state["unpublished_rows"] == 2 * BATCH_ROWS, "orders are taken all the same"
        assert f"s late: {2 * BATCH_ROWS} rows wait for" in state["published"]
        runbook.run("lag")
        kafka_to_break.start()
        world.sequence(BATCH_ROWS)
        state = runbook.json("status")
        assert state["head_published"] == state["head_persisted"]
        runbook.run("doctor")
        runbook.run("verify")

        # And where the topic is gone with its broker, the page's line makes it.
        asyncio.run(delete_topic(settings["CHAINCTL_KAFKA"], world.topic))
        assert runbook.json("chain create")["topic_created"]
        world.sequence(BATCH_ROWS)
        state = runbook.json("status")
        assert state["head_published"] == state["head_persisted"]


async def delete_topic(kafka: str, topic: str) -> None:
    """Delete a topic, and return once the broker has forgotten it."""
    async with administering(kafka) as client, deadline():
        await client.delete_topics([topic])
        while topic in await client.list_topics():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def test_forgotten_reader(page: Page, world: World) -> None:
    world.create("--partition-ids", 5 * BATCH_ROWS)
    first = world.sequence(BATCH_ROWS)
    catch_up(world.settings)
    head = world.sequence(20 * BATCH_ROWS)
    world.must("verify", "--local", "--chain", 1, "--source", "database", "--since-verified")
    world.must("archive", "--chain", 1, "--archive", world.folder / "archive")
    ends = world.ends()
    with page("forgotten-reader", {"90000000": ends[-2], "80000000": ends[2]}) as runbook:
        (line,) = runbook.json("lag")
        assert line["head_delivered"] == first
        window = ("--key-window-rows", 0)  # the chain of the test is shorter than the window
        refused = runbook.run("retention", *window, code=2, dry_run=True)
        assert "the checkpoint of receiver 'matching'" in refused.err

        # It comes back at a later place: it is moved, and keeps what it needs.
        runbook.run("receivers move", dry_run=True)
        runbook.run("receivers move")
        (moved,) = runbook.json("lag")
        assert (moved["head_delivered"], moved["agrees"]) == (ends[2], "yes")
        runbook.run("retention", *window, code=2, dry_run=True)

        # It never comes back: it is forgotten.
        runbook.run("receivers forget", dry_run=True)
        runbook.run("receivers forget")
        assert runbook.json("lag") == []
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


def test_unreadable_record(
    page: Page, call: Call, start: Start, world: World, kafka_server: KafkaServer
) -> None:
    world.create()
    world.make_orders()
    for number in range(5):
        world.send(b"order", key=f"order-{number}")
    damage_batch(kafka_server, world.orders, 2)
    source = f"topic:{world.orders}:0"
    samples = {
            "topic:orders:0": source, "topic:trades:0": source, "17": 2, "orders": world.orders,
        }  # fmt: skip
    with page("unreadable-record", samples) as runbook:
        words = runbook.words("sequence --chain 1 --intake-topic")
        done = call(*words, settings=world.settings)
        where = f"record of topic {world.orders}, partition 0, offset 2 was 'damaged since it was s"
        assert (done.code, where in done.err, world.head()) == (2, True, 2), done
        assert world.sql("SELECT position FROM chain_intake") == [(2,)], "all before it is taken"

        refused = call(*runbook.words("pass-over", dry_run=True)[:2], 1, "--chain", 1, "--reason",
                       "x", settings=world.settings)  # fmt: skip
        assert (refused.code, "position was 1, expected" in refused.err) == (2, True), refused
        assert f"{source} would go on at 3" in runbook.run("pass-over", dry_run=True).err
        assert runbook.json("pass-over")["next_position"] == 3
        runbook.run("pass-over", code=2)  # the next one can be read
        start(*words, settings=world.settings)
        runbook.until("status", lambda chain: chain["intakes"][0]["position"] == 5)
        keys = [key for (key,) in world.sql("SELECT key FROM chain_event ORDER BY id")]
        assert keys == ["order-0", "order-1", "order-3", "order-4"]
        (reject,) = runbook.json("rejects")
        assert (reject["position"], "its checksum is wrong" in reject["reason"]) == (2, True)
        (act,) = runbook.json("acts")
        assert (act["act"], act["detail"]) == ("pass-over", f"{source} from 2 to 3")

        # A consumer, whose messages are in the same topic here, and are none that it knows.
        world.must("schema", "apply", "--part", "inbox")
        config = ConsumerConfig(
            name="clearing", topics=(world.orders,), kafka=world.settings["CHAINCTL_KAFKA"],
            database=world.settings["CHAINCTL_DATABASE"],
            start_at=StartAt("beginning"),
        )  # fmt: skip
        with pytest.raises(TopicError, match="offset 2 was 'damaged since it was sent"):
            asyncio.run(consume(config, 5))
        past = runbook.run_once("no process is running", "outbox dead pass-over")
        assert f"clearing goes on at 3 of {source}" in past.err
        runbook.run("outbox dead pass-over", code=2)  # it is elsewhere by now
        asyncio.run(consume(config, 2))
        (act,) = json.loads(call("outbox", "dead", "acts", "--json", settings=world.settings).out)
        assert act["act"] == "pass-over"
        assert act["detail"] == f"{source} from 2 to 3: its checksum is wrong"


async def consume(config: ConsumerConfig, records: int) -> None:
    """Run a consumer until it has had so many records that are no messages."""

    async def refuse(*_: object) -> None:
        raise AssertionError("no message was sent")

    async with deadline(), Consumer(config) as consumer:
        running = asyncio.create_task(consumer.run(refuse))
        while consumer.stats().bad_records < records and not running.done():
            await asyncio.wait([running], timeout=0.05)
        consumer.stop()
        await running


def test_halted_receiver(page: Page, world: World) -> None:
    world.create()
    world.sequence(5 * BATCH_ROWS)
    catch_up(world.settings)
    head = world.sequence(3 * BATCH_ROWS)
    world.must("receive", "--chain", 1, "--output", "journal.jsonl")
    kept = world.folder / "kept-seals"
    world.must("seal", "export", "--chain", 1, "--store", kept)
    world.sql(LET_TAMPER, f"UPDATE chain_event SET payload = 'x' WHERE id = {head}")
    with pytest.raises(BatchDamaged):
        catch_up(world.settings)

    with page("halted-receiver", {"/mnt/seals": kept}) as runbook:
        halted = receiver_of(runbook.json("status"))
        assert halted["halted"].startswith("BatchDamaged at ")
        runbook.run("config show")
        runbook.run("verify --local --chain 1 --source database --seals", code=1)
        runbook.run("verify --local --chain 1 --source database --expect-seals", code=1)
        compared = runbook.run("verify --local --chain 1 --source database --source", code=1)
        assert str(head) in compared.out
        assert "1 batch, 10 rows" in runbook.run("repair", dry_run=True).err
        runbook.run("repair")
        runbook.run("verify --local --chain 1 --source database --seals")
        runbook.run("unhalt")
        assert catch_up(world.settings)[-1] == head

        # And where the service's own state is what was wrong:
        runbook.run("receivers reset", dry_run=True)
        runbook.run("receivers reset")
        again = catch_up(world.settings)
        every = [row_id for (row_id,) in world.sql("SELECT id FROM chain_event ORDER BY id")]
        assert again == every, "it has processed every order once more"
        assert receiver_of(runbook.json("status"))["halted"] == ""
        assert [act["act"] for act in runbook.json("acts")] == ["reset", "unhalt", "repair"]


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
    found = world.folder / "findings"  # of Spark, whose JVM has a working directory of its own
    with page("failed-verification", {"81234567": last, "findings": found}) as runbook:
        seals = "verify --local --chain 1 --source database --seals"
        assert "A contradicted mark" in runbook.run(seals, code=1).out
        assert "verified mark of chain 1" in runbook.run("doctor", code=1).out
        runbook.run(f"{seals.replace(' --local', '')} --findings", code=1)
        assert (world.folder / "findings.html").stat().st_size > 0
        assert (found / "findings.json").is_dir()
        compared = runbook.run("verify --local --chain 1 --source database --source", code=1)
        assert str(ends[2]) in compared.out
        assert "whole" in runbook.run("archive").out

        # The archive has what was archived; the topic has the rest.
        plan = runbook.json("repair --chain 1 --source archive", dry_run=True, code=1)
        assert (plan["act_id"], plan["left"][0]["after_id"]) == (None, ends[-3])
        runbook.run("repair --chain 1 --source archive", code=1)
        runbook.run("repair --chain 1 --source topic --reason")
        assert runbook.json("repair --chain 1 --source journal")["batches"] == 0
        runbook.run(seals)

        # Rewritten together with its seal, and never verified: an exported seal proves the rows.
        seals_folder = world.folder / "seals"
        head = world.sequence(BATCH_ROWS)
        world.must("seal", "export", "--chain", 1, "--store", seals_folder)
        world.sql(
            f"UPDATE chain_event SET payload = 'x' WHERE id = {head}",
            f"UPDATE chain_batch SET seal = sha256(seal) WHERE last_id = {head}",
            "UPDATE chain_head SET last_seal = "
            f"(SELECT seal FROM chain_batch WHERE last_id = {head})",
            "SELECT 1",
        )
        runbook.run("repair --chain 1 --source topic --reason", code=1)
        runbook.replace({"/mnt/seals": seals_folder})
        runbook.run("repair --chain 1 --source topic --expect-seals")
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


def dump_of(server: PostgresServer, database: str) -> str:
    program = server.installation.program("pg_dump")
    return output_of(program, "-d", database, env=server.client_environment())


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
    assert (found.code, json.loads(found.out)["differences"]) == (1, [f"step {step}: missing"])
    server.execute(step, database=name)
    world.must("schema", "check")


def test_restored_backup(
    page: Page, start: Start, world: World,
    postgres_server: PostgresServer, kafka_server: KafkaServer, database_name: str,
    restored_name: str,
) -> None:  # fmt: skip
    world.create()
    world.make_orders()
    leader = start(
        *("sequence", "--chain", 1, "--intake-topic", world.orders), settings=world.settings
    )
    follow = ("receive", "--chain", 1, "--output", "journal.jsonl", "--name", "matching")
    kept = world.folder / "kept-seals"
    with page("restored-backup", {"/mnt/seals": kept, "lost": world.folder / "lost"}) as runbook:
        listed = "chain list"

        def holds(rows: int) -> Callable[[Any], bool]:
            return lambda _: world.sql("SELECT sum(row_count) FROM chain_batch")[0][0] == rows

        world.send(*[b"kept"] * 20)
        runbook.until(listed, holds(20))
        catch_up(world.settings, "other")
        world.must(*follow)
        at_backup = world.head()
        dump = dump_of(postgres_server, database_name)
        world.send(*[b"lost"] * 20)
        runbook.until(listed, holds(40))
        world.must(*follow)
        catch_up(world.settings, "other")
        head = world.head()
        world.must("seal", "export", "--chain", 1, "--store", kept)
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
        runbook.run("verify --local --chain 1 --source database --expect-seals")

        # A checkpoint that was restored with the database can be moved to where its service is.
        runbook.replace({"matching": "other", "79999000": head})
        moved = runbook.json("receivers move", dry_run=True)
        assert moved["now"] == f"checkpoint {head}; 20 rows never processed"
        runbook.run("receivers move")
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
        catch_up(world.settings, "other")
        journal = (world.folder / "journal.jsonl").read_text().splitlines()
        assert [json.loads(line)["payload"] for line in journal].count("bG9zdA==") == 20
        runbook.run("verify --local --chain 1 --source database --seals")
        runbook.run("lag")
        leader.terminate()
        assert leader.wait() == 143
