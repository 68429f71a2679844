import asyncio
import json
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from chain_kernel.sql import SCHEMA_VERSION
from local_stack import PostgresServer
from local_stack.errors import StatementFailed
from tests.integration.chainctl.conftest import Call, Ctl, Refused

VERSION = f"schema version {SCHEMA_VERSION}"

MISSING = (
    r"chainctl: schema was 'none(, or of another version)?', expected the tables "
    r"(of part chain \(chainctl schema apply\)|"
    r"that `chainctl schema apply \[--part\]` makes \(relation \"\S+\" does not exist\))\n$"
)
_ARCHIVE = ["--chain", 1, "--archive", "archive"]
COMMANDS: list[list[object]] = [
    ["schema", "check"],
    ["chain", "create", 1],
    ["chain", "list"],
    ["status", "--chain", 1],
    ["lag", "--chain", 1],
    ["gaps", "--chain", 1],
    ["unhalt", "matcher", "--chain", 1, "--reason", "fixed"],
    ["seal", "export", "--chain", 1],
    ["fill", "--chain", 1, "--after", 0, "--until", 1],
    ["receive", "--chain", 1, "--output", "j"],
    ["sequence", "--chain", 1, "--input", "o.csv"],
    ["verify", "--chain", 1, "--source", "database"],
    ["verify", "--chain", 1, "--source", "database", "--local"],
    ["verify", "--all-chains", "--source", "database", "--local"],
    ["archive", *_ARCHIVE, "--until", 1],
    ["archive", *_ARCHIVE],
    ["retention", *_ARCHIVE, "--until", 1],
]
"""All that ask the chain's tables something."""


@pytest.fixture
def settings(empty_database: str) -> dict[str, str]:
    return {"CHAINCTL_DATABASE": empty_database}


@pytest.fixture
def latin_database(postgres_server: PostgresServer) -> Iterator[str]:
    """The name of an empty database that lacks most characters."""
    name = f"latin_{secrets.token_hex(8)}"
    postgres_server.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1'"
        " LOCALE_PROVIDER libc LOCALE 'C'"
    )
    yield name
    postgres_server.drop_database(name)


def test_schema_applied_twice_is_applied_once(ctl: Ctl) -> None:
    first = ctl("schema", "apply")
    again = ctl("schema", "apply")
    assert (first.code, again.code) == (0, 0)
    assert first.err == f"chainctl: {VERSION} applied\n"
    assert again.err == f"chainctl: {VERSION} is already there, nothing done\n"
    ctl.done("schema", "check")


def test_schema_applied_by_two_at_once_is_applied_once(
    start: object, settings: dict[str, str]
) -> None:
    both = [start("schema", "apply", settings=settings) for _ in range(2)]  # type: ignore[operator]
    shown = sorted(process.communicate()[1] for process in both)
    assert [process.returncode for process in both] == [0, 0], shown
    assert shown == [
        f"chainctl: {VERSION} applied\n",
        f"chainctl: {VERSION} is already there, nothing done\n",
    ]


def test_schema_check_names_what_is_missing_or_different_and_ends_with_one(
    ctl: Ctl, postgres_server: PostgresServer, empty_database_name: str
) -> None:
    ctl("schema", "apply")
    postgres_server.execute(
        "GRANT UPDATE ON chain_lease TO gap_reader; DROP TABLE chain_skip; DROP VIEW chain_event;"
        "ALTER TABLE chain_act ALTER COLUMN detail DROP NOT NULL;",
        database=empty_database_name,
    )
    lines = [
        "table chain_act: column detail is text, shipped as text NOT NULL",
        "table chain_lease: role gap_reader may UPDATE, shipped: may not",
        "table chain_skip: missing",
        "view chain_event: missing",
    ]
    done = ctl("schema", "check")
    assert (done.code, done.out.splitlines()) == (1, lines)
    assert done.err == "chainctl: 4 differences from what was shipped\n"
    done = ctl("schema", "check", "--json", "--own-role", "gap_reader")
    assert (done.code, json.loads(done.out)["differences"]) == (1, [lines[0], *lines[2:]])


def test_schema_upgrade_in_this_version_does_nothing_and_to_another_is_refused(
    ctl: Ctl, postgres_server: PostgresServer, empty_database_name: str
) -> None:
    assert "expected the tables of part chain" in ctl.refused("schema", "upgrade")
    ctl("schema", "apply")
    for options in ([], ["--finish"], ["--dry-run"]):
        done = ctl("schema", "upgrade", *options)
        assert (done.code, done.out, done.err) == (0, "", "chainctl: nothing to do\n")
    line = ctl.refused("schema", "upgrade", "--target", 0)
    assert f"schema version was {SCHEMA_VERSION}, expected at most 0" in line
    newer = SCHEMA_VERSION + 1
    line = ctl.refused("schema", "upgrade", "--target", newer)
    assert f"--target was {newer}, expected at most {SCHEMA_VERSION}: use a newer" in line
    for version, refusal in (
        (newer, f"was {newer}, expected at most {SCHEMA_VERSION}; use a newer orderchain"),
        (1, f"was 1, expected {SCHEMA_VERSION}, and no migration leads to 2"),
    ):
        change = f"UPDATE schema_version SET version = {version}"  # noqa: S608
        postgres_server.execute(change, database=empty_database_name)
        assert refusal in ctl.refused("schema", "upgrade")


def test_numbers_behind_their_rows_are_named_with_the_remedy(
    ctl: Ctl, postgres_server: PostgresServer, empty_database_name: str
) -> None:
    """As on a logical replica that is promoted: it has the rows, and no sequence's place."""
    ctl("schema", "apply")
    postgres_server.execute(
        "SELECT chain_create(7, decode(repeat('00', 32), 'hex'), 't', 0, 1000);"
        "INSERT INTO chain_act (chain_id, act, actor, reason, detail)"
        " VALUES (7, 'a', 'b', 'c', '');"
        "SELECT setval(pg_get_serial_sequence('public.chain_act', 'act_id'), 1, false)",
        database=empty_database_name,
    )
    done = ctl("schema", "check")
    what, select, remedy = done.out.partition(": SELECT ")
    assert (done.code, what.split()[:2], bool(select)) == (1, ["table", "chain_act:"], True), done
    assert remedy.strip() in ctl("doctor").out
    postgres_server.execute(f"SELECT {remedy}", database=empty_database_name)
    ctl.done("schema", "check")


def test_schema_check_during_an_upgrade_names_it(
    ctl: Ctl, postgres_server: PostgresServer, empty_database_name: str
) -> None:
    ctl("schema", "apply")
    postgres_server.execute(
        "UPDATE schema_version SET upgrade_to = version + 1", database=empty_database_name
    )
    done = ctl("schema", "check", "--json")
    under_way = f"{VERSION}: an upgrade to {SCHEMA_VERSION + 1} is under way"
    assert (done.code, json.loads(done.out)["differences"]) == (1, [under_way])
    ctl.done("chain", "list")


OTHER_SCHEMAS = {
    "none": ("", MISSING),
    "newer": (
        "UPDATE schema_version SET version = version + 1",
        rf"schema version was {SCHEMA_VERSION + 1}, expected {SCHEMA_VERSION}; use a newer",
    ),
    "a row per order": (
        "DROP VIEW chain_event; DROP TABLE chain_page; UPDATE schema_version SET version = 1;"
        "DROP FUNCTION chain_events(integer, bigint, bigint);"
        "CREATE TABLE chain_event (chain_id integer, id bigint, pid bigint, key text,"
        " event_time_ns bigint, payload bytea, PRIMARY KEY (chain_id, id))"
        " PARTITION BY LIST (chain_id)",
        "schema version was 1, expected 2; chainctl schema upgrade",
    ),
}
"""How the chain's tables become those of another version, and how that is refused."""


@pytest.fixture(scope="module", params=OTHER_SCHEMAS)
def other_schema(
    request: pytest.FixtureRequest, postgres_server: PostgresServer, template: Callable[..., str],
) -> Iterator[tuple[str, str, str]]:  # fmt: skip
    """A database without our tables, or with those of another version: which kind it is, its
    address, and how commands refuse it."""
    change, refusal = OTHER_SCHEMAS[request.param]
    name = f"test_{secrets.token_hex(8)}"
    if change:
        postgres_server.copy_database(template("chain"), name)
        postgres_server.execute(change, database=name)
    else:
        postgres_server.create_database(name)
    yield request.param, postgres_server.dsn(database=name), refusal
    postgres_server.drop_database(name)


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(map(str, arguments)))
def test_schema_of_another_version_is_refused_by_every_command(
    refused: Refused, other_schema: tuple[str, str, str], tmp_path: Path, arguments: list[object]
) -> None:
    kind, database, refusal = other_schema
    (tmp_path / "o.csv").write_text("a\n1\n")
    # No broker is needed to find out.
    settings = {"CHAINCTL_DATABASE": database, "CHAINCTL_KAFKA": "127.0.0.1:1"}
    if arguments[0] == "fill" and kind == "a row per order":
        refusal = MISSING  # it asks for the version and for pages at once
    assert re.search(refusal, refused(*arguments, settings=settings))
    assert [path.name for path in tmp_path.iterdir()] == ["o.csv"]


@pytest.mark.parametrize(
    "other_schema",
    [kind for kind, (change, _) in OTHER_SCHEMAS.items() if change],
    indirect=True,
    scope="module",
)
def test_schema_is_not_applied_over_one_of_another_version(
    refused: Refused, other_schema: tuple[str, str, str]
) -> None:
    _, database, refusal = other_schema
    line = refused("schema", "apply", settings={"CHAINCTL_DATABASE": database})
    assert re.search(refusal, line)


def test_schema_over_tables_of_somebody_else_is_refused_whole(
    ctl: Ctl, postgres_server: PostgresServer, empty_database_name: str
) -> None:
    postgres_server.execute("CREATE TABLE chain_head (mine int)", database=empty_database_name)
    assert "chain_head" in ctl.refused("schema", "apply")
    assert "expected the tables of part chain" in ctl.refused("schema", "check")
    line = ctl.refused("schema", "check", "--part", "decision")
    assert "(chainctl schema apply --part decision)" in line


def test_schema_applied_without_the_right_to_is_refused(
    refused: Refused, postgres_server: PostgresServer, empty_database_name: str
) -> None:
    # As the schema sets it, which no test may have applied to this server yet.
    postgres_server.execute("ALTER ROLE gap_reader SET default_transaction_read_only = on")
    settings = {"CHAINCTL_DATABASE": postgres_server.dsn("gap_reader", empty_database_name)}
    line = refused("schema", "apply", settings=settings)
    assert "is a member of orderchain_owner, or has CREATEROLE, and owns the database" in line
    assert re.search(r"\(login gap_reader: cannot execute .* in a read-only transaction\)", line)
    settings = {"CHAINCTL_DATABASE": postgres_server.dsn("auditor", empty_database_name)}
    line = refused("schema", "apply", settings=settings)
    assert "is a member of orderchain_owner, or has CREATEROLE, and owns the database" in line
    assert "(login auditor: permission denied" in line


def test_schema_in_a_database_that_is_not_utf8_is_refused_by_every_command(
    call: Call, refused: Refused, postgres_server: PostgresServer, latin_database: str,
) -> None:  # fmt: skip
    settings = {"CHAINCTL_DATABASE": postgres_server.dsn(database=latin_database)}
    both = {**settings, "CHAINCTL_KAFKA": "127.0.0.1:1"}
    for arguments in (
        ["schema", "apply"],
        ["schema", "apply", "--part", "outbox"],
        ["schema", "check"],
        ["chain", "list"],
        ["status", "--chain", 1],
    ):
        line = refused(*arguments, settings=both)
        assert "encoding of the database was 'LATIN1', expected UTF8" in line, arguments
    for printed in (call("schema", "print").out, call("grants", "print").out):
        with pytest.raises(StatementFailed, match="is LATIN1, expected UTF8"):
            postgres_server.execute(f"BEGIN;\n{printed}\nCOMMIT;\n", database=latin_database)
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert postgres_server.execute(tables, database=latin_database) == "0"


def test_schema_check_names_what_is_left_to_a_dba(
    ctl: Ctl, postgres_server: PostgresServer, empty_database_name: str
) -> None:
    ctl("schema", "apply")
    postgres_server.execute(
        f"GRANT TEMPORARY ON DATABASE {empty_database_name} TO PUBLIC;"
        "GRANT CREATE ON SCHEMA public TO PUBLIC;"
        "GRANT EXECUTE ON FUNCTION lo_create(oid) TO PUBLIC;",
        database=empty_database_name,
    )
    left = [
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        f"REVOKE CREATE, TEMPORARY ON DATABASE {empty_database_name} FROM PUBLIC",
        "REVOKE EXECUTE ON FUNCTION lo_create(oid) FROM PUBLIC",
    ]
    done = ctl("schema", "check", "--json")
    found = json.loads(done.out)["differences"]
    assert (done.code, found) == (1, [f"step {step}: missing" for step in left])
    again = ctl("schema", "apply")
    assert again.err.splitlines()[1:] == [f"chainctl: left to the DBA: {step};" for step in left]
    postgres_server.execute(";".join(left), database=empty_database_name)
    ctl.done("schema", "check")


def test_schema_applied_while_a_reader_holds_any_advisory_lock_is_applied(
    call: Call, settings: dict[str, str], postgres_server: PostgresServer,
    empty_database_name: str,
) -> None:  # fmt: skip
    async def hold() -> None:
        reader = await asyncpg.connect(postgres_server.dsn("gap_reader", empty_database_name))
        lock = "SELECT pg_advisory_lock(hashtextextended('orderchain schema apply', 0))"
        await reader.execute(lock)
        try:
            done = await asyncio.to_thread(call, "schema", "apply", settings=settings)
        finally:
            await reader.close()
        assert done.code == 0, done

    asyncio.run(hold())


@pytest.mark.parametrize("name", ["outbox", "inbox"])
def test_schema_of_another_part_stands_alone_or_beside_the_chain_and_its_grants_apply_again(
    call: Call, ctl: Ctl, postgres_server: PostgresServer, empty_database_name: str, name: str
) -> None:
    part = ["--part", name]
    assert f"part {name}" in ctl.refused("schema", "check", *part)
    first = ctl("schema", "apply", *part)
    again = ctl("schema", "apply", *part)
    assert first.err == f"chainctl: schema of {name}, version 1 applied\n"
    assert again.err == f"chainctl: schema of {name}, version 1 is already there, nothing done\n"
    ctl.done("schema", "check", *part)
    assert "schema" in ctl.refused("schema", "check")
    ctl.done("schema", "apply")
    for each in (part, []):
        grants = call("grants", "print", *each).out
        postgres_server.execute(f"BEGIN;\n{grants}\nCOMMIT;\n", database=empty_database_name)
        ctl.done("schema", "check", *each)
