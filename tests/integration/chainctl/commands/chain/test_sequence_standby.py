"""Several servers, a real streaming standby among them: several addresses for fills, and several
hosts in one address.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from chain_kernel.sql import GAP_READER
from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER
from local_stack.process import free_port
from tests.builders.orders import order_file
from tests.builders.standbys import standby_of
from tests.deadlines import deadline
from tests.integration.chainctl.conftest import Call, Ctl
from tests.integration.chainctl.sizes import FILLED_ROWS as ROWS
from tests.opened import connected

EXTRA = 50


@pytest.fixture
def database_name(module_settings: dict[str, str]) -> str:
    return urlsplit(module_settings["CHAINCTL_DATABASE"]).path.lstrip("/")


@pytest.fixture
def standby(
    postgres_server: PostgresServer, module_settings: dict[str, str], server_folder: Path
) -> Iterator[PostgresServer]:
    del module_settings  # its database must be there first
    with standby_of(postgres_server, server_folder / "standby") as server:
        yield server


def pause_behind(dsn: str, chain_id: int, last_id: int) -> None:
    """Have a standby replay up to `last_id`, and no further."""

    async def pause() -> None:
        async with connected(dsn) as look:
            query = "SELECT last_id FROM chain_head WHERE chain_id = $1"
            async with deadline():
                while await look.fetchval(query, chain_id) != last_id:
                    pass
                await look.execute("SELECT pg_wal_replay_pause()")
                while await look.fetchval("SELECT pg_get_wal_replay_pause_state()") != "paused":
                    pass

    asyncio.run(pause())


def test_fill_and_receive_read_a_standby_that_is_behind_and_then_the_primary(
    ctl: Ctl, call: Call, module_settings: dict[str, str], filled: int, standby: PostgresServer,
    database_name: str, tmp_path: Path,
) -> None:  # fmt: skip
    pause_behind(standby.dsn(SUPERUSER, database_name), filled, ROWS)
    ctl.done("sequence", "--chain", filled, "--input", order_file(tmp_path / "more.csv", EXTRA))
    head = ctl.json("status", "--chain", filled)["head_persisted"]
    assert head > ROWS + EXTRA, "a take-over skips ids"
    ids = [*range(1, ROWS + 1), *range(head - EXTRA + 1, head + 1)]
    servers = standby.dsn(GAP_READER, database_name), module_settings["CHAINCTL_GAP_DATABASE"]

    alone = ctl(
        "fill", "--chain", filled, "--after", ROWS - 1, "--until", head, "--gap-database",
        servers[0],
    )  # fmt: skip
    assert alone.code == 3, alone
    assert str(head) in alone.err

    flags = [part for server in servers for part in ("--gap-database", server)]
    out = ctl.done("fill", "--chain", filled, "--after", ROWS - 3, "--until", head, *flags)
    found = [json.loads(line)["id"] for line in out.splitlines()]
    assert found == ids[ROWS - 3 :]

    journal = tmp_path / "j.jsonl"
    settings = {**module_settings, "CHAINCTL_GAP_DATABASE": " ".join(servers)}
    received = call("receive", "--chain", filled, "--output", journal, "--json", settings=settings)
    assert received.code == 0, received
    rows = [json.loads(line)["id"] for line in journal.read_text().splitlines()]
    assert rows == ids
    assert json.loads(received.out)["stats"]["source"] == "primary"  # gave the end of it

    standby.stop()
    without = ctl("fill", "--chain", filled, "--after", 0, "--until", 3, *flags)
    assert without.code == 0, without
    assert "asked last" in without.err, "a server that does not answer is named"


def several_hosts(dsn: str, target: str, *ports: int) -> str:
    """Return `dsn` with a host for each of `ports` before its own, of which `target` is wanted."""
    others = "".join(f"127.0.0.1:{port}," for port in ports)
    return dsn.replace("@", f"@{others}") + f"?target_session_attrs={target}"


def test_address_of_several_hosts_finds_the_one_that_can_be_written_to(
    call: Call, module_settings: dict[str, str], filled: int, standby: PostgresServer,
    tmp_path: Path,
) -> None:  # fmt: skip
    ports = free_port(), standby.config.port  # the first has no listener
    database, gap_database = "CHAINCTL_DATABASE", "CHAINCTL_GAP_DATABASE"
    settings = {
        **module_settings,
        database: several_hosts(module_settings[database], "read-write", *ports),
        # That role is read-only by default: no server is read-write for it.
        gap_database: several_hosts(module_settings[gap_database], "primary", *ports),
    }
    more, journal = tmp_path / "more.csv", tmp_path / "j.jsonl"
    order_file(more, EXTRA)
    for arguments in (
        ["sequence", "--input", more],
        ["receive", "--output", journal, "--name", "matching"],
        ["verify", "--local", "--source", "database"],
        ["status"],
    ):
        done = call(*arguments, "--chain", filled, settings=settings)
        assert done.code == 0, done
    assert len(journal.read_text().splitlines()) == ROWS + EXTRA
    own = urlsplit(module_settings[database]).port
    without = {**settings, database: settings[database].replace(f",127.0.0.1:{own}/", "/")}
    done = call("status", "--chain", filled, settings=without)
    assert done.code == 3, done
    assert "not read-write now" in done.err
    # A login that is read-only by default misses that target on every server.
    never = {
        **settings,
        gap_database: several_hosts(module_settings[gap_database], "read-write", *ports),
    }
    done = call("fill", "--chain", filled, "--after", 0, "--until", 3, settings=never)
    assert done.code == 3, done
    assert "such as gap_reader, never is: it needs primary" in done.err


def test_address_of_several_hosts_may_ask_for_a_standby(
    ctl: Ctl, call: Call, module_settings: dict[str, str], filled: int, standby: PostgresServer,
    database_name: str, tmp_path: Path,
) -> None:  # fmt: skip
    pause_behind(standby.dsn(SUPERUSER, database_name), filled, ROWS)
    ctl.done("sequence", "--chain", filled, "--input", order_file(tmp_path / "more.csv", EXTRA))
    ports = free_port(), standby.config.port
    for target, rows in (("standby", ROWS), ("primary", ROWS + EXTRA)):
        settings = {
            **module_settings,
            "CHAINCTL_AUDIT_DATABASE": several_hosts(
                module_settings["CHAINCTL_DATABASE"], target, *ports
            ),
        }
        done = call(
            "verify", "--local", "--source", "database", "--chain", filled, "--json",
            settings=settings,
        )  # fmt: skip
        assert done.code == 0, done
        assert json.loads(done.out)["sources"][0]["rows"] == rows


def test_primary_that_came_back_is_named_and_what_is_written_goes_to_the_promoted_server(
    call: Call, module_settings: dict[str, str], filled: int, standby: PostgresServer,
    postgres_server: PostgresServer, database_name: str,
) -> None:  # fmt: skip
    name, dsn = "CHAINCTL_DATABASE", module_settings["CHAINCTL_DATABASE"]
    settings = {**module_settings, name: several_hosts(dsn, "primary", standby.config.port)}
    before = call("doctor", "--chain", filled, settings=settings)
    assert "one primary of 2" in before.out, before
    standby.execute("SELECT pg_promote()")
    after = call("doctor", "--chain", filled, settings=settings)
    assert after.code == 1, after
    assert "2 say that they are the primary" in after.out
    assert f"127.0.0.1:{urlsplit(dsn).port} (timeline 1)" in after.out
    assert f"127.0.0.1:{standby.config.port} (timeline 2)" in after.out

    created = call("chain", "create", filled + 1, settings=settings)
    assert created.code == 0, created
    look = f"SELECT count(*) FROM chain_head WHERE chain_id = {filled + 1}"  # noqa: S608 - a number
    found = [
        server.execute(look, database=database_name).split()
        for server in (standby, postgres_server)
    ]
    assert found == [["1"], ["0"]]

    anyone = call("doctor", settings={**settings, name: several_hosts(dsn, "any", free_port())})
    assert anyone.code == 1, anyone
    assert "target_session_attrs was 'any', expected primary or read-write" in anyone.out
