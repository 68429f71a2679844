"""Chains are made once; their partitions are made ahead, without standing in anybody's way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from chain_kernel.sql import GAP_READER, SEQUENCER_WRITER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Connect = Callable[[str], Awaitable[asyncpg.Connection[Any]]]

GENESIS_SEAL = bytes(range(32))
_CREATE = "SELECT chain_create($1, $2, $3, $4, $5)"
_EXTEND = "SELECT chain_page_extend($1, $2)"
_EVENT = """
    INSERT INTO chain_page
    VALUES (1, $1::bigint, $1, ARRAY[$1], ARRAY[$2::bigint], '{k}', '{0}', '{""}')
"""
_PARTITIONS = """
SELECT array_agg(c.relname::text ORDER BY length(c.relname), c.relname)
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'chain_page_1'::regclass
"""
_STRAY_TABLES = """
SELECT relname::text FROM pg_class
 WHERE relname LIKE 'chain_page_1_%' AND relkind = 'r' AND NOT relispartition
"""


def names(*numbers: int) -> list[str]:
    return [f"chain_page_1_{number}" for number in numbers]


@pytest.fixture
async def superuser(connect: Connect) -> asyncpg.Connection[Any]:
    return await connect("postgres")


@pytest.fixture
async def writer(connect: Connect) -> asyncpg.Connection[Any]:
    return await connect(SEQUENCER_WRITER)


# ------------------------------------------------------------------------------------ chain_create


async def test_create_makes_head_genesis_row_and_three_partitions(
    superuser: asyncpg.Connection[Any],
) -> None:
    head = await superuser.fetchrow("SELECT * FROM chain_head")
    assert (head["last_id"], head["published_id"], head["epoch"]) == (0, 0, 0)
    assert (head["last_seal"], head["topic"]) == (GENESIS_SEAL, "t.1")
    genesis = await superuser.fetchrow("SELECT * FROM chain_batch")
    assert (genesis["first_id"], genesis["last_id"], genesis["prev_last_id"]) == (0, 0, None)
    assert (genesis["row_count"], genesis["seal"]) == (0, GENESIS_SEAL)
    assert await superuser.fetchval(_PARTITIONS) == names(0, 1, 2)


async def test_create_twice_returns_false_and_changes_nothing(
    superuser: asyncpg.Connection[Any],
) -> None:
    before = await superuser.fetch("SELECT * FROM chain_head")
    assert await superuser.fetchval(_CREATE, 1, b"x" * 32, "other", 3, 7) is False
    assert await superuser.fetch("SELECT * FROM chain_head") == before
    assert await superuser.fetchval("SELECT count(*) FROM chain_batch") == 1


async def test_create_of_one_chain_by_many_at_once_makes_it_once(connect: Connect) -> None:
    rivals = [await connect("postgres") for _ in range(5)]
    made = await asyncio.gather(
        *(rival.fetchval(_CREATE, 2, GENESIS_SEAL, "t.2", 0, 100) for rival in rivals)
    )
    assert sorted(made) == [False] * 4 + [True]


_REFUSED: list[tuple[tuple[Any, ...], type[Exception]]] = [
    ((0, GENESIS_SEAL, "t.0", 0, 100), asyncpg.CheckViolationError),
    ((-1, GENESIS_SEAL, "t.0", 0, 100), asyncpg.CheckViolationError),
    ((2, b"short", "t.2", 0, 100), asyncpg.CheckViolationError),
    ((2, GENESIS_SEAL, "t.2", 0, 0), asyncpg.CheckViolationError),
    ((2, GENESIS_SEAL, None, 0, 100), asyncpg.NotNullViolationError),
    ((2, GENESIS_SEAL, "t.1", 0, 100), asyncpg.UniqueViolationError),  # chain 1's topic
    ((2, GENESIS_SEAL, "t.2", 0, 2**62), asyncpg.NumericValueOutOfRangeError),
]


async def test_create_with_unfit_value_is_refused_whole(
    superuser: asyncpg.Connection[Any],
) -> None:
    for arguments, error in _REFUSED:
        with pytest.raises(error):
            await superuser.fetchval(_CREATE, *arguments)
    assert await superuser.fetchval("SELECT count(*) FROM chain_head") == 1
    assert await superuser.fetchval("SELECT to_regclass('chain_page_2')") is None


async def test_created_chain_with_the_largest_number_takes_rows(
    superuser: asyncpg.Connection[Any],
) -> None:
    chain = 2**31 - 1
    assert await superuser.fetchval(_CREATE, chain, GENESIS_SEAL, "t.max", 0, 2**40)
    await superuser.execute(
        """INSERT INTO chain_page VALUES ($1, 1, 1, '{1}', '{0}', '{k}', '{0}', '{""}')""", chain
    )


# ------------------------------------------------------------------------------ chain_page_extend


async def test_extend_makes_the_partition_of_the_id_and_two_behind_it(
    superuser: asyncpg.Connection[Any], writer: asyncpg.Connection[Any]
) -> None:
    made = [0, 1, 2]
    for until_id, more in ((0, []), (99, []), (100, [3]), (250, [4]), (7000, [70, 71, 72])):
        await writer.execute(_EXTEND, 1, until_id)
        made += more
        assert await superuser.fetchval(_PARTITIONS) == names(*made), until_id
        await writer.execute(_EVENT, until_id + 200, 0)


async def test_extend_again_changes_nothing(
    superuser: asyncpg.Connection[Any], writer: asyncpg.Connection[Any]
) -> None:
    await writer.execute(_EXTEND, 1, 555)
    before = await superuser.fetchval(_PARTITIONS)
    await writer.execute(_EXTEND, 1, 555)
    await writer.execute(_EXTEND, 1, 501)
    assert await superuser.fetchval(_PARTITIONS) == before


async def test_extend_beyond_the_ids_is_refused(
    superuser: asyncpg.Connection[Any], writer: asyncpg.Connection[Any]
) -> None:
    for until_id in (-1, -(2**63), 2**63 - 1, 2**63 - 400):
        with pytest.raises(asyncpg.RaiseError, match="out of range"):
            await writer.execute(_EXTEND, 1, until_id)
    assert await superuser.fetchval(_PARTITIONS) == names(0, 1, 2)


async def test_extend_to_the_last_ids_still_works(
    superuser: asyncpg.Connection[Any], writer: asyncpg.Connection[Any]
) -> None:
    await writer.execute(_EXTEND, 1, 2**63 - 1 - 400)
    assert len(await superuser.fetchval(_PARTITIONS)) == 6


async def test_extend_of_a_chain_never_created_is_refused(
    writer: asyncpg.Connection[Any],
) -> None:
    with pytest.raises(asyncpg.NoDataFoundError):
        await writer.execute(_EXTEND, 2, 1)


async def test_partitions_have_the_rules_of_the_table(superuser: asyncpg.Connection[Any]) -> None:
    query = "SELECT contype::text FROM pg_constraint WHERE conrelid = $1::regclass"
    rules = {
        name: sorted(row[0] for row in await superuser.fetch(query, name) if row[0] in "cp")
        for name in ("chain_page_1_0", "chain_page_1_2")
    }
    assert set(map(tuple, rules.values())) == {("c", "c", "c", "p")}


async def test_extends_by_many_at_once_all_succeed(
    superuser: asyncpg.Connection[Any], connect: Connect
) -> None:
    writers = [await connect(SEQUENCER_WRITER) for _ in range(6)]
    await asyncio.gather(
        *(writer.execute(_EXTEND, 1, 300 + 100 * (n % 3)) for n, writer in enumerate(writers))
    )
    assert await superuser.fetchval(_PARTITIONS) == names(*range(8))
    assert await superuser.fetch(_STRAY_TABLES) == []


async def test_extend_does_not_wait_for_an_open_reader_or_writer(
    superuser: asyncpg.Connection[Any], writer: asyncpg.Connection[Any], connect: Connect
) -> None:
    reader, extender = await connect(GAP_READER), await connect(SEQUENCER_WRITER)
    async with reader.transaction(), writer.transaction():
        await writer.execute(_EVENT, 1, 0)
        await reader.fetch("SELECT * FROM chain_page WHERE chain_id = 1")
        await extender.execute(_EXTEND, 1, 900)
    # A transaction that has written to the chain already does not see partitions attached since.
    await writer.execute(_EVENT, 905, 1)
    assert await superuser.fetchval("SELECT count(*) FROM chain_page") == 2


async def test_open_extend_holds_up_neither_reader_nor_writer(
    superuser: asyncpg.Connection[Any], writer: asyncpg.Connection[Any], connect: Connect
) -> None:
    reader, extender = await connect(GAP_READER), await connect(SEQUENCER_WRITER)
    for connection in (reader, writer):
        await connection.execute("SET lock_timeout = '1s'")
    async with extender.transaction():
        await extender.execute(_EXTEND, 1, 900)
        await writer.execute(_EVENT, 1, 0)
        await writer.execute("UPDATE chain_head SET last_id = 1 WHERE chain_id = 1")
        assert len(await reader.fetch("SELECT * FROM chain_page WHERE chain_id = 1")) == 1
    assert len(await superuser.fetchval(_PARTITIONS)) == 6


async def test_extend_behind_a_locked_table_gives_up_and_leaves_nothing(
    superuser: asyncpg.Connection[Any], writer: asyncpg.Connection[Any]
) -> None:
    async with superuser.transaction():
        await superuser.execute("LOCK TABLE chain_page_1 IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await writer.execute(_EXTEND, 1, 900)
    assert await superuser.fetch(_STRAY_TABLES) == []
    await writer.execute(_EXTEND, 1, 900)
    assert await superuser.fetchval(_PARTITIONS) == names(0, 1, 2, 9, 10, 11)
