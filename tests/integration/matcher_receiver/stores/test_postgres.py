"""The checkpoint as a row of a real PostgreSQL, with the role that may do little else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from chain_kernel.errors import (
    ChainMissing,
    CheckpointLost,
    ConnectError,
    RetryError,
    SchemaError,
    SettingError,
)
from chain_kernel.model import Mark
from chain_kernel.sql import RECEIVER_WRITER, load_sql
from local_stack.postgres import SUPERUSER
from matcher_receiver import CheckpointConfig, PostgresCheckpointStore
from tests.deadlines import deadline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from local_stack import PostgresServer
    from tests.builders.stored_chain import StoredChain
    from tests.integration.matcher_receiver.conftest import RoleDsn


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
    elsewhere = await asyncpg.connect(postgres_server.dsn(SUPERUSER, "postgres"))
    with pytest.raises(SettingError, match="connection was 'one to a database without chains'"):
        async with elsewhere.transaction():
            await store.save(0, mark(10), elsewhere)
    await elsewhere.close()
    # As one that holds a chain of the same number.
    await admin.execute("UPDATE schema_version SET database_id = gen_random_uuid()")
    connection = await asyncpg.connect(role_dsn(RECEIVER_WRITER))
    with pytest.raises(SettingError, match="connection was 'one to another database'"):
        async with connection.transaction():
            await store.save(0, mark(10), connection)
    await connection.close()
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
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND usename = 'receiver_writer' "
                "AND wait_event_type = 'Lock'"
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
    values = (chain_id, "matching", 10, 5, 5, "05" * 32, 3, None)
    assert await admin.fetch(save, *values) == []
    assert await store.load() == mark(10)


@pytest.mark.parametrize("is_gone", [False, True])
async def test_save_after_the_database_was_restored_says_what_was_found(
    store: PostgresCheckpointStore, admin: asyncpg.Connection, *, is_gone: bool
) -> None:
    await store.save(0, mark(10))
    await store.save(10, mark(20))
    await admin.execute(
        "DELETE FROM receiver_checkpoint"
        if is_gone
        else "UPDATE receiver_checkpoint SET head_delivered = 10, batch_last_id = 10"
    )
    found = "is gone" if is_gone else "was at 10"
    expected = f"{found}, expected 20: another receiver works under this name, the database was "
    with pytest.raises(CheckpointLost, match=expected + "restored from a backup"):
        await store.save(20, mark(30))
    assert await store.load() == (None if is_gone else mark(10))


async def test_load_after_its_backend_was_killed_is_a_retry_and_then_works(
    store: PostgresCheckpointStore, admin: asyncpg.Connection
) -> None:
    await store.save(0, mark(10))
    await admin.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND usename = 'receiver_writer'"
    )
    try:
        found = await store.load()
    except RetryError:
        found = await store.load()
    assert found == mark(10)


async def test_save_for_a_chain_that_was_never_created_is_reported(
    stored: StoredChain, config: CheckpointConfig
) -> None:
    missing = CheckpointConfig(database=config.database, chain_id=2**31 - 1, name="r")
    async with PostgresCheckpointStore(missing) as store:
        with pytest.raises(ChainMissing, match=str(2**31 - 1)):
            await store.save(0, mark(10))


async def test_load_without_a_schema_is_reported(empty_database: str) -> None:
    async with PostgresCheckpointStore(
        CheckpointConfig(database=empty_database, chain_id=7, name="r")
    ) as store:
        with pytest.raises(SchemaError):
            await store.load()


async def test_load_with_a_wrong_password_never_shows_it(config: CheckpointConfig) -> None:
    assert isinstance(config.database, str)
    parts = urlsplit(config.database)
    netloc = f"receiver_writer:unseen-password@{parts.hostname}:{parts.port}"
    dsn = urlunsplit(parts._replace(netloc=netloc))
    wrong = CheckpointConfig(database=dsn, chain_id=7, name="r")
    async with PostgresCheckpointStore(wrong) as store:
        with pytest.raises(ConnectError) as caught:
            await store.load()
    assert "unseen-password" not in str(caught.value) + repr(wrong)


async def test_role_may_keep_checkpoints_and_nothing_else(
    store: PostgresCheckpointStore, role_dsn: RoleDsn
) -> None:
    login = await asyncpg.connect(role_dsn(RECEIVER_WRITER))
    for statement in (
        "SELECT * FROM chain_page",
        "SELECT * FROM chain_batch",
        "SELECT last_id FROM chain_head",
        "UPDATE chain_head SET last_id = 0",
        "DELETE FROM receiver_checkpoint",
        "TRUNCATE receiver_checkpoint",
        """INSERT INTO chain_page VALUES (7, 1, 1, '{1}', '{0}', '{k}', '{0}', '{""}')""",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await login.execute(statement)
    await login.close()
