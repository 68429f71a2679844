"""The columns of a chain's rows, whatever they are read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA: Final = (
    "chain_id INT, id BIGINT, pid BIGINT, key STRING, event_time TIMESTAMP, event_time_ns BIGINT, "
    "payload BINARY, epoch BIGINT, is_batch_end BOOLEAN"
)
"""`event_time` is `event_time_ns` in the microseconds that Spark's times have."""

_EVENT: Final = (pa.int64(), pa.int64(), pa.string(), pa.int64(), pa.binary())
"""`id, pid, key, event_time_ns, payload`."""

_ARROW: Final = pa.schema(
    [
        ("chain_id", pa.int32()),
        ("id", pa.int64()),
        ("pid", pa.int64()),
        ("key", pa.string()),
        ("event_time", pa.timestamp("us", tz="UTC")),
        ("event_time_ns", pa.int64()),
        ("payload", pa.binary()),
        ("epoch", pa.int64()),
        ("is_batch_end", pa.bool_()),
    ]
)


def rows_of(
    chain_id: int,
    event: Sequence[Any],
    epochs: Any,  # noqa: ANN401 - an array
    is_end: Any,  # noqa: ANN401 - an array
) -> pa.RecordBatch:
    """Return the rows whose five columns are `event`, in the order of a page's columns."""
    row_id, pid, key, time_ns, payload = (
        column if isinstance(column, pa.Array) else pa.array(column, kind)
        for column, kind in zip(event, _EVENT, strict=True)
    )
    micros = pa.array(np.floor_divide(np.asarray(time_ns), 1_000), _ARROW.field("event_time").type)
    columns = [
        pa.array(np.full(len(row_id), chain_id, np.int32)),
        *(row_id, pid, key, micros, time_ns, payload),
        pa.array(epochs, pa.int64()),
        pa.array(is_end, pa.bool_()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)


def batch_facts(
    ids: Any,  # noqa: ANN401 - an array
    ends: Any,  # noqa: ANN401 - an array
    epochs: Any,  # noqa: ANN401 - an array
) -> tuple[pa.Array, pa.Array]:
    """Return the epochs of rows, and whether each ends its batch; `ends` are the batches' last ids.

    A row that is in no batch has no epoch: a check finds it.
    """
    at = np.searchsorted(ends, ids)
    known = at < len(ends)
    if not len(ends):
        return pa.nulls(len(ids), pa.int64()), pa.array(known)
    at = np.where(known, at, 0)
    return pa.array(epochs[at], mask=~known), pa.array(known & (ends[at] == ids))


def within(rows: pa.RecordBatch, after_id: int, until_id: int) -> pa.RecordBatch:
    """Return the rows after one id up to another; `rows` are in the order of ids."""
    ids = np.asarray(rows.column("id"))
    first, last = np.searchsorted(ids, [after_id, until_id], side="right")
    return rows.slice(first, last - first)
