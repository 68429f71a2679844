"""The checkpoint as a row of a real PostgreSQL, with the role that may do little else."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from chain_kernel.errors import RetryError, SettingError
from chain_kernel.model import Mark
from chain_kernel.sql import RECEIVER_WRITER, load_sql
from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER
from matcher_receiver import CheckpointConfig, PostgresCheckpointStore
from tests.builders.stored_chain import StoredChain
from tests.deadlines import deadline
from tests.integration.matcher_receiver.conftest import RoleDsn
from tests.lock_waits import WAITING
from tests.opened import connected


def mark(at_id: int, seal: bytes = b"\5" * 32) -> Mark:
    return Mark(id=at_id, batch_last_id=at_id, seal=seal, epoch=3)


@pytest.fixture
def config(role_dsn: RoleDsn, chain_id: int) -> CheckpointConfig:
    return CheckpointConfig(database=role_dsn(RECEIVER_WRITER), chain_id=chain_id, name="matching")


@pytest.fixture
async def store(
    stored: StoredChain, config: CheckpointConfig
) -> AsyncIterator[PostgresCheckpointStore]:
    async with PostgresCheckpointStore(config) as made:
        yield made


async def test_save_over_a_connection_to_another_database_is_refused(
    store: PostgresCheckpointStore, admin: asyncpg.Connection, role_dsn: RoleDsn,
    postgres_server: PostgresServer,
) -> None:  # fmt: skip
    await store.load()
    async with connected(postgres_server.dsn(SUPERUSER, "postgres")) as elsewhere:
        with pytest.raises(SettingError, match="connection was 'one to a database without chains'"):
            async with elsewhere.transaction():
                await store.save(0, mark(10), elsewhere)
    # As one that holds a chain of the same number.
    await admin.execute("UPDATE schema_version SET database_id = gen_random_uuid()")
    async with connected(role_dsn(RECEIVER_WRITER)) as connection:
        with pytest.raises(SettingError, match="connection was 'one to another database'"):
            async with connection.transaction():
                await store.save(0, mark(10), connection)
    assert await admin.fetchval("SELECT count(*) FROM receiver_checkpoint") == 0


async def test_save_whose_answer_was_lost_is_made_again(
    store: PostgresCheckpointStore, admin: asyncpg.Connection, chain_id: int
) -> None:
    await store.save(0, mark(10))
    # The statement is held up until its backend is killed: the client cannot know.
    for has_landed in (False, True):
        first = await store.load()
        assert first is not None
        end = mark(first.id + 10)
        blocker = admin.transaction()
        await blocker.start()
        await admin.execute(
            "SELECT FROM receiver_checkpoint WHERE chain_id = $1 FOR UPDATE", chain_id
        )
        saving = asyncio.ensure_future(store.save(first.id, end))
        await kill_waiting_backend(admin)
        with pytest.raises(RetryError):
            await saving
        await blocker.rollback()
        if has_landed:
            await admin.execute(
                "UPDATE receiver_checkpoint SET head_delivered = $2, batch_last_id = $2 "
                "WHERE chain_id = $1",
                chain_id,
                end.id,
            )
        await store.save(first.id, end)
        assert await store.load() == end


async def kill_waiting_backend(admin: asyncpg.Connection) -> None:
    killed = None
    async with deadline():
        while not killed:
            killed = await admin.fetchval(
                f"SELECT pg_terminate_backend(pid, 5000) FROM ({WAITING}) AS waiting"  # noqa: S608
            )


async def test_save_whose_wait_was_cancelled_may_still_land_and_is_gone_on_from(
    store: PostgresCheckpointStore, admin: asyncpg.Connection, chain_id: int
) -> None:
    """Also where the next save is for a later end, and the one before was cancelled as well."""
    await store.save(0, mark(10))
    blocker = admin.transaction()
    await blocker.start()
    await admin.execute("SELECT FROM receiver_checkpoint WHERE chain_id = $1 FOR UPDATE", chain_id)
    for end in (20, 30):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await store.save(10, mark(end))
    await blocker.rollback()
    # It was the first of the two that took place.
    await admin.execute(
        "UPDATE receiver_checkpoint SET head_delivered = 20, batch_last_id = 20 "
        "WHERE chain_id = $1",
        chain_id,
    )
    await store.save(10, mark(40))
    assert await store.load() == mark(40)


async def test_statement_of_a_save_itself_never_moves_a_place_back(
    store: PostgresCheckpointStore, admin: asyncpg.Connection, chain_id: int
) -> None:
    """The second line: what a program of another making sends, the database refuses as well."""
    await store.save(0, mark(10))
    save = load_sql("matcher_receiver", "queries.sql")["save"]
    values = (chain_id, "matching", 10, 5, 5, "05" * 32, 3, None, [], [])
    assert await admin.fetch(save, *values) == []
    assert await store.load() == mark(10)
