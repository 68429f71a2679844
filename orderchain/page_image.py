"""The byte image of rows, column by column: what COPY sends and the seal covers are the same bytes.

The image of a column is what PostgreSQL's binary COPY sends for the elements of an array: each with
its length before it, 4 bytes, integers of 8 bytes; all big-endian. With a length before each
element the image is injective: two different columns never share one. One encoding serves both.
"""

from __future__ import annotations

from array import array
from itertools import repeat
from operator import add, attrgetter
from struct import Struct as Packing
from sys import byteorder
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orderchain.event import Event

PAGE_ROWS_MAX: Final = 5_000
"""Rows of one page. A reader that wants one row has the arrays of its page detoasted: 5,000 rows of
60 bytes cost it half a millisecond. Beyond it, a page costs the writer no less per row."""

PAGE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of keys and payloads of one page, unless a single row has more: what the server must copy
for a reader of one row."""

COLUMNS: Final = (
    "chain_id", "first_id", "last_id", "ids", "pids", "keys", "event_times_ns", "payloads",
)  # fmt: skip
"""The columns of `chain_page`, in the order of a page's image."""

COPY_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_TRAILER: Final = b"\xff\xff"

_INT8: Final = 20
_TEXT: Final = 25
_BYTEA: Final = 17
"""Type numbers of PostgreSQL, the same in every database."""

_FIELDS: Final = Packing(">hiiiqiq")
_ARRAY: Final = Packing(">iiiiii")
_SIZE: Final = Packing(">i")
_INT: Final = Packing(">iq")
_INT_BYTES: Final = 8
_INT_IMAGE_BYTES: Final = 12
_SPREAD_MIN: Final = 64
"""Integers from which laying bytes out costs less than packing each (a sixth of it at 5,000)."""

_SIZES: Final = tuple(map(_SIZE.pack, range(2_048)))
"""Images of the lengths that nearly all keys and payloads have: a look-up costs half of packing."""

_columns_of = attrgetter("id", "pid", "key", "event_time_ns", "payload")


class PageImage(Struct, frozen=True, gc=False):
    """Rows that are stored together, as the images of their columns."""

    first_id: int
    last_id: int
    row_count: int
    """At least 1."""
    ids: bytes
    pids: bytes
    keys: bytes
    times: bytes
    payloads: bytes

    @property
    def columns(self) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """The images of the columns, in the order in which a seal covers them."""
        return (self.ids, self.pids, self.keys, self.times, self.payloads)

    @property
    def size(self) -> int:
        """Bytes of all columns: more than the rows take in a frame."""
        return sum(map(len, self.columns))

    def copied(self, chain_id: int) -> list[bytes]:
        """Return the pieces of the tuple of `chain_page` as binary COPY takes it."""
        pieces = [_FIELDS.pack(len(COLUMNS), 4, chain_id, 8, self.first_id, 8, self.last_id)]
        kinds = (_INT8, _INT8, _TEXT, _INT8, _BYTEA)
        for kind, image in zip(kinds, self.columns, strict=True):
            # Its length, then: one dimension, no NULL, what it holds, how many, counted from 1.
            header = _ARRAY.pack(20 + len(image), 1, 0, kind, self.row_count, 1)
            pieces += (header, image)
        return pieces


def event_pages(events: Sequence[Event]) -> tuple[PageImage, ...]:
    """Return the pages of `events`, which are at least one."""
    ids, pids, keys, times_ns, payloads = zip(*map(_columns_of, events), strict=True)
    return column_pages(ids, pids, list(map(str.encode, keys)), times_ns, payloads)


def column_pages(
    ids: Sequence[int],
    pids: Sequence[int],
    keys: Sequence[bytes],
    times_ns: Sequence[int],
    payloads: Sequence[bytes],
) -> tuple[PageImage, ...]:
    """Return the pages of rows given as columns of equal length, keys as UTF-8.

    As few as PAGE_ROWS_MAX and PAGE_BYTES_MAX allow, each filled before the next begins.
    """
    key_sizes, payload_sizes = list(map(len, keys)), list(map(len, payloads))
    if len(ids) <= PAGE_ROWS_MAX and sum(key_sizes) + sum(payload_sizes) <= PAGE_BYTES_MAX:
        return (page_image(ids, pids, keys, times_ns, payloads),)
    ends = _page_ends(key_sizes, payload_sizes)
    cuts = [slice(start, stop) for start, stop in zip((0, *ends), ends, strict=False)]
    return tuple(
        page_image(ids[cut], pids[cut], keys[cut], times_ns[cut], payloads[cut]) for cut in cuts
    )


def page_image(
    ids: Sequence[int],
    pids: Sequence[int],
    keys: Sequence[bytes],
    times_ns: Sequence[int],
    payloads: Sequence[bytes],
) -> PageImage:
    """Return all the rows as one page, whatever its size: enough for a seal."""
    return PageImage(
        ids[0], ids[-1], len(ids),
        _int_images(ids), _int_images(pids), _byte_images(keys), _int_images(times_ns),
        _byte_images(payloads),
    )  # fmt: skip


def _page_ends(key_sizes: Iterable[int], payload_sizes: Iterable[int]) -> list[int]:
    """Return the positions at which pages end."""
    ends: list[int] = []
    start, filled = 0, 0
    sizes = map(add, key_sizes, payload_sizes)
    for at, size in enumerate(sizes):
        if at > start and (at - start == PAGE_ROWS_MAX or filled + size > PAGE_BYTES_MAX):
            ends.append(at)
            start, filled = at, 0
        filled += size
    return [*ends, at + 1]


def _int_images(values: Sequence[int]) -> bytes:
    """Return the images of integers. The n-th bytes of all are laid out at once."""
    if len(values) < _SPREAD_MIN:
        return b"".join(map(_INT.pack, repeat(_INT_BYTES), values))
    numbers = array("q", values)
    if byteorder == "little":
        numbers.byteswap()
    raw = numbers.tobytes()
    images = bytearray(len(numbers) * _INT_IMAGE_BYTES)
    images[3::_INT_IMAGE_BYTES] = bytes((_INT_BYTES,)) * len(numbers)
    for at in range(_INT_BYTES):
        images[4 + at :: _INT_IMAGE_BYTES] = raw[at::_INT_BYTES]
    return bytes(images)


def _byte_images(values: Sequence[bytes]) -> bytes:
    """Return the images of texts and payloads."""
    pieces: list[bytes] = [b""] * (2 * len(values))
    sizes = list(map(len, values))
    if max(sizes) < len(_SIZES):
        pieces[0::2] = map(_SIZES.__getitem__, sizes)
    else:
        pieces[0::2] = map(_SIZE.pack, sizes)
    pieces[1::2] = values
    return b"".join(pieces)
