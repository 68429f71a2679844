"""The role `gap_reader`, logged in as itself: it reads what a fill needs, and nothing else."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from chain_kernel.errors import ConnectError
from gapfill import GapReader

from .conftest import MakeStored

REFUSED_ALWAYS = [
    """INSERT INTO chain_page VALUES (7, 999, 999, '{999}', '{998}', '{k}', '{0}', '{""}')""",
    "UPDATE chain_page SET payloads = payloads",
    "DELETE FROM chain_page",
    "TRUNCATE chain_page",
    "INSERT INTO chain_batch VALUES (7, 999, 999, 3, 1, 1, decode(repeat('00', 32), 'hex'), now())",
    "UPDATE chain_batch SET seal = seal",
    "DELETE FROM chain_batch",
    "TRUNCATE chain_batch CASCADE",
    "UPDATE chain_head SET last_id = 0",
    "DELETE FROM chain_head",
    "UPDATE schema_version SET version = 2",
    "SELECT owner FROM chain_head",
    "SELECT backend_pid FROM chain_head",
    "SELECT * FROM chain_intake",
    "SELECT * FROM chain_skip",
    "SELECT * FROM receiver_checkpoint",
    "INSERT INTO receiver_checkpoint VALUES (7, 'x', 0, 0, '', 0)",
    "SELECT chain_create(8, decode(repeat('00', 32), 'hex'), 'topic', 0, 1000)",
    "SELECT chain_page_extend(7, 10000000)",
    "CREATE TABLE mine (x integer)",
    "SELECT * FROM chain_page FOR UPDATE",
    "LOCK TABLE chain_page IN SHARE MODE",
    "SET ROLE orderchain_owner",
    "SELECT pg_read_file('postgresql.conf')",
]


@pytest.fixture
async def gap_login(gap_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """The role, with its own read-only default switched off, as it may."""
    connection = await asyncpg.connect(gap_dsn)
    await connection.execute("SET default_transaction_read_only = off")
    yield connection
    await connection.close()


async def is_refused(login: asyncpg.Connection, statement: str) -> bool:
    transaction = login.transaction()
    await transaction.start()
    try:
        await login.execute(statement)
    except asyncpg.InsufficientPrivilegeError:
        return True
    finally:
        await transaction.rollback()
    return False


async def test_reader_with_a_login_that_may_not_read_names_the_login_the_role_and_the_table(
    make_stored: MakeStored, admin: asyncpg.Connection, reader: GapReader
) -> None:
    await make_stored([3])
    await admin.execute("REVOKE SELECT ON chain_batch, chain_page FROM gap_reader")
    with pytest.raises(ConnectError) as refused:
        await reader.standing(0)
    shown = "expected a login that is a member of gap_reader (login gap_reader: permission denied"
    assert f"{shown} for table chain_" in str(refused.value)


async def test_gap_reader_with_anything_but_a_fill_is_refused(
    make_stored: MakeStored, gap_login: asyncpg.Connection
) -> None:
    await make_stored([3])
    allowed = [text for text in REFUSED_ALWAYS if not await is_refused(gap_login, text)]
    assert allowed == []
