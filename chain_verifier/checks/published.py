"""What was published of a chain: what a topic holds, what it need not hold, and in which order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from chain_verifier.findings import Finding, Findings, Kind
from orderchain.frame import default_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_verifier.checks.bucket import Horizon
    from chain_verifier.checks.topic_log import TopicLog
    from chain_verifier.config import TopicSource
    from chain_verifier.database_facts import DatabaseHead

    Ranges = Sequence[tuple[int, int]]


class Bounds(Struct, frozen=True, kw_only=True):
    """The offsets of a partition: records from `first` on, below `end`."""

    first: int
    """Above 0 when retention has removed earlier records."""
    end: int


class Published(ABC):
    """One topic, opened: every record was read once, to learn which frames there are."""

    name: str
    _log: TopicLog
    _bounds: Bounds
    _head: DatabaseHead | None
    """What the database says of the chain, if it is among the sources."""

    @abstractmethod
    def disorder(self, horizon: Horizon) -> Findings:
        """Return the new rows that were published after later ones. Raises SourceBroken."""

    @property
    def span(self) -> int:
        """How many ids lie between the first row and the last."""
        return self._log.walk.highest - (self._log.walk.first_pid or 0)

    @property
    def first_start(self) -> int:
        """The pid of the first frame: earlier rows are not on the topic."""
        return self._log.walk.first_pid or 0

    @property
    def is_silent(self) -> bool:
        """Whether the topic holds neither a frame nor a heartbeat of the chain: it shows nothing.

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
        start = max(horizon.start, self.first_start or head or 0)
        return replace(horizon, start=start, head=None if head is None else max(head, start))

    def notes_on(self, horizon: Horizon, of_all: Horizon, skips: Ranges) -> tuple[str, ...]:
        """Return what the topic holds besides its rows, and what it need not hold."""
        notes = list(self._log.notes())
        if self._bounds.first and not self._log.walk.frames:
            notes.append("retention has removed every frame with rows")
        elif self._bounds.first:
            notes.append(f"retention has removed the rows up to {self.first_start}")
        notes += [f"rows after {after} up to {until} were skipped" for after, until in skips]
        if horizon.head != of_all.head:
            notes.append(f"rows after {horizon.head} are not known to be published yet")
        return tuple(notes)


def place_of(source: TopicSource, chain_id: int, head: DatabaseHead | None) -> tuple[str, int]:
    """Return topic and partition: as named, else as the database says, else by the chain's name."""
    topic = source.topic or (head.topic if head else default_topic(chain_id))
    is_own = head is not None and head.topic == topic
    return topic, head.topic_partition if head is not None and is_own else 0


def without_skipped(findings: Findings, skips: Ranges) -> Findings:
    """Return `findings` without the gaps that are wholly within a skipped range."""
    gaps = sum(_is_skipped(one, skips) for one in _listed(findings))
    if not gaps:
        return findings
    counts = findings.counts | {Kind.GAP.value: findings.counts[Kind.GAP.value] - gaps}
    return Findings(
        kept=tuple(finding for finding in findings.kept if not _is_skipped(finding, skips)),
        counts={kind: count for kind, count in counts.items() if count},
        wholes=tuple(_without(whole, skips) for whole in findings.wholes),
    )


def _listed(findings: Findings) -> list[Finding]:
    """Return those that are listed one by one, as all gaps are."""
    return [one for whole in findings.wholes if isinstance(whole, tuple) for one in whole]


def _without(whole: object, skips: Ranges) -> object:
    if not isinstance(whole, tuple):
        return whole
    return tuple(finding for finding in whole if not _is_skipped(finding, skips))


def _is_skipped(finding: Finding, skips: Ranges) -> bool:
    if finding.kind is not Kind.GAP or finding.after_id is None or finding.until_id is None:
        return False
    return any(after <= finding.after_id and finding.until_id <= until for after, until in skips)
