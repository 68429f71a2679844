"""The byte image of rows: what COPY sends and what the seal covers are the same bytes.

An image is the tuple format of PostgreSQL's binary COPY: a field count, then each field with its
length before it, integers big-endian. Length prefixes make it injective, so two different rows
never share an image, and one encoding serves both uses (measured: SHA-256 over bytes that COPY
needs anyway costs 85 ns a row, encoding twice would cost 270).
"""

from __future__ import annotations

from itertools import repeat
from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orderchain.event import Event

COLUMNS: Final = ("chain_id", "id", "pid", "key", "event_time_ns", "payload")
"""The columns of `chain_event`, in the order of the image."""

COPY_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_TRAILER: Final = b"\xff\xff"

_PREFIX: Final = Struct(">hiii")
_IDS: Final = Struct(">14sqiqi")
_TIME: Final = Struct(">iqi")

_id_of = attrgetter("id")
_pid_of = attrgetter("pid")
_key_of = attrgetter("key")
_time_of = attrgetter("event_time_ns")
_payload_of = attrgetter("payload")


def row_images(chain_id: int, events: Sequence[Event]) -> bytes:
    """Return the images of `events` of one chain, one after the other."""
    return column_images(
        chain_id,
        list(map(_id_of, events)),
        list(map(_pid_of, events)),
        list(map(_key_of, events)),
        list(map(_time_of, events)),
        list(map(_payload_of, events)),
    )


def column_images(
    chain_id: int,
    ids: Sequence[int],
    pids: Sequence[int],
    keys: Sequence[str],
    times_ns: Sequence[int],
    payloads: Sequence[bytes],
) -> bytes:
    """Return the images of rows that are given as columns of equal length.

    The pieces of all rows are laid out in one list and joined once: per-row concatenation costs a
    sequencer twice as much.
    """
    prefix = _PREFIX.pack(len(COLUMNS), 4, chain_id, 8)
    encoded = list(map(str.encode, keys))
    pieces: list[bytes] = [b""] * (4 * len(encoded))
    pieces[0::4] = map(_IDS.pack, repeat(prefix), ids, repeat(8), pids, map(len, encoded))
    pieces[1::4] = encoded
    pieces[2::4] = map(_TIME.pack, repeat(8), times_ns, map(len, payloads))
    pieces[3::4] = payloads
    return b"".join(pieces)
