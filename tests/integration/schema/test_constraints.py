"""What PostgreSQL itself refuses, to the very role that writes the chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from chain_kernel.sql import OWNER, RECEIVER_WRITER, SEQUENCER_WRITER
from local_stack.postgres import SUPERUSER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Connect = Callable[[str], Awaitable[asyncpg.Connection[Any]]]

SEAL = b"s" * 32
_TWICE = asyncpg.UniqueViolationError
_NO_PARENT = asyncpg.ForeignKeyViolationError
_CHECK = asyncpg.CheckViolationError
_NOT_ALLOWED = asyncpg.InsufficientPrivilegeError
_BATCH = """
INSERT INTO chain_batch
    (chain_id, first_id, last_id, prev_last_id, row_count, epoch, seal, committed_at)
VALUES ($1, $2, $3, $4, $5, 1, $6, now())
"""
_EVENT = """
    INSERT INTO chain_page
    VALUES (1, $1::bigint, $1, ARRAY[$1], ARRAY[$2::bigint], '{k}', '{0}', '{""}')
"""


@pytest.fixture
async def writer(connect: Connect) -> asyncpg.Connection[Any]:
    """The sequencer's role, on a chain that has one batch of the ids 1 to 5."""
    connection = await connect(SEQUENCER_WRITER)
    await connection.execute("UPDATE chain_head SET epoch = 1")
    await connection.execute(_BATCH, 1, 1, 5, 0, 5, SEAL)
    return connection


async def test_batch_behind_the_last_one_is_accepted_with_skipped_ids(
    writer: asyncpg.Connection[Any],
) -> None:
    await writer.execute(_BATCH, 1, 90, 99, 5, 2, SEAL)
    assert await writer.fetchval("SELECT count(*) FROM chain_batch") == 3


@dataclass
class Refused:
    """A batch that PostgreSQL must refuse, and by which rule."""

    why: str
    batch: tuple[Any, ...]
    error: type[Exception]


_REFUSED = [
    Refused("a second child of the genesis row", (1, 6, 9, 0, 4, SEAL), _TWICE),
    Refused("4 ends no batch", (1, 6, 9, 4, 4, SEAL), _NO_PARENT),
    Refused("8 is no row at all", (1, 9, 12, 8, 4, SEAL), _NO_PARENT),
    Refused("chain 2 has no genesis row", (2, 1, 5, 0, 5, SEAL), _NOT_ALLOWED),
    Refused("the parent is of chain 1", (2, 6, 9, 5, 4, SEAL), _NOT_ALLOWED),
    Refused("first_id = pid", (1, 5, 9, 5, 5, SEAL), _CHECK),
    Refused("first_id < pid", (1, 4, 9, 5, 5, SEAL), _CHECK),
    Refused("first_id > last_id", (1, 9, 8, 5, 1, SEAL), _CHECK),
    Refused("a count below 0", (1, 6, 9, 5, -1, SEAL), _CHECK),
    Refused("a seal cut off", (1, 6, 9, 5, 4, SEAL[:31]), _CHECK),
]


async def test_batch_that_does_not_continue_the_chain_is_refused(
    writer: asyncpg.Connection[Any],
) -> None:
    for case in _REFUSED:
        with pytest.raises(asyncpg.PostgresError) as caught:
            await writer.execute(_BATCH, *case.batch)
        assert caught.type is case.error, case.why
    assert await writer.fetchval("SELECT count(*) FROM chain_batch") == 2


async def test_two_batches_with_one_parent_in_two_transactions_cannot_both_commit(
    writer: asyncpg.Connection[Any], connect: Connect
) -> None:
    rival = await connect(SEQUENCER_WRITER)
    await rival.execute("SET lock_timeout = '100ms'")
    transaction = writer.transaction()
    await transaction.start()
    await writer.execute(_BATCH, 1, 6, 9, 5, 4, SEAL)
    with pytest.raises(asyncpg.LockNotAvailableError):  # it waits for the first one's outcome
        await rival.execute(_BATCH, 1, 6, 8, 5, 3, SEAL)
    await transaction.commit()
    with pytest.raises(asyncpg.UniqueViolationError):
        await rival.execute(_BATCH, 1, 6, 8, 5, 3, SEAL)


async def test_event_with_pid_not_below_its_id_is_refused(
    writer: asyncpg.Connection[Any],
) -> None:
    for pid in (7, 8, 100):
        with pytest.raises(asyncpg.CheckViolationError):
            await writer.execute(_EVENT, 7, pid)


async def test_second_event_with_an_id_is_refused(writer: asyncpg.Connection[Any]) -> None:
    await writer.execute(_EVENT, 7, 5)
    with pytest.raises(asyncpg.UniqueViolationError):
        await writer.execute(_EVENT, 7, 6)


async def test_event_outside_every_partition_is_refused(
    writer: asyncpg.Connection[Any],
) -> None:
    for id_ in (300, 2**63 - 1):
        with pytest.raises(asyncpg.CheckViolationError, match="no partition"):
            await writer.execute(_EVENT, id_, 5)
    with pytest.raises(asyncpg.CheckViolationError, match="no partition"):
        await writer.execute(
            """INSERT INTO chain_page VALUES (2, 1, 1, '{1}', '{0}', '{k}', '{0}', '{""}')"""
        )


async def test_head_with_published_above_persisted_is_refused(
    writer: asyncpg.Connection[Any],
) -> None:
    await writer.execute("UPDATE chain_head SET last_id = 5, published_id = 5")
    with pytest.raises(asyncpg.CheckViolationError) as refused:
        await writer.execute("UPDATE chain_head SET published_id = 6")
    assert refused.value.detail is None, "the row, with the salt of the keys, is in no log"
    with pytest.raises(asyncpg.CheckViolationError):
        await writer.execute("UPDATE chain_head SET last_id = 4")
    with pytest.raises(asyncpg.CheckViolationError):
        await writer.execute("UPDATE chain_head SET last_seal = ''")


async def test_intake_and_skip_of_impossible_ranges_are_refused(
    writer: asyncpg.Connection[Any],
) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        await writer.execute("INSERT INTO chain_intake VALUES (1, 'file:a', -1, '')")
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await writer.execute("INSERT INTO chain_intake VALUES (9, 'file:a', 1, '')")
    with pytest.raises(asyncpg.CheckViolationError):
        await writer.execute("INSERT INTO chain_skip VALUES (1, 5, 5, 1)")


_TERM = (
    "INSERT INTO chain_term (chain_id, epoch, nonce, frame_key, owner, after_id, system_identifier,"
    " timeline) VALUES ($1, $2, $3, $4, 'o', 0, 1, 1)"
)


async def test_term_without_a_key_or_a_second_time_is_refused(connect: Connect) -> None:
    # By the table itself: row security keeps the writer from most of it before.
    writer = await connect(SUPERUSER)
    await writer.execute(_TERM, 1, 1, bytes(16), bytes(32))
    with pytest.raises(asyncpg.UniqueViolationError):
        await writer.execute(_TERM, 1, 1, b"1" * 16, bytes(32))
    with pytest.raises(asyncpg.UniqueViolationError):
        await writer.execute(_TERM, 1, 2, bytes(16), bytes(32))
    for values in [(1, 0, b"1" * 16, bytes(32)), (1, 2, b"", bytes(32)), (1, 2, b"1" * 16, b"")]:
        with pytest.raises(asyncpg.CheckViolationError):
            await writer.execute(_TERM, *values)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await writer.execute(_TERM, 9, 1, b"1" * 16, bytes(32))


async def test_checkpoint_with_its_batch_behind_its_head_is_refused(connect: Connect) -> None:
    receiver = await connect(RECEIVER_WRITER)
    insert = "INSERT INTO receiver_checkpoint VALUES (1, 'matcher', $1, $2, $3, 1)"
    with pytest.raises(asyncpg.CheckViolationError):
        await receiver.execute(insert, 5, 6, SEAL)
    await receiver.execute(insert, 5, 5, SEAL)
    with pytest.raises(asyncpg.UniqueViolationError):
        await receiver.execute(insert, 5, 5, SEAL)


async def test_owner_itself_cannot_fork_the_chain(
    connect: Connect, writer: asyncpg.Connection[Any]
) -> None:
    superuser = await connect("postgres")
    await superuser.execute(f"SET ROLE {OWNER}")
    with pytest.raises(asyncpg.UniqueViolationError):
        await superuser.execute(_BATCH, 1, 6, 9, 0, 4, SEAL)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await superuser.execute("DELETE FROM chain_batch WHERE last_id = 0")
