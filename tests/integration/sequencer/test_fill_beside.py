"""A fill beside a sequencer that writes as fast as it can: neither starves the other."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import pytest

from chain_kernel.sql import GAP_READER
from gapfill import GapReader, GapReaderConfig
from sequencer import Order, Sequencer, open_sequencer

from .conftest import MakeChain

ROWS = 5_000
BATCH_ROWS = 500
WRITTEN_MEANWHILE = 20 * BATCH_ROWS
READERS = 2


def batch(number: int) -> list[Order]:
    start = number * BATCH_ROWS
    return [Order(f"client#{n}", bytes(100)) for n in range(start, start + BATCH_ROWS)]


async def write_on(sequencer: Sequencer, number: int) -> None:
    """Submit batch after batch, three under way, until cancelled."""
    while True:
        await asyncio.gather(*(sequencer.submit_many(batch(number + n)) for n in range(3)))
        number += 3


async def fill_all(config: GapReaderConfig) -> list[int]:
    """The ids of the first rows of the chain, by one fill."""
    reader = GapReader(config)
    try:
        start = (await reader.standing(0)).mark
        assert start is not None
        async with aclosing(reader.runs(start, ROWS)) as runs:
            return [event.id async for run in runs for event in run.events]
    finally:
        await reader.close()


@pytest.mark.guarantee("G19")
async def test_fills_beside_a_writer_at_full_speed_end_and_the_writer_goes_on(
    make_chain: MakeChain, role_dsn: Callable[[str], str]
) -> None:
    chain = await make_chain(batch_rows_max=BATCH_ROWS)
    config = GapReaderConfig(database=role_dsn(GAP_READER), chain_id=chain.chain_id)
    async with open_sequencer(chain.config) as sequencer:
        for number in range(ROWS // BATCH_ROWS):
            await sequencer.submit_many(batch(number))
        writing = asyncio.create_task(write_on(sequencer, ROWS // BATCH_ROWS))
        head = sequencer.stats().head_persisted
        # Ends once both have come on; a writer that stopped during fills would never get there.
        while sequencer.stats().head_persisted < head + WRITTEN_MEANWHILE:
            filled = await asyncio.gather(*(fill_all(config) for _ in range(READERS)))
            assert filled == [list(range(1, ROWS + 1))] * READERS
        assert not writing.done()
        writing.cancel()
