"""Five states, seen on the command line and in the console alike, and left by commands alone.

The pages of the runbooks are walked in `test_states.py` and `test_states_outbox.py`, each over a
world of its own. Here one installation gets all of it, one fault after the other, and is sound at
the end for `doctor` and for the console.
"""

# ruff: noqa: S608 - every value in a statement is a number

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from chain_kernel.errors import BatchDamaged, RowsMissing
from outbox import Message, draw_message_ids
from tests.integration.chainctl.console.conftest import RunningConsole, until
from tests.integration.chainctl.runbooks import BATCH_ROWS, Background, World
from tests.integration.chainctl.test_states import Service, receiver_of
from tests.integration.chainctl.test_states_outbox import Clearing, add
from tests.stored_pages import LET_TAMPER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.chainctl.conftest import Start

WHY = ("--reason", "the walk through five states")


@pytest.fixture
def database_name(database_with: Callable[..., str]) -> str:
    return database_with("chain", "outbox", "inbox")


class Walk:
    """An operator at a terminal, and another one before the console."""

    def __init__(self, world: World, console: RunningConsole) -> None:
        self.world = world
        self._console = console

    def json(self, *arguments: object, code: int = 0) -> Any:
        done = self.world.call(*arguments, "--json", settings=self.world.settings)
        assert done.code == code, (arguments, done)
        return json.loads(done.out)

    def doctor(self) -> dict[str, str]:
        """What `doctor` says is wrong; its exit code agrees."""
        done = self.world.call("doctor", "--json", settings=self.world.settings)
        failed = {each["what"]: each["found"] for each in json.loads(done.out)
                  if each["state"] == "failed"}  # fmt: skip
        assert done.code == bool(failed), done
        return failed

    def shown(self, is_so: Callable[[Any], object]) -> Any:
        """Return what is true of the console's state once it is."""
        return until(lambda: is_so(self._console.state()))

    def noticed(self, section: str) -> bool:
        """Return whether the box on top of the page leads there."""
        notices = self._console.state()["notices"].values()
        return section in {notice["section"] for notice in notices}


@pytest.mark.timeout(400)
def test_five_states_are_seen_in_both_and_left_without_sql(
    world: World, start: Start, background: Background, tmp_path: Path, suffix: str
) -> None:
    world.create()
    world.make_orders()
    console = RunningConsole(
        start("console", "--port", 0, "--refresh", "200ms", settings=world.settings), None
    )
    walk = Walk(world, console)
    service = Service(world.settings, world.topic)
    head = world.sequence(5 * BATCH_ROWS)
    background.run(service.catch_up())

    planted_gap(walk, service, background)
    halted_receiver(walk, service, background)
    rewritten_history(walk, tmp_path / "vault")
    relay = stuck_message(walk, start, background, f"clearing-{suffix}")
    leader = dead_leader(walk, start)

    # All is well: for both, and for the verification, which looks at everything once more.
    assert world.head() > head
    background.run(service.catch_up())
    every = [row_id for (row_id,) in world.sql("SELECT id FROM chain_event ORDER BY id")]
    assert service.ids == every, "each order once, in order"
    assert walk.doctor() == {}
    walk.shown(lambda state: not state["notices"])
    world.must("verify", "--local", "--chain", 1, "--source", "database", "--source", "topic")
    assert {act["act"] for act in walk.json("acts", "--chain", 1)} == {
        "repair", "unhalt", "takeover",
    }  # fmt: skip
    for process in (leader, relay, console.process):
        process.terminate()
        assert process.wait(60) == 143


def planted_gap(walk: Walk, service: Service, background: Background) -> None:
    world = walk.world
    world.sequence(3 * BATCH_ROWS)
    world.sql(f"DELETE FROM chain_page WHERE last_id = {world.ends()[-2]}", "SELECT 1")
    with pytest.raises(RowsMissing):
        background.run(service.catch_up())
    (gap,) = walk.json("gaps", "--chain", 1, "--open")
    assert gap["outcome"] == "missing"
    assert "were missing" in walk.doctor()["receiver matching of chain 1"]
    walk.shown(lambda state: [each["blocks"] for each in state["gaps"].values()] == [True])
    assert walk.noticed("gaps")

    world.must("repair", "--chain", 1, "--from", "topic", *WHY)
    background.run(service.catch_up())
    assert walk.json("gaps", "--chain", 1, "--open") == []
    assert walk.doctor() == {}
    walk.shown(lambda state: not any(each["blocks"] for each in state["gaps"].values()))
    assert not walk.noticed("gaps")


def halted_receiver(walk: Walk, service: Service, background: Background) -> None:
    world = walk.world
    head = world.sequence(3 * BATCH_ROWS)
    world.sql(LET_TAMPER, f"UPDATE chain_event SET payload = 'x' WHERE id = {head}")
    with pytest.raises(BatchDamaged):
        background.run(service.catch_up())
    halted = receiver_of(walk.json("status", "--chain", 1))["halted"]
    assert halted.startswith("BatchDamaged at ")
    assert "BatchDamaged" in walk.doctor()["receiver matching of chain 1"]
    assert walk.shown(lambda state: state["receivers"]["1/matching"]["halted"]) == halted
    assert walk.noticed("receivers")

    world.must("repair", "--chain", 1, "--from", "topic", *WHY)
    world.must("unhalt", "--chain", 1, "--name", "matching", *WHY)
    background.run(service.catch_up())
    assert receiver_of(walk.json("status", "--chain", 1))["halted"] == ""
    assert walk.doctor() == {}
    walk.shown(lambda state: not state["receivers"]["1/matching"]["halted"])
    assert not walk.noticed("receivers")


def rewritten_history(walk: Walk, vault: Path) -> None:
    """Somebody changes the last order, and overwrites its batch's seal and the head's.

    Who computes every later seal anew leaves nothing that a repair may take as proven: then it
    takes a backup (`docs/decisions/0040-what-a-repair-writes-back.md`).
    """
    world = walk.world
    verify = ("verify", "--local", "--chain", 1, "--source", "database")
    world.must("seal", "export", "--chain", 1, "--to", vault)
    before, head = world.head(), world.sequence(BATCH_ROWS)
    world.must("seal", "export", "--chain", 1, "--to", vault)
    world.must(*verify, "--since-verified")
    world.sql(
        LET_TAMPER,
        f"UPDATE chain_event SET payload = 'x' WHERE id = {head}",
        f"UPDATE chain_batch SET seal = sha256(seal) WHERE last_id = {head}",
        f"UPDATE chain_head SET last_seal = (SELECT seal FROM chain_batch WHERE last_id = {head})",
        "SELECT 1",
    )
    report = walk.json(*verify, "--expect-seals", vault, code=1)
    assert {"kept_seal", "contradicted_mark"} < set(report["counts"])
    found = report["exported_seals"]
    assert (found["last_fitting"]["id"], found["first_misfit"]["id"]) == (before, head)
    assert f"rows up to {head} are not" in walk.doctor()["verified mark of chain 1"]
    walk.shown(lambda state: state["verified"]["1"]["contradicted_id"] == head)
    assert walk.noticed("verified")

    world.must("repair", "--chain", 1, "--from", "topic", "--expect-seals", vault, *WHY)
    assert walk.json(*verify, "--expect-seals", vault)["exported_seals"]["first_misfit"] is None
    assert walk.doctor() == {}
    walk.shown(lambda state: state["verified"]["1"]["contradicted_id"] is None)
    assert not walk.noticed("verified")


def stuck_message(walk: Walk, start: Start, background: Background, topic: str) -> Any:
    """Nobody confirms it, as its consumer is away. Returns the relay, which runs on."""
    world = walk.world
    world.must(
        *("outbox", "destination", "set", "clearing", "--topic", topic, "--create-topics"),
        *("--consumer", "clearing-service", "--tries-max", 1, "--resend-seconds", 1),
        *("--no-resend-filter",),
    )
    relay = start("outbox", "relay", "--sweep-seconds", 0.2, settings=world.settings)
    message = Message(draw_message_ids(1)[0], "clearing", b"trade", "T-1042")
    background.run(add(world.settings["CHAINCTL_DATABASE"], message))
    (stuck,) = walk.shown(lambda state: list(state["stuck"].values()))
    assert stuck["message_id"] == str(message.message_id)
    assert walk.noticed("outbox")
    (listed,) = walk.json("outbox", "list", "--status", "abnormal")
    assert listed["message_id"] == str(message.message_id)
    walk.json("outbox", "status", code=1)

    clearing = Clearing(world, topic)
    running = background.begin(clearing.run())
    world.must("outbox", "retry", "--destination", "clearing", *WHY)
    until(lambda: clearing.applied)
    walk.shown(lambda state: not state["stuck"])
    until(lambda: not walk.noticed("outbox"))
    assert {row["status"] for row in walk.json("outbox", "status")} == {"consumed"}
    assert walk.json("outbox", "list", "--status", "abnormal") == []
    background.run(clearing.stop())
    running.result(60)
    return relay


def dead_leader(walk: Walk, start: Start) -> Any:
    """Returns the leader that follows, which leads on."""
    world = walk.world
    sequence = ("sequence", "--chain", 1, "--intake-topic", world.orders)

    def state() -> Any:
        return walk.json("status", "--chain", 1)

    dead = start(*sequence, settings=world.settings)
    world.send(b"first")
    before = world.head()
    until(lambda: state()["head_persisted"] > before)
    head = state()["head_persisted"]
    dead.kill()
    dead.wait()
    world.send(b"second")
    until(lambda: state()["leader_state"] == "silent")
    assert state()["head_persisted"] == head, "orders wait"
    walk.shown(lambda shown: shown["chains"]["1"]["leader_state"] == "silent")
    assert walk.noticed("chains")

    world.must("takeover", "--chain", 1, *WHY)
    leader = start(*sequence, settings=world.settings)
    until(lambda: state()["head_persisted"] > head)
    assert state()["leader_state"] == "leads"
    walk.shown(lambda shown: shown["chains"]["1"]["leader_state"] == "leads")
    until(lambda: not walk.noticed("chains"))
    return leader
