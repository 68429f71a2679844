"""What needs no database: names, settings, and how many batch rows a fill reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec
import pytest

import gapfill
from gapfill import GapReaderConfig
from gapfill.marks import BATCHES_MAX, BatchMarks
from orderchain.errors import RowsMissing
from tests.unit.matcher_receiver.chains import Chain, make_chain

if TYPE_CHECKING:
    from orderchain.clients.session import Session


class BatchRows:
    """Answers the statement for batch rows from a chain."""

    def __init__(self, chain: Chain) -> None:
        self._rows = [(batch.last_id, batch.seal, batch.epoch) for batch in chain.batches]
        self.asked: list[int] = []

    async def fetch(
        self, _statement: str, _chain_id: int, after_id: int, limit: int
    ) -> list[tuple[int, bytes, int]]:
        self.asked.append(limit)
        return [row for row in self._rows if row[0] > after_id][:limit]


def marks_of(chain: Chain, rows: BatchRows) -> BatchMarks:
    return BatchMarks(cast("Session", rows), chain.chain_id, chain.mark(0))


def test_public_names_are_these() -> None:
    assert sorted(gapfill.__all__) == [
        "GapReader",
        "GapReaderConfig",
        "PreferenceConfig",
        "PreferredSources",
        "WithArchive",
    ]


def test_config_shows_no_password() -> None:
    config = GapReaderConfig(database="postgresql://g:very-secret@db/x", chain_id=7)
    assert "very-secret" not in repr(config)


@pytest.mark.parametrize(
    "fields", [{"chain_id": 0}, {"page_rows": 0}, {"page_bytes": 0}, {"linger_seconds": -1}]
)
def test_settings_out_of_bounds_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"database": "d", "chain_id": 1, **fields}, GapReaderConfig)


@pytest.mark.parametrize("sizes", [[1] * 60, [7] * 20, [100], [3, 50, 1, 1, 40]])
@pytest.mark.parametrize("step", [1, 5, 33])
async def test_marks_for_rising_ids_are_those_of_the_chain(sizes: list[int], step: int) -> None:
    chain = make_chain(sizes)
    marks = marks_of(chain, BatchRows(chain))
    for at_id in [*chain.ids[::step], chain.ids[-1]]:
        assert await marks.mark_at(at_id) == chain.mark(at_id)


async def test_marks_of_a_long_fill_cost_few_readings_of_bounded_size() -> None:
    chain = make_chain([1] * 3_000)
    rows = BatchRows(chain)
    marks = marks_of(chain, rows)
    for at_id in chain.ids[::10]:
        await marks.mark_at(at_id)
    assert rows.asked[0] <= 16
    assert len(rows.asked) <= 6
    assert max(rows.asked) <= BATCHES_MAX


async def test_row_that_stands_in_no_batch_is_missing() -> None:
    chain = make_chain([3])
    marks = marks_of(chain, BatchRows(chain))
    with pytest.raises(RowsMissing):
        await marks.mark_at(chain.ids[-1] + 5)
