"""A batch, its seal, and the page images that the seal covers.

The byte image of rows, column by column: what COPY sends and the seal covers are the same bytes.

The image of a column is what PostgreSQL's binary COPY sends for the elements of an array: each one
after its length of 4 bytes, integers with 8 bytes; all big-endian. With a length before each
element the image is injective: two different columns never share one. One encoding serves both.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import repeat
from operator import attrgetter, lt
from struct import Struct as Packing
from sys import byteorder
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from msgspec import Struct

from chain_kernel import speed
from chain_kernel.model import Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID


PAGE_ROWS_MAX: Final = 1_000
"""Rows of one page. A larger one costs the server more per order (measured at 5,000 rows per
commit, 60-byte payloads: 0.70 us in one page, 0.56 in five, whose arrays need no fresh memory
each), and a read of one row copies the arrays of its page."""

PAGE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of the images of one page, unless a single row has more: what the server must copy to read
one row."""

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
_SHORT: Final = bytes(range(1, 32))
_NOT_SHORT: Final = bytes(set(range(256)).difference(_SHORT))
_SPREAD_MIN: Final = 64
"""From this many integers on, laying bytes out costs less than packing each (a sixth at 5,000)."""

_SIZES: Final = tuple(map(_SIZE.pack, range(2_048)))
"""Images of the lengths that nearly all payloads have: a look-up costs half of packing."""

_TEXT_SIZES: Final = tuple(size.decode() for size in _SIZES[:128])
"""The same as ASCII: a text of these lengths is laid out as text, and encoded once for all."""

_LOW_VALUES: Final = 2**16
_LAST_BYTES: Final = bytes(range(256)) * 256
_BYTES_BEFORE_LAST: Final = b"".join(bytes((byte,)) * 256 for byte in range(256))
"""The last two bytes of the integers below `_LOW_VALUES`, in order. Those of a run of integers are
a slice of them, which takes a tenth of the time that laying out each byte takes."""

_columns_of = attrgetter("id", "pid", "key", "event_time_ns", "payload")


class Columns(NamedTuple):
    """Rows as columns of equal length."""

    ids: Sequence[int]
    pids: Sequence[int]
    keys: Sequence[str]
    times_ns: Sequence[int]
    payloads: Sequence[bytes]

    @classmethod
    def of(cls, events: Sequence[Event]) -> Self:
        """Return the columns of `events`."""
        return cls(*zip(*map(_columns_of, events), strict=True)) if events else cls(*[()] * 5)

    def __eq__(self, other: object) -> bool:
        """True if the values are equal, whichever sequences hold them."""
        return isinstance(other, Columns) and all(
            list(one) == list(two) for one, two in zip(self, other, strict=True)
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def cut(self, start: int, stop: int) -> Self:
        """Return the rows from `start` to before `stop`."""
        rows = slice(start, stop)
        return type(self)(
            self.ids[rows], self.pids[rows], self.keys[rows], self.times_ns[rows],
            self.payloads[rows],
        )  # fmt: skip


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

    @classmethod
    def of_columns(cls, *columns: bytes) -> Self:
        """Return the page with these images, of at least one row, in the order of `columns`."""
        ids = columns[0]
        (_, first_id), (_, last_id) = _INT.unpack_from(ids), _INT.unpack(ids[-_INT_IMAGE_BYTES:])
        return cls(first_id, last_id, len(ids) // _INT_IMAGE_BYTES, *columns)

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
            # Its length, then: one dimension, no NULL, the element type, the count, lower bound 1.
            header = _ARRAY.pack(20 + len(image), 1, 0, kind, self.row_count, 1)
            pieces += (header, image)
        return pieces


def event_pages(events: Sequence[Event]) -> tuple[PageImage, ...]:
    """Return the pages of `events`, which must not be empty."""
    return column_pages(Columns.of(events))


def column_pages(columns: Columns, *, is_linked: bool = False) -> tuple[PageImage, ...]:
    """Return the pages of rows.

    There are as few pages as PAGE_ROWS_MAX allows, of about equal length; a page with more than
    PAGE_BYTES_MAX is halved. `is_linked` promises that every pid is the id before it, which saves
    reading them.
    """
    count = len(columns.ids)
    rows = -(-count // -(-count // PAGE_ROWS_MAX))
    pages: list[PageImage] = []
    for start in range(0, count, rows):
        cut = columns.cut(start, start + rows)
        page = page_image(cut, is_linked=is_linked)
        pages += [page] if page.size <= PAGE_BYTES_MAX else _halved(page, cut)
    return tuple(pages)


def page_image(columns: Columns, *, is_linked: bool = False) -> PageImage:
    """Return all the rows as one page, whatever its size: enough for a seal."""
    if speed.native is not None:
        return PageImage.of_columns(*speed.native.images(0, *columns))
    ids, pids, keys, times_ns, payloads = columns
    id_images = _int_images(ids)
    return PageImage(
        ids[0], ids[-1], len(ids),
        id_images,
        _INT.pack(8, pids[0]) + id_images[:-_INT_IMAGE_BYTES] if is_linked else _int_images(pids),
        _text_images(keys), _int_images(times_ns), _byte_images(payloads),
    )  # fmt: skip


def page_events(page: PageImage) -> list[Event]:
    """Return the rows of a page, as they are: linked or not.

    Whole columns are decoded at once, which costs half of what a driver takes for the arrays.
    """
    ids = _ints(page.ids)
    # Nearly all rows are linked: then the pids are the ids before.
    is_linked = page.pids[_INT_IMAGE_BYTES:] == page.ids[:-_INT_IMAGE_BYTES]
    first_pid: int = _INT.unpack_from(page.pids)[1]
    pids = (first_pid, *ids[:-1]) if is_linked else _ints(page.pids)
    columns = (ids, pids, _texts(page.keys, len(ids)), _ints(page.times))
    return list(map(Event, *columns, _elements(page.payloads, len(ids))))


def is_linked_page(after_id: int, page: PageImage) -> bool:
    """Return whether the rows of `page` follow the row `after_id` and each other without a break.

    Images are compared: no pid is looked at as a number, and no row outside a cache. Nor
    are ids, where they are consecutive, as nearly all are.
    """
    if page.pids != _INT.pack(_INT_BYTES, after_id) + page.ids[:-_INT_IMAGE_BYTES]:
        return False
    if after_id >= page.first_id:
        return False
    last_id = page.first_id + page.row_count - 1
    if page.last_id == last_id and page.ids == _run_images(range(page.first_id, last_id + 1)):
        return True
    ids = _ints(page.ids)
    return all(map(lt, ids, ids[1:]))


def _halved(page: PageImage, columns: Columns) -> list[PageImage]:
    """Return the parts of a page that is too large; a single row is never split."""
    if page.row_count == 1 or page.size <= PAGE_BYTES_MAX:
        return [page]
    middle = page.row_count // 2
    first, second = columns.cut(0, middle), columns.cut(middle, page.row_count)
    return _halved(page_image(first), first) + _halved(page_image(second), second)


def _int_images(values: Sequence[int]) -> bytes:
    """Return the images of integers; the n-th bytes of all are laid out at once."""
    if len(values) < _SPREAD_MIN:
        return b"".join(map(_INT.pack, repeat(_INT_BYTES), values))
    if isinstance(values, range) and values.step == 1:
        return _run_images(values)
    numbers = array("q", values)
    if byteorder == "little":
        numbers.byteswap()
    raw = numbers.tobytes()
    images = bytearray(len(numbers) * _INT_IMAGE_BYTES)
    images[3::_INT_IMAGE_BYTES] = bytes((_INT_BYTES,)) * len(numbers)
    for at in range(_INT_BYTES):
        images[4 + at :: _INT_IMAGE_BYTES] = raw[at::_INT_BYTES]
    return bytes(images)


def _run_images(values: range) -> bytes:
    """Return the images of consecutive integers: most differ in their last two bytes only."""
    low = values[0] % _LOW_VALUES
    cut = _LOW_VALUES - low
    if len(values) > cut:
        return _run_images(values[:cut]) + _run_images(values[cut:])
    images = bytearray(_INT.pack(_INT_BYTES, values[0]) * len(values))
    images[_INT_IMAGE_BYTES - 2 :: _INT_IMAGE_BYTES] = _BYTES_BEFORE_LAST[low : low + len(values)]
    images[_INT_IMAGE_BYTES - 1 :: _INT_IMAGE_BYTES] = _LAST_BYTES[low : low + len(values)]
    return bytes(images)


def _text_images(values: Sequence[str]) -> bytes:
    """Return the images of texts. Short ones in ASCII, which most are, are encoded at once."""
    pieces = [""] * (2 * len(values))
    pieces[1::2] = values
    try:
        pieces[0::2] = map(_TEXT_SIZES.__getitem__, map(len, values))
        return "".join(pieces).encode("ascii")
    except (IndexError, UnicodeEncodeError):
        return _byte_images(list(map(str.encode, values)))


def _byte_images(values: Sequence[bytes]) -> bytes:
    """Return the images of payloads; where all have one length, it is the separator."""
    sizes = set(map(len, values))
    if len(sizes) == 1:
        size = _SIZE.pack(*sizes)
        return size + size.join(values)
    pieces: list[bytes] = [b""] * (2 * len(values))
    pack = _SIZES.__getitem__ if max(sizes) < len(_SIZES) else _SIZE.pack
    pieces[0::2] = map(pack, map(len, values))
    pieces[1::2] = values
    return b"".join(pieces)


def _ints(image: bytes) -> Sequence[int]:
    return _unpacking("4xq", len(image) // _INT_IMAGE_BYTES).unpack(image)


def _texts(image: bytes, count: int) -> list[str]:
    """Return the texts of an image.

    PostgreSQL stores no NUL in a text. So where every text has 1 to 127 bytes, the first three
    bytes of each length, and they alone, are three NULs, and the fourth is one ASCII character.
    """
    if b"\0\0\0\0" not in image:
        if _are_short(image, count):
            return image.translate(None, _SHORT).decode().split("\0\0\0")[1:]
        with suppress(UnicodeDecodeError):
            parts = image.decode().split("\0\0\0")
            if len(parts) == count + 1:
                return [part[1:] for part in parts[1:]]
    return list(map(bytes.decode, _elements(image, count)))


def _are_short(image: bytes, count: int) -> bool:
    """Return whether the bytes 1 to 31 in an image of texts, none empty, are their lengths alone.

    They are as many as the texts, and their sum is that of all lengths. A text of 32 bytes and more
    would add more to this than a control character, which could take its place among them.
    """
    found = image.translate(None, _NOT_SHORT)
    return len(found) == count and sum(found) == len(image) - _SIZE.size * count


def _elements(image: bytes, count: int) -> Sequence[bytes]:
    """Return the texts or payloads of an image as bytes."""
    size, rest = divmod(len(image), count)
    lengths = [image[at::size] for at in range(_SIZE.size)] if rest == 0 else []
    if lengths == [bytes((byte,)) * count for byte in _SIZE.pack(size - _SIZE.size)]:
        return _unpacking(f"4x{size - _SIZE.size}s", count).unpack(image)
    elements = []
    at = 0
    for _ in range(count):
        (length,) = _SIZE.unpack_from(image, at)
        begin = at + _SIZE.size
        at = begin + length
        elements.append(image[begin:at])
    return elements


@lru_cache(maxsize=16)
def _unpacking(element: str, count: int) -> Packing:
    """Return what unpacks an image of `count` elements; to make it costs as much as to use it."""
    return Packing(">" + element * count)


SEAL_BYTES: Final = 32
_DOMAIN: Final = b"orderchain seal 2\0"
_GENESIS: Final = Packing(">16sq")
_BATCH: Final = Packing(">32sqqqqq32s")
_TIME: Final = Packing(">q")
_TIME_AT: Final = 64
"""The offset of a batch's time in what is hashed: after one block of SHA-256."""


def genesis_seal(database_id: UUID, chain_id: int) -> bytes:
    """Return seal_0 of a chain: bound to its database, so that no two databases share a seal."""
    return sha256(_DOMAIN + _GENESIS.pack(database_id.bytes, chain_id)).digest()


def next_seal(
    previous: bytes,
    *,
    epoch: int,
    first_id: int,
    last_id: int,
    row_count: int,
    committed_at_us: int,
    pages: Sequence[PageImage],
) -> bytes:
    """Return the seal after a batch, from the seal before it and all that is stored of it.

    `pages` hold the rows of the batch, in order; where one page ends and the next begins makes no
    difference: a column is covered whole, then the next. `committed_at_us` counts microseconds
    since 1970 UTC, as the sequencer set it.
    """
    columns = zip(*(page.columns for page in pages), strict=True)
    return seal_over(
        previous,
        epoch=epoch,
        first_id=first_id,
        last_id=last_id,
        row_count=row_count,
        committed_at_us=committed_at_us,
        content=content_of(part for parts in columns for part in parts),
    )


def content_of(parts: Iterable[bytes]) -> bytes:
    """Return the digest of a batch's content: the images of its columns, in parts of any length."""
    content = sha256()
    for part in parts:
        content.update(part)
    return content.digest()


def seal_over(
    previous: bytes,
    *,
    epoch: int,
    first_id: int,
    last_id: int,
    row_count: int,
    committed_at_us: int,
    content: bytes,
) -> bytes:
    """Return the same seal, for a known digest of the content."""
    fields = (previous, epoch, first_id, last_id, row_count, committed_at_us, content)
    return sha256(_BATCH.pack(*fields)).digest()


def committed_at_of(
    seal: bytes,
    previous: bytes,
    *,
    epoch: int,
    first_id: int,
    last_id: int,
    row_count: int,
    content: bytes,
    candidates: Iterable[range],
) -> int | None:
    """Return the `committed_at_us` among `candidates` that gives `seal`; None where none does.

    A frame carries all that a seal covers but this time. Only one microsecond gives the seal, so
    the time is proven when it is found. Each candidate costs a hash of one block, about 0.6 us.
    """
    fields = (previous, epoch, first_id, last_id, row_count, 0, content)
    packed = _BATCH.pack(*fields)
    begun = sha256(packed[:_TIME_AT])
    for times in candidates:
        for at_us in times:
            tried = begun.copy()
            tried.update(_TIME.pack(at_us) + content)
            if tried.digest() == seal:
                return at_us
    return None


class Batch(Struct, frozen=True, kw_only=True, dict=True):
    """Linked rows that are committed together, with the seal over them."""

    chain_id: int
    epoch: int
    pid: int
    """Last id of the previous batch; the pid of the first row."""
    first_id: int
    last_id: int
    seal_before: bytes
    seal: bytes
    committed_at_us: int
    """Set by the sequencer, in microseconds since 1970 UTC; never falls along a chain."""
    columns: Columns
    pages: tuple[PageImage, ...]
    """The images of the rows: what COPY sends and the seal covers."""

    @cached_property
    def events(self) -> list[Event]:
        """The rows, one by one. A commit and its frames need none of them: they cost the most."""
        return list(map(Event, *self.columns))

    @property
    def row_count(self) -> int:
        """Number of rows; at least 1."""
        return len(self.columns.ids)

    @property
    def size(self) -> int:
        """Bytes of its images."""
        return sum(page.size for page in self.pages)
