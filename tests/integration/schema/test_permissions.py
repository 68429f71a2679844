"""Each role may do exactly what docs/permissions.md says, by the server's own catalogs."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from chain_kernel.sql import GAP_READER, LOGIN_ROLES, OWNER
from chain_kernel.sql import SEQUENCER_WRITER as WRITER
from tests.permissions_page import rights_below, table_below

from .conftest import Connect

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


async def test_column_rights_are_those_of_the_document(catalog: asyncpg.Connection[Any]) -> None:
    for role in LOGIN_ROLES:
        real = await real_columns(catalog, role)
        written = rights_below("Tables, column by column", [role], real)
        assert real == {place: rights[role] for place, rights in written.items()}, role


async def test_no_login_holds_rights_on_whole_tables(catalog: asyncpg.Connection[Any]) -> None:
    for role in LOGIN_ROLES:
        for table in await catalog.fetch(_TABLES):
            for right in ("TRUNCATE", "TRIGGER", "REFERENCES"):
                query = "SELECT has_table_privilege($1, $2::oid, $3)"
                allowed = await catalog.fetchval(query, role, table["oid"], right)
                assert not allowed, (role, table["name"], right)


async def test_partitions_are_reached_by_their_table(catalog: asyncpg.Connection[Any]) -> None:
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


async def test_functions_are_those_of_the_document(catalog: asyncpg.Connection[Any]) -> None:
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


async def test_temporary_schemas_are_looked_into_last(catalog: asyncpg.Connection[Any]) -> None:
    for function in await catalog.fetch(_FUNCTIONS, OWNER):
        if function["name"] == "chain_events(integer,bigint,bigint)":
            # Reads what its caller may read, as its caller: with a setting it would not be inlined.
            assert (function["is_definer"], function["settings"]) == (False, None)
            continue
        # The one that asks who changes a row runs as that role.
        assert function["is_definer"] == (function["name"] != "chain_refuse()"), function["name"]
        assert "search_path=pg_catalog, public, pg_temp" in function["settings"], function["name"]


async def test_roles_are_those_of_the_document(catalog: asyncpg.Connection[Any]) -> None:
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


async def test_login_roles_are_members_of_nothing(catalog: asyncpg.Connection[Any]) -> None:
    for role in LOGIN_ROLES:
        assert not await catalog.fetchval("SELECT pg_has_role($1, $2, 'MEMBER')", role, OWNER)
        assert not await catalog.fetchval(
            "SELECT has_schema_privilege($1, 'public', 'CREATE')", role
        )
        member_of = "SELECT count(*) FROM pg_auth_members WHERE member = $1::text::regrole"
        assert await catalog.fetchval(member_of, role) == 0


async def test_writer_ends_its_own_alone(
    connect: Connect, catalog: asyncpg.Connection[Any]
) -> None:
    writer, paused, reader = await connect(WRITER), await connect(WRITER), await connect(GAP_READER)
    terminate = "SELECT pg_terminate_backend($1, 5000)"
    assert await writer.fetchval(terminate, paused.get_server_pid()) is True
    for other in (reader, catalog):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await writer.fetchval(terminate, other.get_server_pid())
