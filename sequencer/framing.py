"""Cuts batches into frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orderchain.errors import FrameError
from orderchain.frame import HEADER_BYTES, FrameHeader, decode_header, encode_frame
from orderchain.limits import FRAME_BYTES_MIN, FRAME_ROWS_MAX
from orderchain.seal import SEAL_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from orderchain.batch import Batch, Term

_ROW_OVERHEAD_BYTES: Final = 64
"""What the body adds to key and payload of its only row: at most 46 bytes of MessagePack."""


def highest_id(records: Iterable[bytes | None], chain_id: int) -> int:
    """Return the highest id that frames of the chain among `records` tell of; 0 for none.

    By their own word: nobody is asked who sent them.
    """
    highest = 0
    for record in records:
        try:
            header = decode_header(record)
        except FrameError:
            continue
        if header.chain_id == chain_id:
            highest = max(highest, header.last_id)
    return highest


def has_unfit_row(batch: Batch, frame_bytes_max: int) -> bool:
    """Say whether a row of `batch` fits into no frame.

    Only where a topic takes less than FRAME_BYTES_MIN, into which every legal row fits.
    """
    if frame_bytes_max >= FRAME_BYTES_MIN:
        return False
    room = frame_bytes_max - HEADER_BYTES - _ROW_OVERHEAD_BYTES
    return any(len(event.key.encode()) + len(event.payload) > room for event in batch.events)


def batch_frames(batch: Batch, term: Term, frame_bytes_max: int) -> list[bytes]:
    """Return the frames of `batch` in order, each at most `frame_bytes_max` long.

    `term` is the publisher's, which may be later than the batch's. A row's image is always longer
    than its share of a frame, so the images tell how many slices are needed before any is made;
    uneven rows are halved once more. No row of `batch` may be unfit (`has_unfit_row`).
    """
    slices = max(
        -(-(batch.size + HEADER_BYTES) // frame_bytes_max),
        -(-batch.row_count // FRAME_ROWS_MAX),
    )
    step = -(-batch.row_count // slices)
    return [
        frame
        for start in range(0, batch.row_count, step)
        for frame in _slice(batch, term, frame_bytes_max, start, min(start + step, batch.row_count))
    ]


def heartbeat_frame(term: Term, *, last_id: int, last_seal: bytes) -> bytes:
    """Return the frame that carries the head alone."""
    return encode_frame(
        FrameHeader(
            chain_id=term.chain_id,
            epoch=term.epoch,
            publisher_epoch=term.epoch,
            publisher_nonce=term.nonce,
            first_pid=last_id,
            first_id=last_id,
            last_id=last_id,
            count=0,
            seal_before=last_seal,
        ),
        (),
        term.frame_key,
    )


def _slice(
    batch: Batch, term: Term, frame_bytes_max: int, start: int, stop: int
) -> Iterator[bytes]:
    """Yield the frames of the rows from `start` to `stop`."""
    events = batch.events[start:stop]
    is_batch_end = stop == batch.row_count
    frame = encode_frame(
        FrameHeader(
            chain_id=batch.chain_id,
            epoch=batch.epoch,
            publisher_epoch=term.epoch,
            publisher_nonce=term.nonce,
            first_pid=events[0].pid,
            first_id=events[0].id,
            last_id=events[-1].id,
            count=len(events),
            seal_before=batch.seal_before,
            seal_after=batch.seal if is_batch_end else bytes(SEAL_BYTES),
            is_batch_end=is_batch_end,
        ),
        events,
        term.frame_key,
    )
    if len(frame) <= frame_bytes_max:
        yield frame
        return
    middle = (start + stop) // 2
    yield from _slice(batch, term, frame_bytes_max, start, middle)
    yield from _slice(batch, term, frame_bytes_max, middle, stop)
