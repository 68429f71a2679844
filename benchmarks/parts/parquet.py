"""Rows of a chain as Parquet, written straight from arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

CHAIN_ID: Final = 1
_GROUP_ROWS: Final = 1_000_000
_FILE_ROWS: Final = 5_000_000
_SKIP_EVERY: Final = 1_000
_SKIP: Final = 7
"""Ids skip a few numbers after every batch, as they do where partitions and terms change."""

WIDE_PAYLOAD_BYTES: Final = 100


def ids_between(first: int, end: int) -> Any:  # noqa: ANN401 - numpy's own
    """Return the ids of the rows number `first` (from 0) up to, not including, number `end`."""
    numbers = np.arange(first, end, dtype=np.int64)
    return numbers + 1 + numbers // _SKIP_EVERY * _SKIP


def head_of(rows: int) -> int:
    """Return the last id of a chain of `rows` rows."""
    return int(ids_between(rows - 1, rows)[0])


def write_rows(folder: Path, rows: int, *, is_wide: bool = False) -> Path:
    """Write a chain of `rows` rows.

    Narrow rows have one and the same key, time and payload (none), so that reading them is as
    cheap as possible and cannot hide what the check costs. Wide ones have keys of their own and
    random payloads.
    """
    path = folder / f"{'wide' if is_wide else 'narrow'}-{rows}"
    path.mkdir()
    random = np.random.default_rng(1)
    for first in range(0, rows, _FILE_ROWS):
        end = min(first + _FILE_ROWS, rows)
        with pq.ParquetWriter(
            path / f"rows-{first:012d}.parquet", _SCHEMA, compression="zstd"
        ) as writer:
            for begin in range(first, end, _GROUP_ROWS):
                group = _group(begin, min(begin + _GROUP_ROWS, end), random, is_wide=is_wide)
                writer.write_table(group, row_group_size=_GROUP_ROWS)
    return path


_SCHEMA: Final = pa.schema(
    [
        ("chain_id", pa.int32()),
        ("id", pa.int64()),
        ("pid", pa.int64()),
        ("key", pa.string()),
        ("event_time_ns", pa.int64()),
        ("payload", pa.binary()),
    ]
)


def _group(first: int, end: int, random: Any, *, is_wide: bool) -> pa.Table:  # noqa: ANN401
    count = end - first
    ids = ids_between(first, end)
    pids = ids_between(first - 1, end - 1)
    if first == 0:
        pids[0] = 0
    times = 1_700_000_000_000_000_000 + np.arange(first, end) * 1_000
    if is_wide:
        keys = pa.array([f"client-{number % 64}#{number}" for number in range(first, end)])
        blob = random.bytes(count * WIDE_PAYLOAD_BYTES)
        offsets = np.arange(count + 1, dtype=np.int32) * WIDE_PAYLOAD_BYTES
        payloads = pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(blob)]
        )
    else:
        keys = pa.repeat(pa.scalar("k"), count)
        payloads = pa.repeat(pa.scalar(b"", pa.binary()), count)
        times[:] = times[0]
    chains = np.full(count, CHAIN_ID, dtype=np.int32)
    return pa.table([chains, ids, pids, keys, times, payloads], schema=_SCHEMA)
