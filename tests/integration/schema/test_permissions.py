"""What the login roles try, and what partitions and members of roles are by the server's catalogs.

`test_facts` compares every right; `unit/house/test_generated`, those that the page shows.
"""

import asyncpg
import pytest

from chain_kernel.sql import GAP_READER, LOGIN_ROLES, OWNER
from chain_kernel.sql import SEQUENCER_WRITER as WRITER

from .conftest import Connect

_TABLES = """
SELECT c.oid, c.relname::text AS name, pg_get_userbyid(c.relowner)::text AS owner,
       c.relispartition AS is_partition
  FROM pg_class c
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
"""


@pytest.fixture
async def catalog(connect: Connect) -> asyncpg.Connection:
    return await connect("postgres")


async def test_partitions_can_be_reached_only_through_their_table(
    catalog: asyncpg.Connection,
) -> None:
    partitions = [table for table in await catalog.fetch(_TABLES) if table["is_partition"]]
    assert len(partitions) == 4
    for role in LOGIN_ROLES:
        for table in partitions:
            query = "SELECT has_any_column_privilege($1, $2::oid, 'SELECT, INSERT, UPDATE')"
            assert not await catalog.fetchval(query, role, table["oid"]), (role, table["name"])


async def test_login_roles_are_members_of_nothing_and_make_nothing(
    catalog: asyncpg.Connection,
) -> None:
    for role in LOGIN_ROLES:
        assert not await catalog.fetchval("SELECT pg_has_role($1, $2, 'MEMBER')", role, OWNER)
        assert not await catalog.fetchval(
            "SELECT has_schema_privilege($1, 'public', 'CREATE')", role
        )
        member_of = "SELECT count(*) FROM pg_auth_members WHERE member = $1::text::regrole"
        assert await catalog.fetchval(member_of, role) == 0


async def test_writer_ends_its_own_alone(connect: Connect, catalog: asyncpg.Connection) -> None:
    writer, paused, reader = await connect(WRITER), await connect(WRITER), await connect(GAP_READER)
    terminate = "SELECT pg_terminate_backend($1, 5000)"
    assert await writer.fetchval(terminate, paused.get_server_pid()) is True
    for other in (reader, catalog):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await writer.fetchval(terminate, other.get_server_pid())
