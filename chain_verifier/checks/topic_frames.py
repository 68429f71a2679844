"""The frames of a topic, as a receiver reads them: decoded, walked, and followed. Pure.

A record is a frame with rows, or there is a reason why it is none. A walk takes frames in the order
of their offsets. A publisher resends a tail whenever it does not know that the tail arrived, and
Kafka repeats what a retry sent twice; a receiver drops both. So only the first occurrence of a row
counts. A topic follower is a walk over a topic that grows: it checks each next frame as it arrives.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.errors import FrameError
from chain_kernel.frame import decode_header, decode_linked_body, is_signed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from chain_kernel.frame import FrameHeader
    from chain_kernel.model import Event

    Ranges = Sequence[tuple[int, int]]


class TopicRecord(Struct, frozen=True, gc=False):
    """One record, judged by itself and by the database; a frame is reduced to its place."""

    offset: int
    reason: str | None = None
    """Why it is no frame of the chain; the fields below then have no meaning."""
    is_heartbeat: bool = False
    first_pid: int = 0
    first_id: int = 0
    last_id: int = 0
    count: int = 0
    epoch: int = 0
    seal_before: bytes = b""
    seal_after: bytes = b""
    is_batch_end: bool = False
    sender: str | None = None
    """State of its sender: SIGNED, UNSIGNED or UNKNOWN_TERM; None without a database."""
    is_genuine: bool = False
    """Signed by a leader, and its seals are those of a batch of the database; True without a
    database."""
    batch_epoch: int | None = None
    """The epoch under which the database holds the batch."""


class FrameMark(Struct, frozen=True):
    """Deviations of a frame that does not simply continue where the previous one ended."""

    highest_before: int
    """The highest id of the earlier frames."""
    seen: tuple[tuple[int, int], ...]
    """Ranges (after, until] of ids that earlier frames already hold."""

    def is_seen(self, row_id: int) -> bool:
        """Return whether an earlier frame holds the range of `row_id`."""
        return any(after < row_id <= until for after, until in self.seen)


class TopicWalk:
    """Contents of the frames of a topic, taken one by one in the order of offsets."""

    def __init__(self) -> None:
        self.frames = 0
        self.first_pid: int | None = None
        """The pid of the first frame: where the topic begins."""
        self.highest = 0
        """The highest id of all frames so far."""
        self.marks: dict[int, FrameMark] = {}
        """By offset."""
        self.is_late = False
        """True if some frame holds new rows after later ones."""
        self.falls: list[tuple[TopicRecord, int]] = []
        """Frames of new rows whose epoch is below that of earlier rows, and that one."""
        self._epoch = 0
        # Ranges (after, until] that were seen, disjoint, in order, not touching.
        self._afters: list[int] = []
        self._untils: list[int] = []

    def add(self, frame: TopicRecord) -> None:
        """Take the next frame."""
        self.frames += 1
        if self.first_pid is None:
            self.first_pid = self.highest = frame.first_pid
        seen = self._seen_in(frame.first_pid, frame.last_id)
        if seen or frame.first_pid < self.highest:
            self.marks[frame.offset] = FrameMark(self.highest, seen)
        if seen != ((frame.first_pid, frame.last_id),):
            self._note_new(frame)
        self._cover(frame.first_pid, frame.last_id)
        self.highest = max(self.highest, frame.last_id)

    def _note_new(self, frame: TopicRecord) -> None:
        if frame.first_pid < self.highest:
            until = min(frame.last_id, self.highest)
            self.is_late |= self._seen_in(frame.first_pid, until) != ((frame.first_pid, until),)
        elif frame.epoch < self._epoch:
            self.falls.append((frame, self._epoch))
        else:
            self._epoch = frame.epoch

    def _seen_in(self, after: int, until: int) -> tuple[tuple[int, int], ...]:
        """Return what was seen of (after, until], cut to it."""
        index = bisect_right(self._untils, after)
        found = []
        while index < len(self._afters) and self._afters[index] < until:
            found.append((max(after, self._afters[index]), min(until, self._untils[index])))
            index += 1
        return tuple(found)

    def _cover(self, after: int, until: int) -> None:
        """Add (after, until], and join the ranges that touch it."""
        first = bisect_left(self._untils, after)
        end = bisect_right(self._afters, until)
        if first < end:
            after = min(after, self._afters[first])
            until = max(until, self._untils[end - 1])
        self._afters[first:end] = [after]
        self._untils[first:end] = [until]


OTHER_CHAIN: Final = "chain"
"""The reason counted for a frame of another chain, in addition to those of `docs/wire.md`."""

FIRST: Final = 0
REPEATED: Final = 1
LATE: Final = 2
"""New, but published after a row that follows it in the chain."""
FORGED: Final = 3
"""A row of a frame that the database disowns."""


SIGNED: Final = "signed"
"""Sent by a leader whom the database knows."""
UNSIGNED: Final = "unsigned"
"""Not signed with the key of the term that it names: forged, or corrupted in transit."""
UNKNOWN_TERM: Final = "unknown term"
"""From a term that the database does not know: from a lost life, or from another database."""


class FrameKeys:
    """The keys of all terms of a chain, by nonce. No text that is made of this shows them."""

    def __init__(self, by_nonce: Mapping[bytes, bytes]) -> None:
        self._by_nonce = dict(by_nonce)

    def __repr__(self) -> str:
        return f"FrameKeys({len(self._by_nonce)} terms)"

    def sender_of(self, value: bytes, header: FrameHeader) -> str:
        """Return how the sender of the frame `value` is known: SIGNED, UNSIGNED or UNKNOWN_TERM."""
        key = self._by_nonce.get(header.publisher_nonce)
        if key is None:
            return UNKNOWN_TERM
        return SIGNED if is_signed(value, key) else UNSIGNED


def header_of(value: bytes | None, chain_id: int) -> FrameHeader | str:
    """Return the header of a frame, or the reason why a record is no frame of the chain."""
    try:
        header = decode_header(value)
        if header.chain_id != chain_id:
            return OTHER_CHAIN
        if value is not None and not header.is_heartbeat:
            decode_linked_body(value, header)
    except FrameError as error:
        return error.reason
    return header


def events_of(value: bytes | None, chain_id: int) -> list[Event]:
    """Return the rows of a frame of the chain; none for any other record."""
    try:
        header = decode_header(value)
        if value is None or header.chain_id != chain_id or header.is_heartbeat:
            return []
        return decode_linked_body(value, header)
    except FrameError:
        return []


def record_of(
    offset: int, value: bytes | None, chain_id: int, keys: FrameKeys | None
) -> TopicRecord:
    """Return a record judged by itself, and by `keys` who has sent it; without them it is genuine.

    The whole frame is decoded: if a receiver drops it because of its body, it is no frame here
    either.
    """
    header = header_of(value, chain_id)
    if value is None or isinstance(header, str):
        return TopicRecord(offset=offset, reason=str(header))
    return TopicRecord(
        offset=offset,
        is_heartbeat=header.is_heartbeat,
        first_pid=header.first_pid,
        first_id=header.first_id,
        last_id=header.last_id,
        count=header.count,
        epoch=header.epoch,
        seal_before=header.seal_before,
        seal_after=header.seal_after,
        is_batch_end=header.is_batch_end,
        sender=None if keys is None else keys.sender_of(value, header),
        is_genuine=keys is None,
        batch_epoch=header.epoch,
    )


def judged(record: TopicRecord, batch: Any) -> TopicRecord:  # noqa: ANN401 - a record of the database
    """Return a frame that is (a slice of) `batch`, which comes after the seal that it names, as
    genuine, if a leader of the chain has signed it.
    """
    if record.sender != SIGNED or batch is None or record.seal_before != batch["anchor"]:
        return record
    last_id, is_end = record.last_id, record.is_batch_end
    if record.is_heartbeat:
        is_genuine = last_id == batch["anchor_id"]
    elif batch["batch_last_id"] is None or last_id > batch["batch_last_id"]:
        is_genuine = False
    else:
        is_last = last_id == batch["batch_last_id"] and record.seal_after == batch["batch_seal"]
        is_genuine = is_last or not is_end
    return replace(record, is_genuine=is_genuine, batch_epoch=batch["batch_epoch"])


def rows_standing(
    value: bytes | None,
    chain_id: int,
    mark: FrameMark | None,
    standings: Collection[int],
    *,
    is_forged: bool = False,
) -> list[Event]:
    """Return the rows of a frame with `mark` that have one of `standings` on the topic."""
    if is_forged or mark is None:
        standing = FORGED if is_forged else FIRST
        return events_of(value, chain_id) if standing in standings else []
    found = []
    for event in events_of(value, chain_id):
        is_late = event.id < mark.highest_before
        standing = REPEATED if mark.is_seen(event.id) else LATE if is_late else FIRST
        if standing in standings:
            found.append(event)
    return found
