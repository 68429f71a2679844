"""Chains are made once; their partitions are made ahead, without standing in anybody's way."""

import asyncio
from typing import Any

import asyncpg
import pytest

from chain_kernel.sql import GAP_READER, SEQUENCER_WRITER

from .conftest import Connect

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
async def writer(connect: Connect) -> asyncpg.Connection:
    return await connect(SEQUENCER_WRITER)


async def test_create_makes_head_and_three_partitions(catalog: asyncpg.Connection) -> None:
    head = await catalog.fetchrow("SELECT * FROM chain_head")
    assert (head["last_id"], head["published_id"], head["epoch"]) == (0, 0, 0)
    assert (head["last_seal"], head["topic"]) == (GENESIS_SEAL, "t.1")
    genesis = await catalog.fetchrow("SELECT * FROM chain_batch")
    assert (genesis["first_id"], genesis["last_id"], genesis["prev_last_id"]) == (0, 0, None)
    assert (genesis["row_count"], genesis["seal"]) == (0, GENESIS_SEAL)
    assert await catalog.fetchval(_PARTITIONS) == names(0, 1, 2)


async def test_create_twice_changes_nothing(catalog: asyncpg.Connection) -> None:
    before = await catalog.fetch("SELECT * FROM chain_head")
    assert await catalog.fetchval(_CREATE, 1, b"x" * 32, "other", 3, 7) is False
    assert await catalog.fetch("SELECT * FROM chain_head") == before
    assert await catalog.fetchval("SELECT count(*) FROM chain_batch") == 1


_REFUSED: list[tuple[tuple[Any, ...], type[Exception]]] = [
    ((0, GENESIS_SEAL, "t.0", 0, 100), asyncpg.CheckViolationError),
    ((-1, GENESIS_SEAL, "t.0", 0, 100), asyncpg.CheckViolationError),
    ((2, b"short", "t.2", 0, 100), asyncpg.CheckViolationError),
    ((2, GENESIS_SEAL, "t.2", 0, 0), asyncpg.CheckViolationError),
    ((2, GENESIS_SEAL, None, 0, 100), asyncpg.NotNullViolationError),
    ((2, GENESIS_SEAL, "t.1", 0, 100), asyncpg.UniqueViolationError),  # chain 1's topic
    ((2, GENESIS_SEAL, "t.2", 0, 2**62), asyncpg.NumericValueOutOfRangeError),
]


async def test_create_with_unfit_value_is_refused_whole(catalog: asyncpg.Connection) -> None:
    for arguments, error in _REFUSED:
        with pytest.raises(error):
            await catalog.fetchval(_CREATE, *arguments)
    assert await catalog.fetchval("SELECT count(*) FROM chain_head") == 1
    assert await catalog.fetchval("SELECT to_regclass('chain_page_2')") is None


async def test_extend_makes_the_partition_of_the_id_and_two_behind_it(
    catalog: asyncpg.Connection, writer: asyncpg.Connection
) -> None:
    made = [0, 1, 2]
    for until_id, more in ((0, []), (99, []), (100, [3]), (250, [4]), (7000, [70, 71, 72])):
        await writer.execute(_EXTEND, 1, until_id)
        made += more
        assert await catalog.fetchval(_PARTITIONS) == names(*made), until_id
        await writer.execute(_EVENT, until_id + 200, 0)


async def test_many_extend_at_once(catalog: asyncpg.Connection, connect: Connect) -> None:
    writers = [await connect(SEQUENCER_WRITER) for _ in range(6)]
    await asyncio.gather(
        *(writer.execute(_EXTEND, 1, 300 + 100 * (n % 3)) for n, writer in enumerate(writers))
    )
    assert await catalog.fetchval(_PARTITIONS) == names(*range(8))
    assert await catalog.fetch(_STRAY_TABLES) == []


async def test_extend_does_not_wait_for_an_open_reader_or_writer(
    catalog: asyncpg.Connection, writer: asyncpg.Connection, connect: Connect
) -> None:
    reader, extender = await connect(GAP_READER), await connect(SEQUENCER_WRITER)
    async with reader.transaction(), writer.transaction():
        await writer.execute(_EVENT, 1, 0)
        await reader.fetch("SELECT * FROM chain_page WHERE chain_id = 1")
        await extender.execute(_EXTEND, 1, 900)
    # A transaction that has written to the chain already does not see partitions attached since.
    await writer.execute(_EVENT, 905, 1)
    assert await catalog.fetchval("SELECT count(*) FROM chain_page") == 2


async def test_open_extend_holds_up_neither_reader_nor_writer(
    catalog: asyncpg.Connection, writer: asyncpg.Connection, connect: Connect
) -> None:
    reader, extender = await connect(GAP_READER), await connect(SEQUENCER_WRITER)
    for connection in (reader, writer):
        await connection.execute("SET lock_timeout = '1s'")
    async with extender.transaction():
        await extender.execute(_EXTEND, 1, 900)
        await writer.execute(_EVENT, 1, 0)
        await writer.execute("UPDATE chain_head SET last_id = 1 WHERE chain_id = 1")
        assert len(await reader.fetch("SELECT * FROM chain_page WHERE chain_id = 1")) == 1
    assert len(await catalog.fetchval(_PARTITIONS)) == 6


async def test_extend_behind_a_locked_table_gives_up_and_leaves_nothing(
    catalog: asyncpg.Connection, writer: asyncpg.Connection
) -> None:
    async with catalog.transaction():
        await catalog.execute("LOCK TABLE chain_page_1 IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await writer.execute(_EXTEND, 1, 900)
    assert await catalog.fetch(_STRAY_TABLES) == []
    await writer.execute(_EXTEND, 1, 900)
    assert await catalog.fetchval(_PARTITIONS) == names(0, 1, 2, 9, 10, 11)
