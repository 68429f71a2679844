"""Seals and frames, read as docs/seal.md and docs/wire.md describe them."""

from __future__ import annotations

from hashlib import sha256
from struct import Struct, pack
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Row = tuple[int, int, str, int, bytes]
"""Id, pid, key, event time in nanoseconds, payload."""

HEADER = Struct(">4sBBHIIIqq16sqqq32s32s")
_ROWS = msgspec.msgpack.Decoder(list[Row])


def genesis(database_id: bytes, chain_id: int) -> bytes:
    return sha256(b"orderchain seal 2\0" + database_id + pack(">q", chain_id)).digest()


def next_seal(before: bytes, epoch: int, committed_at_us: int, rows: Sequence[Row]) -> bytes:
    columns = zip(*((row[0], row[1], row[2].encode(), row[3], row[4]) for row in rows), strict=True)
    content = sha256(b"".join(map(_image, columns))).digest()
    numbers = pack(">qqqqq", epoch, rows[0][0], rows[-1][0], len(rows), committed_at_us)
    return sha256(before + numbers + content).digest()


def _image(column: Iterable[int | bytes]) -> bytes:
    fields = [pack(">q", value) if isinstance(value, int) else value for value in column]
    return b"".join(pack(">i", len(field)) + field for field in fields)


class Frame(NamedTuple):
    """A frame as a reader of the topic sees it; a heartbeat has no rows."""

    epoch: int
    publisher_epoch: int
    ids: tuple[int, int, int]
    """The pid of the first row, the first and the last id, as the header has them."""
    row_count: int
    rows: list[Row]
    is_batch_end: bool
    seal_before: bytes
    seal_after: bytes


def read_frame(record: bytes) -> Frame | None:
    """Return the frame of a record; None for what is no frame of version 2."""
    if len(record) < HEADER.size or record[:5] != b"OCHN\2":
        return None
    _, _, flags, header_bytes, _, count, _, epoch, publisher_epoch, _, *ids, before, after = (
        HEADER.unpack_from(record)
    )
    rows = [] if flags & 1 else _ROWS.decode(record[header_bytes:])
    ends = (ids[0], ids[1], ids[2])
    return Frame(epoch, publisher_epoch, ends, count, rows, bool(flags & 2), before, after)
