"""Each role may do exactly what docs/permissions.md says, by the server's own catalogs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from chain_kernel.sql import AUDITOR, GAP_READER, LOGIN_ROLES, OWNER, RECEIVER_WRITER
from chain_kernel.sql import SEQUENCER_WRITER as WRITER
from tests.permissions_page import rights_below, table_below

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Connect = Callable[[str], Awaitable[asyncpg.Connection[Any]]]
    Rights = dict[tuple[str, str], str]

_COLUMN_RIGHTS = {"SELECT": "S", "INSERT": "I", "UPDATE": "U", "REFERENCES": "R"}

_TABLES = """
SELECT c.oid, c.relname::text AS name, pg_get_userbyid(c.relowner)::text AS owner,
       c.relispartition AS is_partition
  FROM pg_class c
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
"""
_COLUMNS = """
SELECT c.relname::text AS name, a.attname::text AS column,
       has_column_privilege($1, c.oid, a.attnum, $2) AS allowed
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v')
   AND NOT a.attisdropped AND NOT c.relispartition
"""
_FUNCTIONS = """
SELECT p.oid::regprocedure::text AS name, pg_get_userbyid(p.proowner)::text AS owner,
       p.prosecdef AS is_definer, p.proconfig::text AS settings,
       has_function_privilege($1, p.oid, 'EXECUTE') AS allowed
  FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
"""


async def real_columns(catalog: asyncpg.Connection[Any], role: str) -> Rights:
    rights: Rights = {}
    for privilege, letter in _COLUMN_RIGHTS.items():
        for name, column, allowed in await catalog.fetch(_COLUMNS, role, privilege):
            rights[name, column] = rights.get((name, column), "") + (letter if allowed else "")
    for name, column in rights:
        query = "SELECT has_table_privilege($1, $2::text::regclass, 'DELETE')"
        rights[name, column] += "D" if await catalog.fetchval(query, role, name) else ""
    return rights


@pytest.fixture
async def catalog(connect: Connect) -> asyncpg.Connection[Any]:
    return await connect("postgres")


async def test_column_rights_of_each_role_are_those_of_the_document(
    catalog: asyncpg.Connection[Any],
) -> None:
    for role in LOGIN_ROLES:
        real = await real_columns(catalog, role)
        written = rights_below("Tables, column by column", [role], real)
        assert real == {place: rights[role] for place, rights in written.items()}, role


async def test_rights_on_whole_tables_are_held_by_no_login_role(
    catalog: asyncpg.Connection[Any],
) -> None:
    for role in LOGIN_ROLES:
        for table in await catalog.fetch(_TABLES):
            for right in ("TRUNCATE", "TRIGGER", "REFERENCES"):
                query = "SELECT has_table_privilege($1, $2::oid, $3)"
                allowed = await catalog.fetchval(query, role, table["oid"], right)
                assert not allowed, (role, table["name"], right)


async def test_partitions_can_be_reached_only_through_their_table(
    catalog: asyncpg.Connection[Any],
) -> None:
    partitions = [table for table in await catalog.fetch(_TABLES) if table["is_partition"]]
    assert len(partitions) == 4
    for role in LOGIN_ROLES:
        for table in partitions:
            query = "SELECT has_any_column_privilege($1, $2::oid, 'SELECT, INSERT, UPDATE')"
            assert not await catalog.fetchval(query, role, table["oid"]), (role, table["name"])


async def test_every_object_belongs_to_the_owner(catalog: asyncpg.Connection[Any]) -> None:
    tables = await catalog.fetch(_TABLES)
    functions = await catalog.fetch(_FUNCTIONS, OWNER)
    assert {row["owner"] for row in [*tables, *functions]} == {OWNER}


async def test_nothing_is_granted_to_public(catalog: asyncpg.Connection[Any]) -> None:
    granted = await catalog.fetch(
        "SELECT relname FROM pg_class, aclexplode(relacl) a"
        " WHERE relnamespace = 'public'::regnamespace AND a.grantee = 0"
        " UNION ALL "
        "SELECT proname FROM pg_proc,"
        " aclexplode(coalesce(proacl, acldefault('f', proowner))) a"
        " WHERE pronamespace = 'public'::regnamespace AND a.grantee = 0"
    )
    assert granted == []


async def test_functions_and_who_may_call_them_are_those_of_the_document(
    catalog: asyncpg.Connection[Any],
) -> None:
    documented = {row["function"]: row for row in table_below("Functions")}
    for role in LOGIN_ROLES:
        for function in await catalog.fetch(_FUNCTIONS, role):
            expected = documented[function["name"]][role]
            assert ("X" if function["allowed"] else "-") == expected, (role, function["name"])
    assert set(documented) == {row["name"] for row in await catalog.fetch(_FUNCTIONS, OWNER)}


async def test_row_security_is_that_of_the_document(catalog: asyncpg.Connection[Any]) -> None:
    policies = await catalog.fetch(
        "SELECT tablename::text AS table, policyname::text AS policy, cmd AS command,"
        " array_to_string(roles, ', ') AS role FROM pg_policies ORDER BY 1, 2"
    )
    documented = table_below("Row security")
    assert [dict(row) for row in policies] == [
        {title: row[title] for title in ("table", "policy", "command", "role")}
        for row in documented
    ]
    secured = "SELECT relname::text FROM pg_class WHERE relrowsecurity"
    names = {row[0] for row in await catalog.fetch(secured)}
    assert names == {row["table"] for row in documented}


async def test_functions_of_the_owner_look_into_temporary_schemas_last(
    catalog: asyncpg.Connection[Any],
) -> None:
    for function in await catalog.fetch(_FUNCTIONS, OWNER):
        if function["name"] == "chain_events(integer,bigint,bigint)":
            # Reads what its caller may read, as its caller: with a setting it would not be inlined.
            assert (function["is_definer"], function["settings"]) == (False, None)
            continue
        # The one that asks who changes a row runs as that role.
        assert function["is_definer"] == (function["name"] != "chain_refuse()"), function["name"]
        assert "search_path=pg_catalog, public, pg_temp" in function["settings"], function["name"]


async def test_attributes_of_each_role_are_those_of_the_document(
    catalog: asyncpg.Connection[Any],
) -> None:
    rows = table_below("Roles")
    assert [row["role"] for row in rows] == [OWNER, *LOGIN_ROLES]
    for row in rows:
        role = await catalog.fetchrow("SELECT * FROM pg_roles WHERE rolname = $1", row["role"])
        limit = "none" if role["rolconnlimit"] == -1 else str(role["rolconnlimit"])
        settings = ", ".join(role["rolconfig"] or ["none"]).replace("=", " = ")
        login = "yes" if role["rolcanlogin"] else "no"
        assert (login, limit, settings) == (
            row["login"],
            row["connection limit"],
            row["default setting"],
        ), row["role"]
        dangerous = ("rolsuper", "rolcreaterole", "rolcreatedb", "rolreplication", "rolbypassrls")
        assert not any(role[name] for name in dangerous), row["role"]


async def test_login_roles_are_members_of_nothing_and_make_nothing(
    catalog: asyncpg.Connection[Any],
) -> None:
    for role in LOGIN_ROLES:
        assert not await catalog.fetchval("SELECT pg_has_role($1, $2, 'MEMBER')", role, OWNER)
        assert not await catalog.fetchval(
            "SELECT has_schema_privilege($1, 'public', 'CREATE')", role
        )
        member_of = "SELECT count(*) FROM pg_auth_members WHERE member = $1::text::regrole"
        assert await catalog.fetchval(member_of, role) == 0


# ---------------------------------------------------------------------- tried, not only looked up

_CHANGES = (
    "UPDATE chain_page SET payloads = payloads",
    "DELETE FROM chain_page",
    "TRUNCATE chain_page",
    "UPDATE chain_batch SET epoch = 9",
    "DELETE FROM chain_batch",
    "TRUNCATE chain_batch CASCADE",
    "INSERT INTO chain_head (chain_id, last_seal, topic, partition_ids) VALUES (5, '', 't', 1)",
    "UPDATE chain_head SET topic = 'other'",
    "UPDATE chain_head SET partition_ids = 1",
    "DELETE FROM chain_head",
    "DELETE FROM chain_skip",
    "UPDATE chain_skip SET until_id = 9",
    "DELETE FROM chain_term",
    "UPDATE chain_term SET frame_key = frame_key",
    "TRUNCATE chain_term",
    "UPDATE schema_version SET version = 2",
    "DELETE FROM receiver_checkpoint",
    """INSERT INTO chain_page_1_0 VALUES (1, 1, 1, '{1}', '{0}', '{k}', '{0}', '{""}')""",
    "SELECT * FROM chain_page_1_0",
    "CREATE TABLE mine (x int)",
    "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE SCHEMA mine",
    "ALTER TABLE chain_page ADD COLUMN x int",
    "ALTER TABLE chain_page DISABLE TRIGGER ALL",
    "CREATE INDEX ON chain_page (first_id)",
    "DROP TABLE chain_page",
    "ALTER TABLE chain_page_1 DETACH PARTITION chain_page_1_0",
    "DO $$ BEGIN LOCK TABLE chain_page IN ACCESS EXCLUSIVE MODE; END $$",
    "SELECT chain_create(5, decode(repeat('00', 32), 'hex'), 't', 0, 10)",
    f"SET ROLE {OWNER}",
    "SET session_replication_role = replica",
)
_WRITES = (
    """INSERT INTO chain_page VALUES (1, 1, 1, '{1}', '{0}', '{k}', '{0}', '{""}')""",
    "INSERT INTO chain_batch SELECT * FROM chain_batch",
    "UPDATE chain_head SET last_id = 9",
    "INSERT INTO chain_intake VALUES (1, 'file:a', 1, '')",
    "INSERT INTO chain_skip VALUES (1, 5, 6, 1)",
    "INSERT INTO chain_term SELECT * FROM chain_term",
    "SELECT chain_page_extend(1, 1)",
    "SELECT * FROM chain_head FOR UPDATE",
)
_NOT_FOR_A_GAP = (
    "SELECT * FROM chain_head",
    "SELECT owner, backend_pid FROM chain_head",
    "SELECT * FROM chain_intake",
    "SELECT * FROM chain_skip",
    "SELECT * FROM receiver_checkpoint",
)


@pytest.mark.parametrize("role", LOGIN_ROLES)
async def test_role_tries_what_it_must_not_do_and_is_refused(connect: Connect, role: str) -> None:
    statements = _CHANGES + (() if role == WRITER else _WRITES)
    statements += _NOT_FOR_A_GAP if role == GAP_READER else ()
    connection = await connect(role)
    await connection.execute("SET default_transaction_read_only = off")
    outcomes = {statement: await outcome(connection, statement) for statement in statements}
    assert set(outcomes.values()) == {"42501"}, outcomes


async def outcome(connection: asyncpg.Connection[Any], statement: str) -> str:
    """Return the code with which the server refused `statement`, or what it did."""
    try:
        return str(await connection.execute(statement))
    except asyncpg.PostgresError as error:
        return str(error.sqlstate)


async def test_writer_does_all_that_a_commit_needs(connect: Connect) -> None:
    writer = await connect(WRITER)
    async with writer.transaction():
        await writer.execute(
            "UPDATE chain_head SET epoch = 1, nonce = decode(repeat('00', 16), 'hex'), owner = 'o',"
            " backend_pid = 1, backend_start = now(), last_id = 1, last_seal = last_seal,"
            " published_id = 0 WHERE chain_id = 1"
        )
        await writer.execute(
            """INSERT INTO chain_page VALUES (1, 1, 1, '{1}', '{0}', '{k}', '{0}', '{""}')"""
        )
        await writer.execute(
            "INSERT INTO chain_batch SELECT 1, 1, 1, 0, 1, 1, last_seal, now() FROM chain_head"
        )
        await writer.execute(
            "INSERT INTO chain_intake VALUES (1, 'file:a', 1, '')"
            " ON CONFLICT (chain_id, source) DO UPDATE SET position = EXCLUDED.position"
        )
        await writer.execute("INSERT INTO chain_skip VALUES (1, 0, 1, 1)")
        await writer.execute(
            "INSERT INTO chain_term (chain_id, epoch, nonce, frame_key, owner, after_id,"
            " system_identifier, timeline)"
            " SELECT 1, 1, decode(repeat('00', 16), 'hex'),"
            " decode(repeat('00', 32), 'hex'), 'o', 0,"
            " system_identifier, 1 FROM pg_control_system(), pg_walfile_name(pg_current_wal_lsn())"
        )
        await writer.execute("SELECT chain_page_extend(1, 500)")
    head = await writer.fetchrow("SELECT last_id, epoch FROM chain_head WHERE chain_id = 1")
    assert tuple(head) == (1, 1)
    assert await writer.fetchval("SELECT count(*) FROM chain_event WHERE chain_id = 1") == 1


async def test_gap_reader_reads_all_that_a_fill_needs(connect: Connect) -> None:
    reader = await connect(GAP_READER)
    await reader.fetch("SELECT * FROM chain_event")
    await reader.fetch("SELECT * FROM chain_batch")
    await reader.fetch("SELECT epoch, nonce, frame_key FROM chain_term")
    await reader.fetch("SELECT database_id, version FROM schema_version")
    await reader.fetch(
        "SELECT chain_id, epoch, nonce, last_id, last_seal, published_id, topic, topic_partition"
        " FROM chain_head"
    )
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await reader.execute("CREATE TEMP TABLE t (x int)")


async def test_receiver_writer_keeps_its_checkpoint(connect: Connect) -> None:
    receiver = await connect(RECEIVER_WRITER)
    await receiver.execute(
        "INSERT INTO receiver_checkpoint VALUES (1, 'r', 0, 0, decode(repeat('00', 32), 'hex'), 0)"
    )
    moved = await receiver.execute(
        "UPDATE receiver_checkpoint SET head_delivered = 5 WHERE head_delivered = 0"
    )
    assert moved == "UPDATE 1"
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await receiver.fetch("SELECT * FROM chain_event")


async def test_auditor_reads_every_column_but_the_salt_of_the_keys(
    connect: Connect, catalog: asyncpg.Connection[Any]
) -> None:
    auditor = await connect(AUDITOR)
    columns = await catalog.fetch(
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_schema = 'public'"
    )
    for table, column in columns:
        statement = f'SELECT "{column}" FROM "{table}" LIMIT 1'  # noqa: S608 - the catalog's
        if column == "key_salt":
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await auditor.fetch(statement)
        elif not table.startswith(("chain_page_", "chain_partition_lock")):
            await auditor.fetch(statement)


async def test_writer_may_end_backends_of_its_own_role_only(
    connect: Connect, catalog: asyncpg.Connection[Any]
) -> None:
    writer, paused, reader = await connect(WRITER), await connect(WRITER), await connect(GAP_READER)
    terminate = "SELECT pg_terminate_backend($1, 5000)"
    assert await writer.fetchval(terminate, paused.get_server_pid()) is True
    for other in (reader, catalog):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await writer.fetchval(terminate, other.get_server_pid())
