"""Fills through a pooler that gives each transaction another session."""

import asyncio
from pathlib import Path

import pytest

from chain_kernel.model import Event
from gapfill import GapReader, GapReaderConfig
from tests.pgbouncer import pgbouncer

from .conftest import CHAIN_ID, MakeStored

IGNORED = "extra_float_digits,jit,enable_bitmapscan,enable_seqscan"
READERS = 5


async def filled(dsn: str, until_id: int) -> list[Event]:
    config = GapReaderConfig(database=dsn, chain_id=CHAIN_ID, page_rows=10)
    async with GapReader(config) as reader:
        start = (await reader.standing(0)).mark
        assert start is not None
        return [event async for run in reader.runs(start, until_id) for event in run.events]


@pytest.mark.parametrize("ignores", ["", IGNORED], ids=["refusing", "ignoring"])
async def test_many_readers_fill_through_a_transaction_pooler(
    make_stored: MakeStored, gap_dsn: str, tmp_path: Path, ignores: str
) -> None:
    stored = await make_stored([30, 40, 50])
    rows = [event for batch in stored.chain.batches for event in batch.events]
    async with pgbouncer(gap_dsn, tmp_path, ignores=ignores) as dsn:
        found = await asyncio.gather(*(filled(dsn, rows[-1].id) for _ in range(READERS)))
    assert found == [rows] * READERS
