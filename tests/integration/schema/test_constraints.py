"""What PostgreSQL itself refuses, to the very role that writes the chain."""

import asyncpg
import pytest

from chain_kernel.sql import OWNER, RECEIVER_WRITER, SEQUENCER_WRITER

from .conftest import Connect

SEAL = "decode(repeat('73', 32), 'hex')"
_TWICE = asyncpg.UniqueViolationError
_NO_PARENT = asyncpg.ForeignKeyViolationError
_CHECK = asyncpg.CheckViolationError
_NOT_ALLOWED = asyncpg.InsufficientPrivilegeError


def batch(chain_id: int, first: int, last: int, pid: int, rows: int, seal: str = SEAL) -> str:
    return f"""
        INSERT INTO chain_batch
        (chain_id, first_id, last_id, prev_last_id, row_count, epoch, seal, committed_at)
        VALUES ({chain_id}, {first}, {last}, {pid}, {rows}, 1, {seal}, now())
    """  # noqa: S608 - numbers


def event(id_: int, pid: int, chain_id: int = 1) -> str:
    return f"""
        INSERT INTO chain_page
        VALUES ({chain_id}, {id_}, {id_}, '{{{id_}}}', '{{{pid}}}', '{{k}}', '{{0}}', '{{""}}')
    """  # noqa: S608 - numbers


def term(chain_id: int, epoch: int, nonce: str = "31", length: int = 16, key: int = 32) -> str:
    return f"""
        INSERT INTO chain_term
        (chain_id, epoch, nonce, frame_key, owner, after_id, system_identifier, timeline)
        VALUES ({chain_id}, {epoch}, decode(repeat('{nonce}', {length}), 'hex'),
                decode(repeat('00', {key}), 'hex'), 'o', 0, 1, 1)
    """  # noqa: S608 - numbers


def checkpoint(head: int, batch_last_id: int) -> str:
    return f"INSERT INTO receiver_checkpoint VALUES (1, 'm', {head}, {batch_last_id}, {SEAL}, 1)"  # noqa: S608


@pytest.fixture
async def writer(connect: Connect) -> asyncpg.Connection:
    """The sequencer's role, on a chain that has one batch of the ids 1 to 5."""
    connection = await connect(SEQUENCER_WRITER)
    await connection.execute("UPDATE chain_head SET epoch = 1, last_id = 5, published_id = 5")
    await connection.execute(batch(1, 1, 5, 0, 5))
    return connection


REFUSED: list[tuple[str, str, type[Exception]]] = [
    # why, the statement, the rule
    ("a second child of the genesis row", batch(1, 6, 9, 0, 4), _TWICE),
    ("4 ends no batch", batch(1, 6, 9, 4, 4), _NO_PARENT),
    ("8 is no row at all", batch(1, 9, 12, 8, 4), _NO_PARENT),
    ("chain 2 has no genesis row", batch(2, 1, 5, 0, 5), _NOT_ALLOWED),
    ("the parent is of chain 1", batch(2, 6, 9, 5, 4), _NOT_ALLOWED),
    ("first_id = pid", batch(1, 5, 9, 5, 5), _CHECK),
    ("first_id < pid", batch(1, 4, 9, 5, 5), _CHECK),
    ("first_id > last_id", batch(1, 9, 8, 5, 1), _CHECK),
    ("a count below 0", batch(1, 6, 9, 5, -1), _CHECK),
    ("a seal cut off", batch(1, 6, 9, 5, 4, "'short'"), _CHECK),
    ("pid = id", event(7, 7), _CHECK),
    ("pid > id", event(7, 100), _CHECK),
    ("no partition", event(300, 5), _CHECK),
    ("no partition at all", event(2**63 - 1, 5), _CHECK),
    ("no partition of that chain", event(1, 0, chain_id=2), _CHECK),
    ("published above persisted", "UPDATE chain_head SET published_id = 6", _CHECK),
    ("persisted below published", "UPDATE chain_head SET last_id = 4", _CHECK),
    ("no seal", "UPDATE chain_head SET last_seal = ''", _CHECK),
    ("a place below 0", "INSERT INTO chain_intake VALUES (1, 'file:a', -1, '')", _CHECK),
    ("no such chain", "INSERT INTO chain_intake VALUES (9, 'file:a', 1, '')", _NO_PARENT),
    ("nothing skipped", "INSERT INTO chain_skip VALUES (1, 5, 5, 1)", _CHECK),
]


async def test_what_does_not_continue_the_chain_is_refused(writer: asyncpg.Connection) -> None:
    for why, statement, error in REFUSED:
        with pytest.raises(asyncpg.PostgresError) as caught:
            await writer.execute(statement)
        assert caught.type is error, why
        assert caught.value.detail is None or "chain_head" not in statement, "the salt is in no log"
    await writer.execute(event(7, 5))
    with pytest.raises(_TWICE):
        await writer.execute(event(7, 6))
    await writer.execute(batch(1, 90, 99, 5, 2))
    assert await writer.fetchval("SELECT count(*) FROM chain_batch") == 3


async def test_two_rivals_cannot_fork(writer: asyncpg.Connection, connect: Connect) -> None:
    rival = await connect(SEQUENCER_WRITER)
    await rival.execute("SET lock_timeout = '100ms'")
    transaction = writer.transaction()
    await transaction.start()
    await writer.execute(batch(1, 6, 9, 5, 4))
    with pytest.raises(asyncpg.LockNotAvailableError):  # it waits for the first one's outcome
        await rival.execute(batch(1, 6, 8, 5, 3))
    await transaction.commit()
    with pytest.raises(_TWICE):
        await rival.execute(batch(1, 6, 8, 5, 3))


async def test_unfit_term_is_refused(catalog: asyncpg.Connection) -> None:
    # By the table itself: row security keeps the writer from most of it before.
    await catalog.execute(term(1, 1, "00"))
    for statement, error in (
        (term(1, 1), _TWICE),
        (term(1, 2, "00"), _TWICE),
        (term(1, 0), _CHECK),
        (term(1, 2, length=0), _CHECK),
        (term(1, 2, key=0), _CHECK),
        (term(9, 1), _NO_PARENT),
    ):
        with pytest.raises(error):
            await catalog.execute(statement)


async def test_checkpoint_with_its_batch_behind_its_head_is_refused(connect: Connect) -> None:
    receiver = await connect(RECEIVER_WRITER)
    with pytest.raises(_CHECK):
        await receiver.execute(checkpoint(5, 6))
    await receiver.execute(checkpoint(5, 5))
    with pytest.raises(_TWICE):
        await receiver.execute(checkpoint(5, 5))


@pytest.mark.usefixtures("writer")
async def test_owner_itself_cannot_fork_the_chain(catalog: asyncpg.Connection) -> None:
    await catalog.execute(f"SET ROLE {OWNER}")
    with pytest.raises(_TWICE):
        await catalog.execute(batch(1, 6, 9, 0, 4))
    with pytest.raises(_NO_PARENT):
        await catalog.execute("DELETE FROM chain_batch WHERE last_id = 0")
