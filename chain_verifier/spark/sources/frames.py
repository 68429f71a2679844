"""Decodes the records of a topic inside Spark's Python workers.

Each decoder is a function for `mapInArrow`: record batches of (offset, value) in, others out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chain_verifier.checks.frame_reading import events_of, header_of, standing_of
from chain_verifier.spark.sources.table import EVENT_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    import pyarrow as pa

    from chain_verifier.checks.frame_reading import FrameKeys
    from chain_verifier.checks.topic_walk import FrameMark
    from orderchain.model import Event

    Decoder = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


HEADS_SCHEMA: Final = (
    "offset bigint, reason string, is_heartbeat boolean, first_pid bigint, first_id bigint, "
    "last_id bigint, count int, epoch bigint, seal_before binary, seal_after binary, "
    "is_batch_end boolean, sender string"
)
"""One row per record; `reason` says why it is no frame that can be used, else it is NULL. `sender`
is one of those of `frame_reading`, NULL if no keys are known."""

STANDING: Final = "standing"
HIGHEST: Final = "highest_before"

ROWS_SCHEMA: Final = (
    ", ".join(f"{name} {kind}" for name, kind in EVENT_TYPES.items())
    + f", {STANDING} int, {HIGHEST} bigint"
)
"""The rows of all frames; `standing` is one of the numbers of `frame_reading`, and `highest_before`
the highest id of the earlier frames, if it is known."""

_NO_HEAD: Final = (None,) * 10


def heads_decoder(chain_id: int, keys: FrameKeys | None) -> Decoder:
    """Return what shows for each record whether it is a frame, and which, and by `keys` whose.

    The whole frame is decoded: if a receiver drops it because of its body, it is no frame here
    either.
    """

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            records = zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
            yield _heads_batch(
                [(offset, *_head_of(value, chain_id, keys)) for offset, value in records]
            )

    return decode


def _head_of(value: bytes | None, chain_id: int, keys: FrameKeys | None) -> tuple[object, ...]:
    header = header_of(value, chain_id)
    if value is None or isinstance(header, str):
        return (header, *_NO_HEAD)
    return (
        None,
        header.is_heartbeat,
        header.first_pid,
        header.first_id,
        header.last_id,
        header.count,
        header.epoch,
        header.seal_before,
        header.seal_after,
        header.is_batch_end,
        None if keys is None else keys.sender_of(value, header),
    )


def _heads_batch(heads: list[tuple[object, ...]]) -> pa.RecordBatch:
    import pyarrow as pa

    names = [column.split()[0] for column in HEADS_SCHEMA.split(", ")]
    int64, text, flag, blob = pa.int64(), pa.string(), pa.bool_(), pa.binary()
    types = [int64, text, flag, int64, int64, int64, pa.int32(), int64, blob, blob, flag, text]
    columns = list(zip(*heads, strict=True)) or [()] * len(names)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names)


def rows_decoder(chain_id: int, marks: Mapping[int, FrameMark], forged: Collection[int]) -> Decoder:
    """Return what yields the rows of every frame of `chain_id`, with the standing of each row.

    `marks` are those of a walk over the same frames; `forged` are the offsets of frames that the
    database disowns.
    """

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for offset, value in zip(batch["offset"], batch["value"], strict=True):
                events = events_of(value.as_py(), chain_id)
                if events:
                    at = offset.as_py()
                    yield _rows_batch(chain_id, events, marks.get(at), is_forged=at in forged)

    return decode


def _rows_batch(
    chain_id: int, events: list[Event], mark: FrameMark | None, *, is_forged: bool
) -> pa.RecordBatch:
    import pyarrow as pa

    count = len(events)
    standing = [standing_of(event.id, mark, is_forged=is_forged) for event in events]
    highest = None if mark is None else mark.highest_before
    columns = {
        "chain_id": pa.array([chain_id] * count, pa.int32()),
        "id": pa.array([event.id for event in events], pa.int64()),
        "pid": pa.array([event.pid for event in events], pa.int64()),
        "key": pa.array([event.key for event in events], pa.string()),
        "event_time_ns": pa.array([event.event_time_ns for event in events], pa.int64()),
        "payload": pa.array([event.payload for event in events], pa.binary()),
        STANDING: pa.array(standing, pa.int32()),
        HIGHEST: pa.array([highest] * count, pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)
