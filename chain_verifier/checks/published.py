"""Records of a chain on Kafka: which a topic holds, which it need not hold, and their order.

The records are taken one by one in the order of their offsets, and only summed up. Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.frame import default_topic
from chain_kernel.text import counted
from chain_verifier.checks.topic_frames import (
    SIGNED,
    UNKNOWN_TERM,
    UNSIGNED,
    TopicRecord,
    TopicWalk,
)
from chain_verifier.findings import Finding, Findings, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chain_verifier.checks.buckets import Horizon
    from chain_verifier.checks.topic_frames import Ranges
    from chain_verifier.config import TopicSource
    from chain_verifier.database_facts import DatabaseHead


_LOST: Final = "lost"
_ARCHIVED: Final = "archived"
_DISOWNED: Final = {
    UNSIGNED: "forged, not signed by the leader that they name",
    UNKNOWN_TERM: "of an unknown term, of a life that was lost or of another database",
    _LOST: "of a leader of this database, with rows that it lost",
}
"""Frames that the database disowns, and the text for each kind."""

_COUNTED_APART: Final = frozenset({"heartbeat", _ARCHIVED, *_DISOWNED})


class TopicLog:
    """The frames of one topic, reduced to their places."""

    def __init__(self, source: str, boundary_id: int = 0) -> None:
        """`boundary_id` is where rows end that the database has no more, since they are archived:
        what a leader has signed up to there is neither confirmed nor disowned."""
        self.walk = TopicWalk()
        self.forged: set[int] = set()
        """Offsets of frames that the database disowns."""
        self.heartbeat_id = 0
        """The highest head that a genuine heartbeat has reported."""
        self._source = source
        self._boundary_id = boundary_id
        self._counts: Counter[str] = Counter()
        self._epochs: list[Finding] = []

    @property
    def heartbeats(self) -> int:
        """Number of genuine heartbeats."""
        return self._counts["heartbeat"]

    def take(self, record: TopicRecord) -> None:
        """Take the next record."""
        is_archived = record.sender == SIGNED and record.last_id <= self._boundary_id
        if record.reason is not None:
            self._counts[record.reason] += 1
        elif not record.is_genuine and is_archived:
            self._counts[_ARCHIVED] += 1
        elif not record.is_genuine:
            self._counts[_LOST if record.sender in {None, SIGNED} else record.sender] += 1
            if not record.is_heartbeat:
                self.forged.add(record.offset)
        elif record.is_heartbeat:
            self._counts["heartbeat"] += 1
            self.heartbeat_id = max(self.heartbeat_id, record.last_id)
        else:
            self.walk.add(record)
            if record.epoch != record.batch_epoch:
                self._epochs.append(self._wrong_epoch(record, record.batch_epoch))

    def wrong_epochs(self) -> list[Finding]:
        """Return the frames under another epoch than their batch, or under a lower one than earlier
        frames; at most one finding per frame.
        """
        named = {(one.id, one.epoch) for one in self._epochs}
        falls = [
            self._wrong_epoch(frame, expected)
            for frame, expected in self.walk.falls
            if (frame.first_id, frame.epoch) not in named
        ]
        return [*self._epochs, *falls]

    def _wrong_epoch(self, frame: TopicRecord, expected: int | None) -> Finding:
        return Finding(
            kind=Kind.WRONG_EPOCH,
            source=self._source,
            id=frame.first_id,
            epoch=frame.epoch,
            expected_epoch=expected,
        )

    def seen_again(self) -> tuple[int, int] | None:
        """Return the range (after, until] over all rows that were published before."""
        seen = [each for mark in self.walk.marks.values() for each in mark.seen]
        return (min(seen)[0], max(until for _, until in seen)) if seen else None

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
        if self._counts[_ARCHIVED]:
            yield f"of rows that are archived: {counted(self._counts[_ARCHIVED], 'frame')}"
        repeats = sum(bool(mark.seen) for mark in self.walk.marks.values())
        if repeats:
            yield f"with rows that were published before: {counted(repeats, 'frame')}"


class Bounds(Struct, frozen=True, kw_only=True):
    """The offsets of a partition: records from `first` on, below `end`."""

    first: int
    """Above 0 when retention has removed earlier records."""
    end: int


class PublishedTopic(ABC):
    """One topic, opened: every record was read once, to learn which frames there are."""

    has_positions: Final = False
    """The order of frames is checked by their offsets; see `disorder`."""
    name: str
    _log: TopicLog
    _bounds: Bounds
    _head: DatabaseHead | None
    """The database's record of the chain, if it is among the sources."""
    may_lack: Ranges
    """Ranges (after, until] that were never published, as the database says once the end of the
    topic is known."""

    @abstractmethod
    def disorder(self, horizon: Horizon) -> Findings:
        """Return the new rows that were published after later ones. Raises SourceBroken."""

    @property
    def span(self) -> int:
        """Number of ids from the first row to the last."""
        return self._log.walk.highest - (self._log.walk.first_pid or 0)

    @property
    def removed_until(self) -> int:
        """Up to which row retention has removed the frames; 0 if it has removed none."""
        return (self._log.walk.first_pid or 0) if self._bounds.first else 0

    @property
    def is_silent(self) -> bool:
        """True if the topic holds neither a frame nor a heartbeat of the chain: it shows nothing.

        The publisher of an idle chain sends heartbeats, so an idle chain does not look like this.
        """
        return not self._log.walk.frames and not self._log.heartbeats

    def narrowed(self, horizon: Horizon) -> Horizon:
        """Return the part of `horizon` that the topic must hold: without what retention removed,
        and without what the database does not yet report as published.
        """
        head = horizon.head
        if self._head is not None and head == self._head.last_id:
            known_head = max(
                self._head.published_id, self._log.heartbeat_id, self._log.walk.highest
            )
            head = min(known_head, head)
        if not self._bounds.first:
            return replace(horizon, head=head)
        # A first frame may begin at 0: then only heartbeats were removed.
        first = self._log.walk.first_pid
        start = max(horizon.start, (head or 0) if first is None else first)
        return replace(horizon, start=start, head=None if head is None else max(head, start))

    def notes_on(self, horizon: Horizon, of_all: Horizon) -> tuple[str, ...]:
        """Return what the topic holds besides its rows, and what it need not hold."""
        notes = list(self._log.notes())
        if self._bounds.first and not self._log.walk.frames:
            notes.append("retention has removed every frame with rows")
        elif self.removed_until:
            notes.append(f"retention has removed the rows up to {self.removed_until}")
        notes += [
            f"rows after {after} up to {until} were skipped" for after, until in self.may_lack
        ]
        if horizon.head != of_all.head:
            notes.append(f"rows after {horizon.head} are not known to be published yet")
        return tuple(notes)


def place_of(source: TopicSource, chain_id: int, head: DatabaseHead | None) -> tuple[str, int]:
    """Return topic and partition: as named, else as the database says, else by the chain's name."""
    topic = source.topic or (head.topic if head else default_topic(chain_id))
    is_own = head is not None and head.topic == topic
    return topic, head.topic_partition if head is not None and is_own else 0
