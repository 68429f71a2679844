"""Each role of the inbox may do what docs/permissions.md says, by the catalogs of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chain_kernel.sql import OWNER
from outbox.acts import DeadLetterFilter, DeadLetters
from outbox.consumer.inbox import REFUSED, Inbox
from outbox.message import draw_message_ids
from outbox.roles import ROLES_OF
from tests.permissions_page import rights_below, table_below

from .test_inbox_schema import delivery

if TYPE_CHECKING:
    import asyncpg

_COLUMNS = """
SELECT c.oid, c.relname::text AS name, a.attnum, a.attname::text AS column
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
   AND NOT a.attisdropped AND NOT c.relispartition AND c.relname <> 'effect'
"""
_OF_COLUMNS = {"S": "SELECT", "I": "INSERT", "U": "UPDATE"}
_OF_TABLES = {"D": "DELETE", "T": "TRUNCATE", "R": "TRIGGER"}


async def test_column_rights_of_each_role_are_those_of_the_document(
    admin: asyncpg.Connection,
) -> None:
    real: dict[tuple[str, str], dict[str, str]] = {}
    for found in await admin.fetch(_COLUMNS):
        place = real.setdefault((found["name"], found["column"]), {})
        for role in ROLES_OF["inbox"]:
            letters = ""
            for letter, right in _OF_COLUMNS.items():
                query = "SELECT has_column_privilege($1::text, $2::oid, $3::smallint, $4)"
                if await admin.fetchval(query, role, found["oid"], found["attnum"], right):
                    letters += letter
            for letter, right in _OF_TABLES.items():
                query = "SELECT has_table_privilege($1::text, $2::oid, $3)"
                if await admin.fetchval(query, role, found["oid"], right):
                    letters += letter
            place[role] = letters
    assert real == rights_below("Inbox: tables, column by column", ROLES_OF["inbox"], real)


async def test_functions_and_who_may_call_them_are_those_of_the_document(
    admin: asyncpg.Connection,
) -> None:
    written = {row["function"]: row for row in table_below("Inbox: functions")}
    functions = await admin.fetch(
        "SELECT oid, oid::regprocedure::text AS name, proconfig::text AS settings,"
        " pg_get_userbyid(proowner)::text AS owner"
        " FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    )
    assert {row["name"] for row in functions} == set(written)
    for row in functions:
        assert row["owner"] == OWNER
        assert "search_path=pg_catalog, public, pg_temp" in row["settings"], row["name"]
        for role in ROLES_OF["inbox"]:
            query = "SELECT has_function_privilege($1::text, $2::oid, 'EXECUTE')"
            allowed = await admin.fetchval(query, role, row["oid"])
            assert ("X" if allowed else "-") == written[row["name"]][role], (role, row["name"])


async def test_roles_are_those_of_the_document_and_nothing_is_granted_to_public(
    admin: asyncpg.Connection,
) -> None:
    assert [row["role"] for row in table_below("Inbox: roles")] == list(ROLES_OF["inbox"])
    granted = await admin.fetch(
        "SELECT relname FROM pg_class, aclexplode(relacl) a"
        " WHERE relnamespace = 'public'::regnamespace AND a.grantee = 0"
        " UNION ALL SELECT proname FROM pg_proc,"
        " aclexplode(coalesce(proacl, acldefault('f', proowner))) a"
        " WHERE pronamespace = 'public'::regnamespace AND a.grantee = 0"
    )
    assert granted == []


async def test_operator_acts_on_dead_letters_with_no_other_rights(
    admin: asyncpg.Connection,
) -> None:
    """All statements of the acts run as the role; what they do is tested elsewhere."""
    inbox = await Inbox.open(admin, "clearing", 10.0)
    for message_id in draw_message_ids(2):
        letter = delivery(message_id, b"K")
        await inbox.bury(admin, letter, failures=1, reason=REFUSED, error="no")
    await admin.execute("SET ROLE outbox_operator")
    letters = DeadLetters(admin)
    first, second = await letters.list(DeadLetterFilter(consumer="clearing"))
    assert await letters.retry(first, actor="anna", reason="fixed")
    assert await letters.abandon(second, actor="anna", reason="settled")
    assert len(await letters.show(second.message_id)) == 1
    await admin.execute("RESET ROLE")
    logins = await admin.fetch("SELECT login FROM inbox_act")
    assert {row["login"] for row in logins} == {await admin.fetchval("SELECT session_user")}
