"""The rows of chains in a frame: their columns, and the port of what they are read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa

from chain_verifier.sources.content import EVENT, EVENT_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class RowRange(Protocol):
    """Rows that are read by themselves, maybe on another machine; it can be pickled."""

    @property
    def rows(self) -> int:
        """About how many rows it has."""
        ...


class RangedRows(Protocol):
    """The rows of chains in one kind of source, up to where each ended at one time."""

    def ranges(self) -> Sequence[RowRange]:
        """Return what is read. Raises RefusedError where nothing can be read."""
        ...

    def read(self, ranges: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some of its ranges, with the columns `SCHEMA`."""
        ...


SCHEMA: Final = (
    "chain_id INT, id BIGINT, pid BIGINT, key STRING, event_time TIMESTAMP, event_time_ns BIGINT, "
    "payload BINARY, epoch BIGINT, is_batch_end BOOLEAN"
)
"""`event_time` is `event_time_ns` in the microseconds that Spark's times have."""

ARROW_TYPES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "array<bigint>": pa.list_(pa.int64()),
    "array<string>": pa.list_(pa.string()),
}
"""Arrow's types, by Spark's."""

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


def arrays_of(
    chain_id: int, columns: Sequence[Any], names: Sequence[str] = EVENT
) -> dict[str, pa.Array]:
    """Return the columns `names` of rows of a chain, and before these its number."""
    arrays = {"chain_id": pa.array(np.full(len(columns[0]), chain_id, np.int32))}
    for name, column in zip(names, columns, strict=True):
        is_array = isinstance(column, pa.Array)
        kind = ARROW_TYPES[EVENT_TYPES[name]]
        arrays[name] = column if is_array else pa.array(column, kind)
    return arrays


def frame_rows(
    chain_id: int,
    event: Sequence[Any],
    epochs: Any,  # noqa: ANN401 - an array
    is_end: Any,  # noqa: ANN401 - an array
) -> pa.RecordBatch:
    """Return the rows of a frame whose columns `EVENT` are `event`."""
    arrays = arrays_of(chain_id, event)
    micros = np.floor_divide(np.asarray(arrays["event_time_ns"]), 1_000)
    arrays["event_time"] = pa.array(micros, _ARROW.field("event_time").type)
    arrays["epoch"] = pa.array(epochs, pa.int64())
    arrays["is_batch_end"] = pa.array(is_end, pa.bool_())
    return pa.RecordBatch.from_arrays([arrays[name] for name in _ARROW.names], schema=_ARROW)


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
