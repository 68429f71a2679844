"""Each role of each part may do what docs/permissions.md says, by the catalogs of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from chain_kernel.sql import OWNER
from chainctl.schema.parts import PARTS
from outbox.roles import ROLES_OF
from tests.permissions_page import rights_below, table_below

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.postgres

_COLUMNS = """
SELECT c.oid, c.relname::text AS name, a.attnum, a.attname::text AS column
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
   AND NOT a.attisdropped AND NOT c.relispartition
"""
_OF_COLUMNS = {"S": "SELECT", "I": "INSERT", "U": "UPDATE"}
_OF_TABLES = {"D": "DELETE", "T": "TRUNCATE", "R": "TRIGGER"}


@pytest.fixture(params=list(ROLES_OF))
async def part(request: Any, empty_database: str) -> AsyncIterator[tuple[str, Any]]:
    """The name of a part, and the superuser in a database that holds it alone."""
    connection = await asyncpg.connect(empty_database)
    async with connection.transaction():
        await connection.execute(PARTS[request.param].text())
    yield request.param, connection
    await connection.close()


async def test_column_rights_of_each_role_are_those_of_the_document(part: tuple[str, Any]) -> None:
    name, connection = part
    roles = ROLES_OF[name]
    real: dict[tuple[str, str], dict[str, str]] = {}
    for found in await connection.fetch(_COLUMNS):
        place = real.setdefault((found["name"], found["column"]), dict.fromkeys(roles, ""))
        for role in roles:
            for letter, right in _OF_COLUMNS.items():
                query = "SELECT has_column_privilege($1::text, $2::oid, $3::smallint, $4)"
                if await connection.fetchval(query, role, found["oid"], found["attnum"], right):
                    place[role] += letter
            for letter, right in _OF_TABLES.items():
                query = "SELECT has_table_privilege($1::text, $2::oid, $3)"
                if await connection.fetchval(query, role, found["oid"], right):
                    place[role] += letter
    heading = f"{name.title()}: tables, column by column"
    assert real == rights_below(heading, roles, real)


async def test_functions_and_who_may_call_them_are_those_of_the_document(
    part: tuple[str, Any],
) -> None:
    name, connection = part
    functions = await connection.fetch(
        "SELECT oid, oid::regprocedure::text AS name, proconfig::text AS settings,"
        " pg_get_userbyid(proowner)::text AS owner"
        " FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    )
    # The callback service has none, and the page no table of them.
    rows = table_below(f"{name.title()}: functions") if functions else []
    written = {row["function"]: row for row in rows}
    assert {row["name"] for row in functions} == set(written)
    for row in functions:
        assert row["owner"] == OWNER
        assert "search_path=pg_catalog, public, pg_temp" in row["settings"], row["name"]
        for role in ROLES_OF[name]:
            query = "SELECT has_function_privilege($1::text, $2::oid, 'EXECUTE')"
            allowed = await connection.fetchval(query, role, row["oid"])
            assert ("X" if allowed else "-") == written[row["name"]][role], (role, row["name"])


async def test_roles_are_those_of_the_document_and_nothing_is_granted_to_public(
    part: tuple[str, Any],
) -> None:
    name, connection = part
    assert [row["role"] for row in table_below(f"{name.title()}: roles")] == list(ROLES_OF[name])
    granted = await connection.fetch(
        "SELECT relname FROM pg_class, aclexplode(relacl) a"
        " WHERE relnamespace = 'public'::regnamespace AND a.grantee = 0"
        " UNION ALL SELECT proname FROM pg_proc,"
        " aclexplode(coalesce(proacl, acldefault('f', proowner))) a"
        " WHERE pronamespace = 'public'::regnamespace AND a.grantee = 0"
    )
    assert granted == []
    for role in ROLES_OF[name]:
        found = await connection.fetchrow("SELECT * FROM pg_roles WHERE rolname = $1", role)
        dangerous = ("rolsuper", "rolcreaterole", "rolcreatedb", "rolreplication", "rolbypassrls")
        assert not any(found[each] for each in dangerous), role
