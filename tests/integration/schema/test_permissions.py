"""What the login roles try, and what partitions and members of roles are by the server's catalogs.

`test_facts` compares every right; `unit/house/test_permissions`, those that the page shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from chain_kernel.sql import AUDITOR, GAP_READER, LOGIN_ROLES, OWNER, RECEIVER_WRITER
from chain_kernel.sql import SEQUENCER_WRITER as WRITER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Connect = Callable[[str], Awaitable[asyncpg.Connection[Any]]]

_TABLES = """
SELECT c.oid, c.relname::text AS name, pg_get_userbyid(c.relowner)::text AS owner,
       c.relispartition AS is_partition
  FROM pg_class c
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
"""


@pytest.fixture
async def catalog(connect: Connect) -> asyncpg.Connection[Any]:
    return await connect("postgres")


async def test_partitions_can_be_reached_only_through_their_table(
    catalog: asyncpg.Connection[Any],
) -> None:
    partitions = [table for table in await catalog.fetch(_TABLES) if table["is_partition"]]
    assert len(partitions) == 4
    for role in LOGIN_ROLES:
        for table in partitions:
            query = "SELECT has_any_column_privilege($1, $2::oid, 'SELECT, INSERT, UPDATE')"
            assert not await catalog.fetchval(query, role, table["oid"]), (role, table["name"])


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
