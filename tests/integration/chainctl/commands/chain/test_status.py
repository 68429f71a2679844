"""`chainctl status`, `leader` and `lag` on chains in states that need words."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from chain_kernel.errors import ConnectError, RetryError
from chain_kernel.sql import AUDITOR
from chainctl.database import looking
from tests.integration.chainctl.conftest import Ctl, Refused
from tests.integration.chainctl.runbooks import World, sql
from tests.integration.chainctl.sizes import FILLED_ROWS

Settings = dict[str, str]


@pytest.fixture
def change(module_settings: Settings, filled: int) -> Callable[[str], None]:
    """Changes rows of the chain as its owner."""

    def run(statement: str) -> None:
        dsn = module_settings["CHAINCTL_DATABASE"]
        sql(dsn, f"{statement} WHERE chain_id = {filled}", "SELECT 1")

    return run


def test_clock_that_has_gone_back_makes_no_negative_age(
    ctl: Ctl, filled: int, change: Callable[[str], None]
) -> None:
    """All that is stored is of tomorrow."""
    chain = ("--chain", filled)
    journal = ("--output", "j.jsonl", "--name", "matching", "--until", 1)
    ctl.done("receive", *chain, *journal)
    change("UPDATE chain_batch SET committed_at = now() + interval '1 day'")
    change("UPDATE chain_lease SET beat_at = now() + interval '1 day', released = false")
    change("UPDATE chain_head SET published_id = 0")

    def shown(*command: object) -> Any:
        return ctl.json(*command)

    status, (lag,) = shown("status", *chain), shown("lag", *chain)
    every = next(each for each in shown("status")["chains"] if each["chain"] == filled)
    ages = {
        "unpublished": status["unpublished_seconds"], "beat": status["last_beat_seconds"],
        "behind": status["receivers"][0]["behind_seconds"], "lag": lag["behind_seconds"],
        "every": every["unpublished_seconds"],
        "leader": shown("leader", *chain)["last_beat_seconds"],
    }  # fmt: skip
    assert set(ages.values()) == {0}, ages


def test_states_of_a_leader_and_what_is_published_late(
    ctl: Ctl, filled: int, change: Callable[[str], None]
) -> None:
    def check(*options: str) -> int:
        done = ctl("leader", "--chain", filled, *options)
        assert (done.code == 1) == (f"chain {filled} has no leader" in done.err), done
        return done.code

    def shown() -> tuple[str, int, str]:
        """The state, the exit code of the check, and what is published, in words."""
        found = ctl.json("status", "--chain", filled)
        return found["leader_state"], check("--check"), found["published"].partition(".")[0]

    assert shown() == ("handed over", 1, "everything")
    assert (check("--max-beat", "1h"), check()) == (1, 0)
    change("UPDATE chain_batch SET committed_at = now() - interval '70 seconds'")
    change("UPDATE chain_head SET published_id = 0")
    line = ctl("status", "--chain", filled).out
    assert f" s late: {FILLED_ROWS:,} rows wait for a leader" in line
    change("UPDATE chain_lease SET released = false, beat_at = now(), lease_seconds = 3600")
    assert shown() == ("leads", 0, "70")
    done = ctl("status")
    assert f" s late: {FILLED_ROWS:,} rows wait for the broker" in done.out, done
    doctor = ctl.json("doctor", "--chain", filled)
    (late,) = [each for each in doctor if each["what"] == f"orders of chain {filled}"]
    assert (late["state"], "rows wait to be published, for 7" in late["found"]) == ("warning", True)
    change("UPDATE chain_lease SET step_down = true")
    assert shown()[:2] == ("steps down", 0)
    change("UPDATE chain_lease SET step_down = false, beat_at = now() - interval '60 seconds'")
    assert (check("--check"), check("--max-beat", "10s")) == (0, 1)
    change("UPDATE chain_lease SET lease_seconds = 5")
    assert (shown()[:2], check("--max-beat", "10m")) == (("silent", 1), 0)
    change("UPDATE chain_lease SET beat_at = NULL")
    assert shown()[:2] == ("silent", 1)


@pytest.mark.parametrize(
    ("table", "hide"),
    [
        ("chain_head", "DROP POLICY read_all ON chain_head"),
        ("chain_batch", "CREATE POLICY few ON chain_batch AS RESTRICTIVE USING (last_id < 9)"),
        ("receiver_checkpoint", "DROP POLICY read_all ON receiver_checkpoint"),
    ],
)
def test_rows_that_row_security_hides_from_the_login_are_not_shown_as_none(
    world: World, role_dsn: Callable[[str], str], refused: Refused, table: str, hide: str
) -> None:
    world.create()
    world.sequence(20)
    journal = world.folder / "j.jsonl"
    world.must("receive", "--chain", 1, "--output", journal, "--name", "matching", "--until", 9)
    commands = (
        ("status",),
        ("status", "--json"),
        ("status", "--chain", 1),
        ("lag", "--chain", 1),
        ("lag", "--chain", 1, "--json"),
        ("lag", "--chain", 1, "--name", "matching", "--max-rows", 1_000),
    )
    auditor = {**world.settings, "CHAINCTL_DATABASE": role_dsn(AUDITOR)}
    for command in commands:
        done = world.call(*command, settings=auditor)
        assert (done.code, "matching" in done.out) == (0, True), done
    world.sql(hide)
    for command in commands:
        line = refused(*command, settings=auditor)
        assert f"row security was 'hiding rows of {table}', expected all of them visible" in line
        assert "docs/permissions.md#row-security" in line
        # Its owner sees all of it.
        assert "matching" in world.call(*command, settings=world.settings).out


@pytest.mark.parametrize(
    "error", [ConnectError("database", "h:1", "a server there"), RetryError("it broke")]
)
@pytest.mark.parametrize(("tries", "code"), [(1, 0), (1_000, 1)])
def test_act_that_is_done_is_reported_though_the_database_is_away_while_its_effect_is_awaited(
    ctl: Ctl, filled: int, change: Callable[[str], None], monkeypatch: pytest.MonkeyPatch,
    error: Exception, tries: int, code: int,
) -> None:  # fmt: skip
    change("UPDATE chain_lease SET released = false, beat_at = now()")
    left = [error] * tries

    def look(*given: Any) -> Any:
        if left:
            raise left.pop()
        with ThreadPoolExecutor() as pool:  # a loop runs in this thread
            pool.submit(change, "UPDATE chain_lease SET released = true").result()
        return looking(*given)

    monkeypatch.setattr("chainctl.commands.leader.looking", look)
    done = ctl(
        "step-down", "--chain", filled, "--reason", "a drill", "--json", "--wait",
        "1s" if code else "600s",
    )  # fmt: skip
    assert done.code == code, done
    assert "is asked to step down" in done.err
    act = json.loads(done.out)
    assert act["is_over"] is (code == 0)
    (row,) = ctl.json("acts", "--chain", filled)
    assert act["act_id"] == row["act_id"]
