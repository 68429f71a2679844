"""Recomputes the seals of batches inside Spark's Python workers, from rows in the order of ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from chain_verifier.findings import Kind
from orderchain.row_image import column_images
from orderchain.seal import next_seal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

_ROW_COLUMNS: Final = ("id", "pid", "key", "event_time_ns", "payload")

BATCH_COLUMNS: Final = (
    "first_id", "id", "prev_last_id", "row_count", "epoch", "seal", "seal_before", "epoch_before",
    "committed_at_us",
)  # fmt: skip
"""What is read of a batch; its `id` is its last one."""

MISFITS_SCHEMA: Final = (
    "kind string, id bigint, until_id bigint, pid bigint, first_row_id bigint, last_row_id bigint, "
    "count bigint, expected_count bigint, epoch bigint, expected_epoch bigint"
)
"""One row for each thing that is wrong with a batch."""

_MISFIT_COLUMNS: Final = tuple(column.split()[0] for column in MISFITS_SCHEMA.split(", "))


class _Rows(Struct):
    """The rows of one batch, by column, as they come."""

    columns: dict[str, list[Any]] = field(
        default_factory=lambda: {name: [] for name in _ROW_COLUMNS}
    )

    def add(self, columns: dict[str, list[Any]], first: int, end: int) -> None:
        for name, held in self.columns.items():
            held += columns[name][first:end]


def seal_checker(
    chain_id: int,
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Return what takes rows sorted by id, each batch's own line behind its rows (`is_batch`), and
    gives one row for each misfit: of rows that give another seal than the one stored, of a batch
    with another number of rows or another range than it says, of an epoch that falls.
    """

    def check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = _Rows()
        for record_batch in batches:
            columns = record_batch.to_pydict()
            begin, misfits = 0, list[dict[str, object]]()
            for at, is_batch in enumerate(columns["is_batch"]):
                if is_batch:
                    rows.add(columns, begin, at)
                    batch = {name: columns[name][at] for name in BATCH_COLUMNS}
                    misfits += misfits_of(chain_id, batch, rows.columns)
                    begin, rows = at + 1, _Rows()
            rows.add(columns, begin, len(columns["is_batch"]))
            yield _arrow(misfits)

    return check


def misfits_of(
    chain_id: int, batch: dict[str, Any], rows: dict[str, list[Any]]
) -> Iterator[dict[str, object]]:
    """Yield what is wrong with one batch, whose rows are given by column.

    A batch that lacks rows or has others gives another seal too: then only the nearer cause is
    told.
    """
    found = {"id": batch["first_id"], "until_id": batch["id"]}
    if batch["epoch"] < (batch["epoch_before"] or 0):
        epochs = {"epoch": batch["epoch"], "expected_epoch": batch["epoch_before"]}
        yield found | {"kind": Kind.WRONG_EPOCH.value} | epochs
    ids, pids = rows["id"], rows["pid"]
    if len(ids) != batch["row_count"]:
        counts = {"count": len(ids), "expected_count": batch["row_count"]}
        yield found | {"kind": Kind.BATCH_COUNT.value} | counts
    elif (ids[0], ids[-1], pids[0]) != (batch["first_id"], batch["id"], batch["prev_last_id"]):
        ends = {"first_row_id": ids[0], "last_row_id": ids[-1], "pid": pids[0]}
        yield found | {"kind": Kind.BATCH_RANGE.value} | ends
    elif _seal_of(chain_id, batch, rows) != batch["seal"]:
        yield found | {"kind": Kind.SEAL_MISMATCH.value}


def _seal_of(chain_id: int, batch: dict[str, Any], rows: dict[str, list[Any]]) -> bytes:
    return next_seal(
        batch["seal_before"],
        epoch=batch["epoch"],
        first_id=batch["first_id"],
        last_id=batch["id"],
        row_count=batch["row_count"],
        committed_at_us=batch["committed_at_us"],
        rows=column_images(
            chain_id, rows["id"], rows["pid"], rows["key"], rows["event_time_ns"], rows["payload"]
        ),
    )


def _arrow(misfits: list[dict[str, object]]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = [pa.string(), *[pa.int64()] * (len(_MISFIT_COLUMNS) - 1)]
    schema = pa.schema(list(zip(_MISFIT_COLUMNS, kinds, strict=True)))
    full = [{name: misfit.get(name) for name in _MISFIT_COLUMNS} for misfit in misfits]
    return pa.RecordBatch.from_pylist(full, schema=schema)
