"""The worst states of the runbooks are seen and left by `chainctl` alone, as their pages say.

The state is made on real servers, by signals, by faults or by SQL. Then the commands of the page
are run, read from the page itself: one that fails, or that the test has not run, fails the test.
"""

# ruff: noqa: S608 - every value in a statement is a number or a name of this file

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from chain_kernel.errors import BatchDamaged
from orderchain import ReceiverConfig, open_receiver
from tests.integration.chainctl.runbooks import BATCH_ROWS, Runbook, World, settings_of
from tests.pages import ROOT, blocks_of
from tests.stored_pages import LET_TAMPER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from local_stack import KafkaServer, PostgresServer
    from tests.integration.chainctl.conftest import Start

    Settings = dict[str, str]
    Page = Callable[..., Runbook]

# Some pages run Spark in this process: it leaves the socket of every `collect` to the collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


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


def test_halted_receiver(page: Page, world: World) -> None:
    world.create()
    world.sequence(5 * BATCH_ROWS)
    catch_up(world.settings)
    head = world.sequence(3 * BATCH_ROWS)
    world.must("receive", "--chain", 1, "--output", "journal.jsonl")
    world.sql(LET_TAMPER, f"UPDATE chain_event SET payload = 'x' WHERE id = {head}")
    with pytest.raises(BatchDamaged):
        catch_up(world.settings)

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
        assert (plan["act_id"], plan["left"][0]["after_id"]) == (None, ends[-3])
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
    with page("restored-backup") as runbook:
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
        catch_up(world.settings, "other")
        journal = (world.folder / "journal.jsonl").read_text().splitlines()
        assert [json.loads(line)["payload"] for line in journal].count("bG9zdA==") == 20
        runbook.run(seals)
        runbook.run("lag")
        leader.terminate()
        assert leader.wait() == 143
