"""Each role of the outbox may do what docs/permissions.md says, by the catalogs of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chain_kernel.sql import OWNER
from outbox.roles import ROLES_OF
from tests.permissions_page import rights_below, table_below

if TYPE_CHECKING:
    from .conftest import Sender

pytestmark = pytest.mark.postgres

_COLUMNS = """
SELECT c.oid, c.relname::text AS name, a.attnum, a.attname::text AS column
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
   AND NOT a.attisdropped AND NOT c.relispartition AND c.relname <> 'trade'
"""


async def test_column_rights_of_each_role_are_those_of_the_document(sender: Sender) -> None:
    real: dict[tuple[str, str], dict[str, str]] = {}
    for found in await sender.admin.fetch(_COLUMNS):
        place = real.setdefault((found["name"], found["column"]), {})
        for role in ROLES_OF["outbox"]:
            place[role] = ""
            for right, letter in {"SELECT": "S", "INSERT": "I", "UPDATE": "U"}.items():
                query = "SELECT has_column_privilege($1::text, $2::oid, $3::smallint, $4)"
                if await sender.admin.fetchval(query, role, found["oid"], found["attnum"], right):
                    place[role] += letter
            for right, letter in {"DELETE": "D", "TRUNCATE": "T", "TRIGGER": "R"}.items():
                query = "SELECT has_table_privilege($1::text, $2::oid, $3)"
                if await sender.admin.fetchval(query, role, found["oid"], right):
                    place[role] += letter
    assert real == rights_below("Outbox: tables, column by column", ROLES_OF["outbox"], real)


async def test_functions_and_who_may_call_them_are_those_of_the_document(sender: Sender) -> None:
    written = {row["function"]: row for row in table_below("Outbox: functions")}
    functions = await sender.admin.fetch(
        "SELECT oid, oid::regprocedure::text AS name, prosecdef, proconfig::text AS settings,"
        " pg_get_userbyid(proowner)::text AS owner"
        " FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    )
    assert {row["name"] for row in functions} == set(written)
    for row in functions:
        assert row["owner"] == OWNER
        assert "search_path=pg_catalog, public, pg_temp" in row["settings"], row["name"]
        for role in ROLES_OF["outbox"]:
            query = "SELECT has_function_privilege($1::text, $2::oid, 'EXECUTE')"
            allowed = await sender.admin.fetchval(query, role, row["oid"])
            assert ("X" if allowed else "-") == written[row["name"]][role], (role, row["name"])


async def test_roles_are_those_of_the_document_and_nothing_is_granted_to_public(
    sender: Sender,
) -> None:
    assert [row["role"] for row in table_below("Outbox: roles")] == list(ROLES_OF["outbox"])
    granted = await sender.admin.fetch(
        "SELECT relname FROM pg_class, aclexplode(relacl) a"
        " WHERE relnamespace = 'public'::regnamespace AND a.grantee = 0"
        " UNION ALL SELECT proname FROM pg_proc,"
        " aclexplode(coalesce(proacl, acldefault('f', proowner))) a"
        " WHERE pronamespace = 'public'::regnamespace AND a.grantee = 0"
    )
    assert granted == []
    for role in ROLES_OF["outbox"]:
        found = await sender.admin.fetchrow("SELECT * FROM pg_roles WHERE rolname = $1", role)
        dangerous = ("rolsuper", "rolcreaterole", "rolcreatedb", "rolreplication", "rolbypassrls")
        assert not any(found[name] for name in dangerous), role
