"""Recomputes the seals of batches inside Spark's Python workers, from rows in the order of ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from chain_verifier.batch_check import BATCH_COLUMNS, ROW_COLUMNS, BatchCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    import pyarrow as pa

MISFITS_SCHEMA: Final = (
    "kind string, id bigint, until_id bigint, pid bigint, ids array<bigint>, count bigint, "
    "expected_count bigint, epoch bigint, expected_epoch bigint, computed array<binary>"
)
"""One row for each thing that is wrong with a batch; `computed` are the seals that rows gave which
did not give the one that is stored.
"""

_MISFIT_COLUMNS: Final = tuple(column.split()[0] for column in MISFITS_SCHEMA.split(", "))


class _Rows(Struct):
    """The rows of one batch, by column, as they come."""

    columns: dict[str, list[Any]] = field(
        default_factory=lambda: {name: [] for name in ROW_COLUMNS}
    )

    def add(self, columns: dict[str, list[Any]], first: int, end: int) -> None:
        for name, held in self.columns.items():
            held += columns[name][first:end]


def seal_checker(
    chain_id: int, genesis: bytes, twice: Collection[int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Return what takes rows sorted by id, each batch's own line behind its rows (`is_batch`), and
    gives one row for each misfit: of rows that give another seal than the one stored, of a batch
    with another number of rows or another range than it says, of an epoch that falls.

    The batches that end with an id in `twice` end one part of the rows, and come again in front of
    the next part, so that what stands behind them is judged by them: they are told of once.
    """

    def check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows, checked = _Rows(), BatchCheck(chain_id, genesis)
        for record_batch in batches:
            columns = record_batch.to_pydict()
            begin, misfits = 0, list[dict[str, object]]()
            for at, is_batch in enumerate(columns["is_batch"]):
                if is_batch:
                    rows.add(columns, begin, at)
                    batch = {name: columns[name][at] for name in BATCH_COLUMNS}
                    is_first = not checked.follows(batch)
                    found = checked.misfits(batch, rows.columns)
                    misfits += [] if is_first and batch["id"] in twice else found
                    begin, rows = at + 1, _Rows()
            rows.add(columns, begin, len(columns["is_batch"]))
            yield _arrow(misfits)

    return check


def _arrow(misfits: list[dict[str, object]]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = {
        "kind": pa.string(),
        "ids": pa.list_(pa.int64()),
        "computed": pa.list_(pa.binary()),
    }
    schema = pa.schema([(name, kinds.get(name, pa.int64())) for name in _MISFIT_COLUMNS])
    full = [{name: misfit.get(name) for name in _MISFIT_COLUMNS} for misfit in misfits]
    return pa.RecordBatch.from_pylist(full, schema=schema)
