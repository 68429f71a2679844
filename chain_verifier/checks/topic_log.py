"""Sums up the records of a topic, taken one by one in the order of their offsets. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_verifier.checks.frame_reading import SIGNED, UNKNOWN_TERM, UNSIGNED
from chain_verifier.checks.topic_walk import FrameHead, TopicWalk
from chain_verifier.findings import Finding, Kind
from orderchain.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator


_LOST: Final = "lost"
_DISOWNED: Final = {
    UNSIGNED: "forged, not signed by the leader that they name",
    UNKNOWN_TERM: "of an unknown term, of a life that was lost or of another database",
    _LOST: "of a leader of this database, with rows that it lost",
}
"""Frames that the database disowns, and the text for each kind."""

_COUNTED_APART: Final = frozenset({"heartbeat", *_DISOWNED})


class TopicRecord(Struct, frozen=True, gc=False):
    """One record, judged by itself and by the database."""

    offset: int
    reason: str | None = None
    """Why it is no frame of the chain; the fields below then have no meaning."""
    is_heartbeat: bool | None = None
    first_pid: int | None = None
    first_id: int | None = None
    last_id: int | None = None
    count: int | None = None
    epoch: int | None = None
    sender: str | None = None
    """How its sender is known, as `frame_reading` names it; None without a database."""
    is_genuine: bool = False
    """Signed by a leader, and its seals are those of a batch of the database; True without a
    database."""
    batch_epoch: int | None = None
    """The epoch under which the database holds the batch."""


class TopicLog:
    """The frames of one topic, reduced to their places."""

    def __init__(self, source: str) -> None:
        self.walk = TopicWalk()
        self.forged: set[int] = set()
        """Offsets of frames that the database disowns."""
        self.heartbeat_id = 0
        """The highest head that a genuine heartbeat has reported."""
        self._source = source
        self._counts: Counter[str] = Counter()
        self._epochs: list[Finding] = []

    @property
    def heartbeats(self) -> int:
        """How many genuine heartbeats there are."""
        return self._counts["heartbeat"]

    def take(self, record: TopicRecord) -> None:
        """Take the next record."""
        if record.reason is not None:
            self._counts[record.reason] += 1
        elif not record.is_genuine:
            self._counts[_LOST if record.sender in {None, SIGNED} else record.sender] += 1
            if not record.is_heartbeat:
                self.forged.add(record.offset)
        elif record.is_heartbeat:
            self._counts["heartbeat"] += 1
            self.heartbeat_id = max(self.heartbeat_id, record.last_id or 0)
        else:
            self._take_frame(record)

    def _take_frame(self, record: TopicRecord) -> None:
        frame = FrameHead(
            offset=record.offset,
            first_pid=record.first_pid or 0,
            first_id=record.first_id or 0,
            last_id=record.last_id or 0,
            count=record.count or 0,
            epoch=record.epoch or 0,
        )
        self.walk.add(frame)
        if record.epoch != record.batch_epoch:
            self._epochs.append(self._wrong_epoch(frame.first_id, frame.epoch, record.batch_epoch))

    def wrong_epochs(self) -> list[Finding]:
        """Return the frames under another epoch than their batch, or under a lower one than earlier
        frames; at most one finding per frame.
        """
        named = {(one.id, one.epoch) for one in self._epochs}
        falls = [
            self._wrong_epoch(fall.id, fall.epoch, fall.expected_epoch)
            for fall in self.walk.falls
            if (fall.id, fall.epoch) not in named
        ]
        return [*self._epochs, *falls]

    def _wrong_epoch(self, row_id: int, epoch: int, expected: int | None) -> Finding:
        return Finding(
            kind=Kind.WRONG_EPOCH,
            source=self._source,
            id=row_id,
            epoch=epoch,
            expected_epoch=expected,
        )

    def seen_again(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges (after, until] of rows that were published before."""
        for mark in self.walk.marks.values():
            yield from mark.seen

    def notes(self) -> Iterator[str]:
        """Yield what the topic holds besides rows that occur once."""
        frames = counted(self.walk.frames, "frame")
        yield f"{frames}, {counted(self.heartbeats, 'heartbeat')}"
        refused = {name: n for name, n in self._counts.items() if name not in _COUNTED_APART}
        if refused:
            shown = ", ".join(f"{count} {name}" for name, count in sorted(refused.items()))
            records = counted(sum(refused.values()), "record")
            yield f"no frame of the chain: {records} ({shown})"
        for kind, reason in _DISOWNED.items():
            if self._counts[kind]:
                yield f"{reason}: {counted(self._counts[kind], 'frame')}"
        repeats = sum(bool(mark.seen) for mark in self.walk.marks.values())
        if repeats:
            yield f"with rows that were published before: {counted(repeats, 'frame')}"
