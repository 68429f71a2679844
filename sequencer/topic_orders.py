"""Records of a topic become orders: decisions only, values in and values out."""

from __future__ import annotations

from hashlib import sha256
from struct import Struct as Packer
from typing import TYPE_CHECKING, Final

from orderchain.batch import IntakeMark
from orderchain.client_key import SEPARATOR
from orderchain.errors import IntakeLost, OrderError
from sequencer.order import Order
from sequencer.sifting import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orderchain.ports import SourceRecord

_DIGEST: Final = Packer(">q32s")
_RECORD: Final = Packer(">qqqq")
_ABSENT: Final = -1
_KEY_BYTES_SHOWN: Final = 64


def source_of(topic: str, partition: int) -> str:
    """Return the name under which a partition's mark and rejects are stored."""
    return f"topic:{topic}:{partition}"


class OrderMaker:
    """Makes orders of the records of one partition."""

    def __init__(self, topic: str, partition: int) -> None:
        self._reserved = f"{topic}/"
        self._keyless = f"{topic}/{partition}{SEPARATOR}"

    def order_of(self, record: SourceRecord) -> Order | Refusal:
        """Return the order that `record` holds, or why it holds none.

        Its key is the record's key; without one it is `TOPIC/PARTITION#OFFSET`, which costs no
        look-up, since offsets rise.
        """
        if record.key is None:
            key = f"{self._keyless}{record.offset}"
        else:
            try:
                key = record.key.decode()
            except UnicodeDecodeError:
                error = OrderError("key", record.key[:_KEY_BYTES_SHOWN], "UTF-8 text")
                return Refusal(None, error)
            if key.startswith(self._reserved):
                # Else one record might claim the key of another, or a number above all of them.
                expected = f"one that does not begin with {self._reserved}, as do those made here"
                return Refusal(key, OrderError("key", key, expected))
        if record.value is None:
            return Refusal(key, OrderError("value", None, "an order"))
        time_ns = record.timestamp * 1_000_000 if record.timestamp >= 0 else None
        return Order(key, record.value, time_ns)


def mark_behind(mark: IntakeMark, records: Sequence[SourceRecord], next_offset: int) -> IntakeMark:
    """Return the mark behind `records`, which follow `mark`; its digest is the last one's."""
    digest = record_digest(records[-1]) if records else mark.digest
    return IntakeMark(
        source=mark.source, position=next_offset, digest=digest, previous=mark.position
    )


def record_digest(record: SourceRecord) -> bytes:
    """Return what tells a record from every other: its offset, and a hash of all that it holds."""
    key, value = record.key, record.value
    sizes = (_ABSENT if key is None else len(key), _ABSENT if value is None else len(value))
    head = _RECORD.pack(record.offset, record.timestamp, *sizes)
    return _DIGEST.pack(record.offset, sha256(head + (key or b"") + (value or b"")).digest())


def start_offset(mark: IntakeMark, first: int, end: int) -> int:
    """Return where to read on behind `mark`, in a partition that holds `first` to before `end`.

    That is the last record that was taken, where it is still there: it shows whether this is the
    log that was read before. Raises IntakeLost where records are missing.
    """
    if end < mark.position:
        raise IntakeLost(
            mark.source, mark.position, f"it ends at {end}: it was truncated or made anew"
        )
    if first > mark.position:
        raise IntakeLost(
            mark.source, mark.position, f"it begins at {first}: records were deleted before that"
        )
    last_offset = last_offset_of(mark)
    return mark.position if last_offset is None or last_offset < first else last_offset


def last_offset_of(mark: IntakeMark) -> int | None:
    """Return the offset of the last record that was taken, None where there is none."""
    return int(_DIGEST.unpack(mark.digest)[0]) if mark.digest else None


def without_known(mark: IntakeMark, records: Sequence[SourceRecord]) -> Sequence[SourceRecord]:
    """Return `records`, read from the last one that was taken on, without that one.

    Raises IntakeLost where it is not the one that was taken: this is another log.
    """
    if not records or record_digest(records[0]) != mark.digest:
        raise IntakeLost(
            mark.source,
            mark.position,
            f"the record at {last_offset_of(mark)} is another one: the topic was made anew",
        )
    return records[1:]


def first_marks(
    topic: str, stored: Mapping[int, IntakeMark], bounds: Mapping[int, tuple[int, int]], start: str
) -> dict[int, IntakeMark]:
    """Return where to begin in the partitions that have no mark yet.

    At their first record; at their end only where the topic was never read and `start` says so: a
    partition that was added later is read whole.
    """
    from_end = start == "latest" and not stored
    return {
        partition: IntakeMark(
            source=source_of(topic, partition), position=end if from_end else first, digest=b""
        )
        for partition, (first, end) in bounds.items()
        if partition not in stored
    }
