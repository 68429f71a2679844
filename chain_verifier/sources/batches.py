"""Recomputes the seals of batches inside Spark's Python workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chain_verifier.batch_check import BatchCheck

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


def seal_checker(
    genesis: bytes, twice: Collection[int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Return what takes batches sorted by id, each with what is stored of it, and gives one row for
    each misfit: of rows that give another seal than the one stored, of a batch with another number
    of rows or another range than it says, of an epoch that falls.

    The batches that end with an id in `twice` end one part, and come again in front of the next
    part, so that what stands behind them is judged by them: they are told of once.
    """

    def check(record_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        checked = BatchCheck(genesis)
        for record_batch in record_batches:
            misfits: list[dict[str, object]] = []
            for batch in record_batch.to_pylist():
                is_first = not checked.follows(batch)
                found = checked.misfits(batch)
                misfits += [] if is_first and batch["id"] in twice else found
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
