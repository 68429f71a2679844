"""The roles of the callback service and of decisions may do what docs/permissions.md says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from chain_kernel.sql import OWNER
from chainctl.schema.parts import PARTS
from outbox.roles import ROLES_OF
from tests.permissions_page import rights_below, table_below

from ..test_permissions import _COLUMNS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROLES = {"Callback": ROLES_OF["callback"], "Decision": ROLES_OF["decision"]}


@pytest.fixture(params=list(ROLES))
async def part(request: Any, empty_database: str) -> AsyncIterator[tuple[str, Any]]:
    connection = await asyncpg.connect(empty_database)
    async with connection.transaction():
        await connection.execute(PARTS[request.param.lower()].text())
    yield request.param, connection
    await connection.close()


async def test_column_rights_are_those_of_the_document(part: tuple[str, Any]) -> None:
    name, connection = part
    (role,) = ROLES[name]
    real: dict[tuple[str, str], str] = {}
    for found in await connection.fetch(_COLUMNS):
        letters = ""
        for right, letter in {"SELECT": "S", "INSERT": "I", "UPDATE": "U"}.items():
            query = "SELECT has_column_privilege($1::text, $2::oid, $3::smallint, $4)"
            if await connection.fetchval(query, role, found["oid"], found["attnum"], right):
                letters += letter
        for right, letter in {"DELETE": "D", "TRUNCATE": "T", "TRIGGER": "R"}.items():
            query = "SELECT has_table_privilege($1::text, $2::oid, $3)"
            if await connection.fetchval(query, role, found["oid"], right):
                letters += letter
        real[found["name"], found["column"]] = letters
    written = rights_below(f"{name}: tables, column by column", [role], real)
    assert real == {place: rights[role] for place, rights in written.items()}


async def test_functions_and_roles_are_those_of_the_document(part: tuple[str, Any]) -> None:
    name, connection = part
    assert tuple(row["role"] for row in table_below(f"{name}: roles")) == ROLES[name]
    functions = await connection.fetch(
        "SELECT oid, oid::regprocedure::text AS name, proconfig::text AS settings, proacl,"
        " pg_get_userbyid(proowner)::text AS owner"
        " FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    )
    if name == "Decision":
        written = {row["function"] for row in table_below("Decision: functions")}
        assert {row["name"] for row in functions} == written
    for row in functions:
        assert row["owner"] == OWNER
        assert "search_path=pg_catalog, public, pg_temp" in row["settings"], row["name"]
        for role in ROLES[name]:
            query = "SELECT has_function_privilege($1::text, $2::oid, 'EXECUTE')"
            assert await connection.fetchval(query, role, row["oid"])
        granted = await connection.fetchval(
            "SELECT count(*) FROM pg_proc, aclexplode(proacl) a"
            " WHERE pg_proc.oid = $1::oid AND a.grantee = 0", row["oid"],
        )  # fmt: skip
        assert granted == 0, row["name"]
