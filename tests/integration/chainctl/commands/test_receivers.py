"""What receivers have left in the database, as `chainctl` shows and changes it."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from chain_kernel.errors import PrimaryBehind, StillHalted
from chain_kernel.model import Gap, Mark
from chain_kernel.sql import RECEIVER_WRITER
from matcher_receiver import CheckpointConfig, PostgresCheckpointStore, PostgresHeadReports
from tests.integration.chainctl.conftest import Ctl, Refused

Settings = dict[str, str]


def store_of(database: str, chain_id: int, name: str, **settings: Any) -> PostgresCheckpointStore:
    config = CheckpointConfig(database=database, chain_id=chain_id, name=name, **settings)
    return PostgresCheckpointStore(config)


def gap(chain_id: int, after_id: int, **fields: Any) -> Gap:
    values: dict[str, Any] = {
        "chain_id": chain_id, "after_id": after_id, "until_id": after_id + 5, "cause": "frame",
        "source": "standby", "rows": 4, "found_at_ns": 1_750_000_000_123_456_789,
        "duration_ns": 2_500_000,
    } | fields  # fmt: skip
    return Gap(**values)


@pytest.fixture
def settings(database: str) -> Settings:
    return {"CHAINCTL_DATABASE": database}


@pytest.fixture
def chain_id(database: str) -> int:
    """A chain of two batches, made by hand."""

    async def make() -> None:
        admin = await asyncpg.connect(database)
        await admin.execute("SELECT chain_create(7, decode(repeat('00', 32), 'hex'), 't', 0, 1000)")
        await admin.execute("UPDATE chain_head SET last_id = 30 WHERE chain_id = 7")
        for first, last, prev in ((1, 10, 0), (11, 30, 10)):
            await admin.execute(
                "INSERT INTO chain_batch VALUES (7, $1, $2, $3, 20, 1, decode(repeat('00', 32), "
                "'hex'), now() - interval '1 hour')", first, last, prev,
            )  # fmt: skip
        await admin.close()

    asyncio.run(make())
    return 7


def place(head: int) -> Mark:
    return Mark(id=head, batch_last_id=head, seal=bytes(32), epoch=1)


def test_gaps_are_shown_and_chosen(ctl: Ctl, chain_id: int, role_dsn: Callable[[str], str]) -> None:
    now_ns = time.time_ns()

    async def leave() -> None:
        async with store_of(role_dsn(RECEIVER_WRITER), chain_id, "a") as store:
            store.record_gap(gap(chain_id, 10))
            store.record_gap(gap(chain_id, 20, found_at_ns=now_ns))
            store.record_gap(gap(chain_id, 30, found_at_ns=now_ns, outcome="missing", rows=0))
        async with store_of(role_dsn(RECEIVER_WRITER), chain_id, "b") as store:
            store.record_gap(gap(chain_id, 5, outcome="archived", rows=0))

    asyncio.run(leave())

    def found(*options: object) -> list[Any]:
        lines: list[Any] = ctl.json("gaps", "--chain", chain_id, *options)
        return lines

    assert found("--name", "a")[0] == {
        "chain": chain_id, "receiver": "a", "after_id": 10, "until_id": 15, "rows": 4,
        "cause": "frame", "source": "standby", "outcome": "filled",
        "found": "2025-06-15T15:06:40.123456Z",
        "seconds": 0.0025,
    }  # fmt: skip
    for options, ids in (
        ((), [10, 20, 30, 5]), (("--open",), [30, 5]), (("--since", "1h"), [20, 30]),
        (("--limit", 1), [30]), (("--name", "b"), [5]),
    ):  # fmt: skip
        assert [line["after_id"] for line in found(*options)] == ids, options
    one = ctl("gaps", "--chain", chain_id, "--name", "b").out
    assert ("archived" in one, "filled" in one) == (True, False)


def test_unhalt_lets_a_receiver_start_again_and_reports_who_and_why(
    ctl: Ctl, settings: Settings, chain_id: int, role_dsn: Callable[[str], str]
) -> None:
    async def halt_and_start() -> None:
        async with store_of(role_dsn(RECEIVER_WRITER), chain_id, "m") as store:
            await store.save(0, place(10))
            await store.record_halt(PrimaryBehind(chain_id, 30, 40), 40)
            await store.record_halt(PrimaryBehind(chain_id, 1, 2), 2)  # the first reason stays
        async with store_of(role_dsn(RECEIVER_WRITER), chain_id, "m") as store:
            with pytest.raises(StillHalted, match=f"unhalt m --chain {chain_id}") as caught:
                await store.load()
        assert caught.value.at_id == 40
        assert "ends at 30" in str(caught.value)

    async def start() -> tuple[Mark | None, Any]:
        async with store_of(role_dsn(RECEIVER_WRITER), chain_id, "m") as store:
            found = await store.load()
        admin = await asyncpg.connect(settings["CHAINCTL_DATABASE"])
        act = await admin.fetchrow("SELECT * FROM chain_act")
        await admin.close()
        return found, act

    asyncio.run(halt_and_start())
    arguments = ("unhalt", "m", "--chain", chain_id, "--reason")
    assert "--reason" in ctl.refused(*arguments, "  ")
    done = ctl(*arguments, "restored from the archive", "--actor", "eve")
    assert done.code == 0, done
    assert "PrimaryBehind at 40" in done.err
    found, act = asyncio.run(start())
    assert found == place(10)
    assert (act["act"], act["actor"], act["login"]) == ("unhalt", "eve", "postgres")
    assert act["reason"] == "restored from the archive"
    assert "PrimaryBehind at 40" in act["detail"]
    assert "a halted receiver" in ctl.refused(*arguments, "again")


def test_status_parts_stored_from_reported_places_and_who_has_halted(
    ctl: Ctl, chain_id: int, role_dsn: Callable[[str], str]
) -> None:
    async def leave() -> None:
        async with store_of(role_dsn(RECEIVER_WRITER), chain_id, "own") as store:
            await store.save(0, place(10))
        config = CheckpointConfig(
            database=role_dsn(RECEIVER_WRITER), chain_id=chain_id, name="journal"
        )
        async with PostgresHeadReports(config) as reports:
            await reports.save(0, place(30))
        async with store_of(role_dsn(RECEIVER_WRITER), chain_id, "new") as store:
            await store.record_halt(PrimaryBehind(chain_id, 30, 40), 40)

    asyncio.run(leave())
    found = ctl.json("status", "--chain", chain_id)
    lines = {line["receiver"]: line for line in found["receivers"]}
    shown = {name: (line["checkpoint"], line["halted"]) for name, line in lines.items()}
    assert shown == {
        "own": ("stored", ""),
        "journal": ("reported", ""),
        "new": ("none", "PrimaryBehind at 40"),
    }
    assert (lines["own"]["behind_ids"], lines["own"]["behind_rows"]) == (20, 20)
    assert lines["own"]["behind_seconds"] > 3_000
    assert (lines["journal"]["behind_ids"], lines["journal"]["behind_seconds"]) == (0, 0)
    table = ctl("status", "--chain", chain_id).out
    assert "PrimaryBehind at 40" in table
    lag = ctl("lag", "--chain", chain_id, "--json")
    assert {line["receiver"]: line for line in json.loads(lag.out)}.keys() == lines.keys()


def test_unhalt_with_the_receivers_own_role_is_refused(
    refused: Refused, chain_id: int, role_dsn: Callable[[str], str]
) -> None:
    line = refused(
        "unhalt", "m", "--chain", chain_id, "--reason", "x",
        settings={"CHAINCTL_DATABASE": role_dsn(RECEIVER_WRITER)},
    )  # fmt: skip
    assert "expected a login that is a member of orderchain_owner" in line
    assert f"(login {RECEIVER_WRITER}: permission denied for table " in line


def test_lag_is_a_check_for_monitors(
    ctl: Ctl, chain_id: int, role_dsn: Callable[[str], str]
) -> None:
    async def leave() -> None:
        for name, head in (("behind", 10), ("in step", 30)):
            async with store_of(role_dsn(RECEIVER_WRITER), chain_id, name) as store:
                await store.save(0, place(head))

    asyncio.run(leave())
    lag = ("lag", "--chain", chain_id)
    ctl.done(*lag, "--max-rows", 20, "--max-seconds", "1d")
    late = ctl(*lag, "--max-seconds", "5m")
    assert late.code == 1
    assert f"receiver 'behind' of chain {chain_id} is 3,6" in late.err
    many = ctl(*lag, "--max-rows", 19)
    assert many.code == 1
    assert "is 20 rows behind, above 19" in many.err
    ctl.done(*lag, "--name", "in step", "--max-rows", 0)
    assert "a receiver of chain" in ctl.refused(*lag, "--name", "nobody")
    for name in ("behind", "in step"):
        ctl.done("receivers", "forget", name, "--chain", chain_id, "--reason", "x")
    ctl.done(*lag)
    nobody = ctl(*lag, "--max-seconds", "5m")
    assert (nobody.code, "has no receiver" in nobody.err) == (1, True), nobody
    assert "'soon', expected a time span" in ctl.refused(*lag, "--max-seconds", "soon")


def test_receiver_is_moved_reset_and_forgotten_with_a_reason_and_without_sql(
    ctl: Ctl, chain_id: int, role_dsn: Callable[[str], str]
) -> None:
    async def leave() -> None:
        async with store_of(role_dsn(RECEIVER_WRITER), chain_id, "m") as store:
            await store.save(0, place(10))
            store.record_gap(gap(chain_id, 10))
            await store.record_halt(PrimaryBehind(chain_id, 30, 40), 40)

    async def load() -> Mark | None:
        async with store_of(role_dsn(RECEIVER_WRITER), chain_id, "m") as store:
            return await store.load()

    asyncio.run(leave())
    chain = ("--chain", chain_id)

    def act(command: str, *options: object) -> dict[str, Any]:
        found: dict[str, Any] = ctl.json(
            "receivers", command, "m", *chain, "--reason", "a drill", "--actor", "ann", *options
        )
        return found

    def listed() -> list[Any]:
        found: list[Any] = ctl.json("lag", *chain)
        return [(each["receiver"], each["head_delivered"], each["agrees"]) for each in found]

    assert listed() == [("m", 10, "yes")]
    tried = act("move", "--to", 30, "--dry-run")
    assert tried["act_id"] is None
    assert tried["was"].startswith("checkpoint 10, halted (PrimaryBehind at 40 on ")
    assert tried["now"] == "checkpoint 30; 20 rows never processed"
    assert listed() == [("m", 10, "yes")], "a dry run changes nothing"
    assert act("move", "--to", 30)["now"] == tried["now"]
    assert listed() == [("m", 30, "yes")]
    assert "the nearest: 10 and 30" in ctl.refused(
        "receivers", "move", "m", *chain, "--to", 17, "--reason", "x"
    )
    assert act("reset")["now"] == "checkpoint 0; 40 rows processed again"
    ctl.done("unhalt", "m", *chain, "--reason", "looked at")
    assert asyncio.run(load()) == replace(place(0), epoch=0)
    assert act("forget")["now"] == "forgotten"
    assert listed() == []
    assert ctl.json("gaps", *chain) == []
    assert "a receiver of chain" in ctl.refused("receivers", "forget", "m", *chain, "--reason", "x")
    acts = ctl.json("acts", *chain)
    assert [each["act"] for each in acts] == ["forget", "unhalt", "reset", "move"]
    assert acts[0]["actor"] == "ann"
    assert acts[0]["reason"] == "a drill"


def test_checkpoint_that_the_database_contradicts_is_listed_as_such(
    ctl: Ctl, chain_id: int, role_dsn: Callable[[str], str]
) -> None:
    async def leave() -> None:
        for name, mark in (
            ("other seal", Mark(id=10, batch_last_id=10, seal=bytes([1] * 32), epoch=1)),
            ("ahead", place(99)),
            ("no batch", place(17)),
        ):
            async with store_of(role_dsn(RECEIVER_WRITER), chain_id, name) as store:
                await store.save(0, mark)

    asyncio.run(leave())
    done = ctl("lag", "--chain", chain_id, "--json")
    assert {each["receiver"]: each["agrees"] for each in json.loads(done.out)} == {
        "other seal": "another seal", "ahead": "ahead of the head", "no batch": "no such batch",
    }  # fmt: skip
