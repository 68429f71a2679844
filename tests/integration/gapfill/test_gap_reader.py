"""Reading what is missing, from a real PostgreSQL, with the role that may do nothing else."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from gapfill import GapReader, GapReaderConfig
from orderchain.errors import (
    ChainMissing,
    ConnectError,
    ForkFound,
    RowsArchived,
    RowsMissing,
    SchemaError,
    SealMismatch,
)
from orderchain.mark import Mark
from orderchain.run import Run
from orderchain.roles import GAP_READER
from tests.unit.matcher_receiver.chains import ids_of


async def fill(reader: GapReader, after: Mark, until_id: int) -> list[Run]:
    async with aclosing(reader.runs(after, until_id)) as runs:
        return [run async for run in runs]


async def test_standing_with_head_id_names_the_head_and_its_mark(make_stored, reader):
    stored = await make_stored([5, 12, 3])
    standing = await reader.standing(stored.chain.mark().id)
    head = stored.chain.head()
    assert standing.is_primary
    assert standing.mark == stored.chain.mark()
    assert standing.head == head


async def test_standing_with_row_inside_a_batch_names_the_batch_before(make_stored, reader):
    stored = await make_stored([5, 12])
    inside = stored.chain.batches[1].events[3].id
    standing = await reader.standing(inside)
    assert standing.mark == stored.chain.mark(inside)
    assert standing.mark.batch_last_id == stored.chain.batches[0].last_id


async def test_standing_with_zero_gives_the_genesis_seal(make_stored, reader):
    stored = await make_stored([2])
    standing = await reader.standing(0)
    assert standing.mark == Mark(id=0, batch_last_id=0, seal=stored.chain.genesis, epoch=0)


async def test_standing_with_unused_id_has_no_mark(make_stored, reader):
    stored = await make_stored([2])
    standing = await reader.standing(stored.chain.mark().id + 1_000)
    assert standing.mark is None


async def test_runs_with_many_pages_give_every_row_byte_for_byte(make_stored, reader):
    stored = await make_stored([5, 37, 1, 20])
    runs = await fill(reader, stored.chain.mark(0), stored.chain.mark().id)
    assert [event for run in runs for event in run.events] == stored.chain.events
    assert len(runs) == 7
    assert [run.end for run in runs] == [stored.chain.mark(run.last_id) for run in runs]


async def test_runs_with_start_and_end_inside_batches_give_just_the_range(make_stored, reader):
    stored = await make_stored([30, 30])
    ids = stored.chain.ids
    runs = await fill(reader, stored.chain.mark(ids[3]), ids[40])
    assert ids_of(runs) == ids[4:41]
    assert runs[-1].end == stored.chain.mark(ids[40])
