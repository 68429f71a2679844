"""What needs no database: names, settings, batch rows that a fill reads, and their proof."""

from collections.abc import Iterator
from typing import cast

import pytest

from chain_kernel.clients.shared_session import SharedSession
from chain_kernel.errors import RowsMissing
from chain_kernel.model import Event
from chain_kernel.seal import PageImage, event_pages
from gapfill.batch_proof import BATCHES_MAX, BatchMarks, CutPage, StoredBatch
from tests.builders.chains import Chain, make_chain


class BatchRows:
    """Answers the statement for batch rows from a chain."""

    def __init__(self, chain: Chain) -> None:
        self._rows = [
            StoredBatch(b.last_id, b.seal, b.epoch, b.first_id, b.row_count, b.committed_at_us)
            for b in chain.batches
        ]
        self.asked: list[int] = []

    async def fetch(
        self, _statement: str, _chain_id: int, after_id: int, limit: int
    ) -> list[StoredBatch]:
        self.asked.append(limit)
        return [row for row in self._rows if row.last_id > after_id][:limit]


def marks_of(chain: Chain, rows: BatchRows) -> BatchMarks:
    return BatchMarks(cast("SharedSession", rows), chain.chain_id, chain.mark(0))


def readings(chain: Chain, rows: int) -> Iterator[tuple[PageImage, ...]]:
    """Return the rows of the chain, so many at once, in pages that end where a batch does."""
    events = chain.events
    for begin in range(0, len(events), rows):
        part = events[begin : begin + rows]
        yield tuple(
            page
            for batch in chain.batches
            if (rest := [event for event in part if event in batch.events])
            for page in event_pages(rest)
        )


@pytest.mark.parametrize("sizes", [[1] * 60, [7] * 20, [100], [3, 50, 1, 1, 40]])
@pytest.mark.parametrize("step", [1, 5, 33])
async def test_marks_after_pages_are_those_of_the_chain(sizes: list[int], step: int) -> None:
    chain = make_chain(sizes)
    marks = marks_of(chain, BatchRows(chain))
    mark = chain.mark(0)
    for pages in readings(chain, step):
        last_id = pages[-1].last_id
        await marks.cover(last_id)
        assert marks.end_at_or_before(last_id) == chain.mark(last_id).batch_last_id
        mark, damaged = marks.take(pages, mark)
        assert damaged is None
        assert mark == chain.mark(last_id)


async def test_marks_of_a_long_fill_cost_few_readings_of_bounded_size() -> None:
    chain = make_chain([1] * 3_000)
    rows = BatchRows(chain)
    marks = marks_of(chain, rows)
    mark = chain.mark(0)
    for batch in chain.batches:
        await marks.cover(batch.last_id)
        mark, _ = marks.take(batch.pages, mark)
    assert mark == chain.mark()
    assert rows.asked[0] <= 16
    assert len(rows.asked) <= 6
    assert max(rows.asked) <= BATCHES_MAX


async def test_row_that_stands_in_no_batch_is_missing() -> None:
    chain = make_chain([3])
    marks = marks_of(chain, BatchRows(chain))
    with pytest.raises(RowsMissing):
        await marks.cover(chain.ids[-1] + 5)


def test_cut_page_counts_the_bytes_of_its_keys_and_payloads() -> None:
    assert CutPage([Event(1, 0, "key", 5, b"payload"), Event(2, 1, "k", 5, b"")]).size == 11
