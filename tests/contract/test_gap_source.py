"""What every GapSource must do, shown on the one in memory and on the real gap reader alike."""

from typing import Any

import msgspec
import pytest

from chain_kernel.errors import BatchDamaged, ChainMissing, ForkFound, RowsMissing, SealMismatch
from chain_kernel.model import Mark, Run, is_linked
from chain_kernel.ports import GapSource
from chain_kernel.seal import Batch
from sequencer.core import SequencerCore
from tests.commits import commit

from .conftest import ChangeRow, OpenGaps, OpenStore
from .test_chain_store import next_batch, take_over


async def committed(open_store: OpenStore, *counts: int) -> list[Batch]:
    store = open_store()
    term = await take_over(store, "me")
    core = SequencerCore(term, takeover_skip_ids=0)
    batches = [next_batch(term, core, count) for count in counts]
    for batch in batches:
        await commit(store, batch, published_id=0)
    return batches


def mark_after(batch: Batch) -> Mark:
    last_id = batch.last_id
    return Mark(id=last_id, batch_last_id=last_id, seal=batch.seal, epoch=batch.epoch)


async def start_of(source: GapSource) -> Mark:
    mark = (await source.standing(0)).mark
    assert mark is not None
    return mark


async def read(source: GapSource, after: Mark, until_id: int) -> list[Run]:
    return [run async for run in source.runs(after, until_id)]


async def test_standing_of_an_empty_chain_is_its_genesis(open_gaps: OpenGaps) -> None:
    standing = await open_gaps().standing(0)
    assert standing.is_primary
    assert standing.head.last_id == 0
    assert standing.mark == Mark(id=0, batch_last_id=0, seal=standing.head.last_seal, epoch=0)


async def test_standing_shows_head_and_mark(open_store: OpenStore, open_gaps: OpenGaps) -> None:
    first, second = await committed(open_store, 3, 4)
    source = open_gaps()
    inside = second.events[1].id
    behind, within = await source.standing(first.last_id), await source.standing(inside)
    assert (behind.head.last_id, behind.head.last_seal) == (second.last_id, second.seal)
    assert (behind.head.epoch, len(behind.head.nonce)) == (1, 16)
    assert behind.mark == mark_after(first)
    assert within.mark == msgspec.structs.replace(mark_after(first), id=inside)


async def test_standing_counts_the_rows_ahead(open_store: OpenStore, open_gaps: OpenGaps) -> None:
    first, second = await committed(open_store, 3, 4)
    source = open_gaps()
    places = 0, first.events[0].id, first.last_id, second.events[2].id, second.last_id
    assert [(await source.standing(place)).rows_ahead for place in places] == [7, 7, 4, 4, 0]


async def test_standing_at_no_row_has_no_mark(open_store: OpenStore, open_gaps: OpenGaps) -> None:
    (batch,) = await committed(open_store, 3)
    assert (await open_gaps().standing(batch.last_id + 7)).mark is None


async def test_standing_of_a_chain_that_is_not_there_is_refused(open_gaps: OpenGaps) -> None:
    with pytest.raises(ChainMissing):
        await open_gaps(chain_id=9).standing(0)


@pytest.mark.parametrize("page_rows", [1, 2, 1_000])
async def test_runs_are_all_rows_linked_with_the_marks_of_their_ends(
    open_store: OpenStore, open_gaps: OpenGaps, page_rows: int
) -> None:
    batches = await committed(open_store, 3, 1, 5)
    source = open_gaps(page_rows=page_rows)
    runs = await read(source, await start_of(source), batches[-1].last_id)
    rows = [event for run in runs for event in run.events]
    assert rows == [event for batch in batches for event in batch.events]
    assert is_linked(0, rows)
    for run in runs:
        assert run.end == (await source.standing(run.last_id)).mark
    judging = source.runs(await start_of(source), batches[-1].last_id, from_primary=True)
    assert [run async for run in judging] == runs


async def test_runs_within_a_batch(open_store: OpenStore, open_gaps: OpenGaps) -> None:
    _, second = await committed(open_store, 3, 6)
    source = open_gaps(page_rows=2)
    after = (await source.standing(second.events[0].id)).mark
    assert after is not None
    runs = await read(source, after, second.events[3].id)
    assert [event for run in runs for event in run.events] == second.events[1:4]
    assert runs[-1].end.batch_last_id == second.pid


@pytest.mark.parametrize("page_rows", [2, 1_000])
async def test_runs_say_which_batch_their_reading_began_within(
    open_store: OpenStore, open_gaps: OpenGaps, page_rows: int
) -> None:
    first, second, third = await committed(open_store, 3, 6, 5)
    source = open_gaps(page_rows=page_rows)
    for at in (0, first.last_id, second.events[0].id, second.events[3].id, second.last_id):
        after = (await source.standing(at)).mark
        assert after is not None
        is_within = second.first_id <= at < second.last_id
        runs = await read(source, after, third.last_id)
        assert runs[0].begins_within == is_within
        for run in runs:
            assert run.begins_within == (is_within and run.first_pid < second.last_id), run


async def test_runs_beyond_the_head_say_so(open_store: OpenStore, open_gaps: OpenGaps) -> None:
    (batch,) = await committed(open_store, 3)
    source = open_gaps()
    runs = source.runs(await start_of(source), batch.last_id + 5)
    assert (await anext(runs)).events == batch.events
    with pytest.raises(RowsMissing) as caught:
        await anext(runs)
    assert (caught.value.after_id, caught.value.until_id) == (batch.last_id, batch.last_id + 5)


async def test_other_seal_is_refused(open_store: OpenStore, open_gaps: OpenGaps) -> None:
    first, second = await committed(open_store, 3, 3)
    after = msgspec.structs.replace(mark_after(first), seal=b"\1" * 32)
    with pytest.raises(SealMismatch):
        await read(open_gaps(), after, second.last_id)


async def test_missing_row_is_a_fork(open_store: OpenStore, open_gaps: OpenGaps) -> None:
    (batch,) = await committed(open_store, 3)
    beyond = batch.last_id + 1
    after = msgspec.structs.replace(mark_after(batch), id=beyond, batch_last_id=beyond)
    with pytest.raises(ForkFound):
        await read(open_gaps(), after, beyond + 1)


@pytest.mark.parametrize("field", ["key", "payload", "event_time_ns"])
@pytest.mark.parametrize(("page_rows", "most"), [(1_000, 3), (4, 3), (3, 6), (1, 6)])
async def test_runs_hand_on_no_row_of_a_changed_batch_that_one_reading_brings(
    open_store: OpenStore,
    open_gaps: OpenGaps,
    change_row: ChangeRow,
    field: str,
    page_rows: int,
    most: int,
) -> None:
    first, second, third = await committed(open_store, 3, 4, 3)
    rows = [event for batch in (first, second, third) for event in batch.events]
    changed = {"key": "other", "payload": b"other", "event_time_ns": 5}[field]
    await change_row(second.events[1].id, field, changed)
    source = open_gaps(page_rows=page_rows)
    given: list[int] = []
    start = await start_of(source)

    async def fill() -> None:
        async for run in source.runs(start, third.last_id):
            given.extend(event.id for event in run.events)

    with pytest.raises(BatchDamaged) as caught:
        await fill()
    assert (caught.value.first_id, caught.value.last_id) == (second.first_id, second.last_id)
    assert given == [event.id for event in rows][: len(given)]
    # A stored page has rows of one batch: here it is never cut, however few rows are read at once.
    assert 3 <= len(given) <= most
    # Where not all of it is read nothing is known of it.
    after = (await source.standing(second.events[1].id)).mark
    assert after is not None
    rest = await read(source, after, third.last_id)
    assert [event for run in rest for event in run.events] == rows[5:]


async def test_source_says_whose_rows_it_reads(open_gaps: OpenGaps) -> None:
    assert open_gaps().chain_id == 1
    assert open_gaps(chain_id=9).chain_id == 9


async def test_standing_reports_a_batchs_seal(open_store: OpenStore, open_gaps: OpenGaps) -> None:
    first, second = await committed(open_store, 3, 4)
    source = open_gaps()
    genesis = await start_of(source)
    for batch_id, seal in (
        (0, genesis.seal),
        (first.last_id, first.seal),
        (second.last_id, second.seal),
        (second.first_id, None),  # in the middle of a batch
        (second.last_id + 5, None),
        (None, None),
    ):
        standing = await source.standing(second.last_id, batch_id)
        assert standing.batch_seal == seal, batch_id
        assert standing.mark == mark_after(second)


@pytest.mark.parametrize("inside", [False, True])
async def test_runs_after_a_place_with_an_older_seal_that_holds_are_the_rows_after_it(
    open_store: OpenStore, open_gaps: OpenGaps, *, inside: bool
) -> None:
    first, _, third = await committed(open_store, 3, 3, 4)
    at = third.events[1].id if inside else third.pid
    after = msgspec.structs.replace(mark_after(first), id=at)
    runs = await read(open_gaps(), after, third.last_id)
    rows = [event for run in runs for event in run.events]
    assert rows == [event for event in third.events if event.id > at]
    assert runs[-1].end == mark_after(third)


async def test_older_seal_that_fails_is_refused(open_store: OpenStore, open_gaps: OpenGaps) -> None:
    first, second, third = await committed(open_store, 3, 3, 4)
    source = open_gaps()
    for changes in (
        {"id": second.last_id, "seal": b"\1" * 32},
        {"id": second.last_id, "batch_last_id": second.first_id},  # no batch ends there
    ):
        after = msgspec.structs.replace(mark_after(first), **changes)
        with pytest.raises(SealMismatch):
            await read(source, after, third.last_id)


async def test_runs_may_be_let_go_of(open_store: OpenStore, open_gaps: OpenGaps) -> None:
    # Two rows are read at once, and never less than a stored page, which has rows of one batch.
    *_, batch = await committed(open_store, 2, 2, 2, 2, 1)
    source = open_gaps(page_rows=2)
    for pages in range(5):
        runs: Any = source.runs(await start_of(source), batch.last_id)
        for _ in range(pages):
            await anext(runs)
        await runs.aclose()
    assert (await read(source, await start_of(source), batch.last_id))[-1].last_id == batch.last_id
