"""Checks each next frame of a topic, as it arrives. Pure: frames in, findings out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from chain_verifier.checks.topic_walk import FrameHead, TopicWalk, WalkState
from chain_verifier.findings import Finding, Kind
from orderchain.monitoring import Metric

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Ranges = Sequence[tuple[int, int]]


class Arrived(Struct, frozen=True, kw_only=True):
    """A genuine frame or heartbeat, with what the database says of it."""

    frame: FrameHead
    is_heartbeat: bool
    batch_epoch: int | None
    """The epoch under which the database holds its batch; None for a heartbeat."""


class FollowStats(Struct, frozen=True, kw_only=True):
    """How far a follower is."""

    verified_id: int
    """All rows of the topic up to it were looked at."""
    step_age_seconds: float
    """Since the last step ended; a topic with a leader has a heartbeat at least every few s."""
    findings: int
    """Findings that this follower reported."""


METRICS: Final = (
    Metric[FollowStats](
        "orderchain_verifier_verified_id", "gauge", "Orders of the topic up to it were verified.",
        lambda stats: stats.verified_id,
    ),
    Metric[FollowStats](
        "orderchain_verifier_verified_age_seconds", "gauge",
        "Seconds since the verifier last looked at new records, or started.",
        lambda stats: stats.step_age_seconds,
    ),
    Metric[FollowStats](
        "orderchain_verifier_findings_total", "counter", "Findings of this process.",
        lambda stats: stats.findings,
    ),
)  # fmt: skip
"""What a follower exports, with the label `chain`."""


class Pursuit:
    """Follows one topic, with the state that the next process needs to continue."""

    def __init__(self, source: str, state: WalkState | None, *, is_cut: bool) -> None:
        """Begin, or continue from `state`. `is_cut`: retention has removed earlier records."""
        self._source = source
        self._walk = TopicWalk(state)
        self._is_cut = is_cut

    def state(self) -> WalkState:
        """Return what to keep."""
        return self._walk.state()

    def take(self, arrived: Sequence[Arrived], skips: Ranges) -> list[Finding]:
        """Return what is wrong with these frames, given in the order of offsets."""
        return [finding for one in arrived for finding in self._take(one, skips)]

    def _take(self, one: Arrived, skips: Ranges) -> Iterator[Finding]:
        frame, walk = one.frame, self._walk
        yield from self._gap(frame, skips)
        if one.is_heartbeat:
            # What it reports as published was looked for now: a gap is not reported twice.
            walk.highest = max(walk.highest, frame.last_id)
            if walk.first_pid is None:
                walk.first_pid = frame.last_id
            return
        before = walk.highest
        walk.is_late, walk.falls = False, []
        walk.add(frame)
        walk.marks.clear()
        if walk.is_late:
            yield self._finding(
                Kind.OUT_OF_ORDER,
                id=frame.first_id,
                until_id=frame.last_id,
                after_id=before,
                count=frame.count,
            )
        if one.batch_epoch is not None and frame.epoch != one.batch_epoch:
            epochs = {"epoch": frame.epoch, "expected_epoch": one.batch_epoch}
            yield self._finding(Kind.WRONG_EPOCH, id=frame.first_id, **epochs)

    def _gap(self, frame: FrameHead, skips: Ranges) -> Iterator[Finding]:
        walk = self._walk
        after = walk.highest
        if walk.first_pid is None and self._is_cut:
            return
        is_skipped = any(low <= after and frame.first_pid <= high for low, high in skips)
        if frame.first_pid > after and not is_skipped:
            yield self._finding(Kind.GAP, after_id=after, until_id=frame.first_pid)

    def _finding(self, kind: Kind, **fields: Any) -> Finding:  # noqa: ANN401 - own type per field
        return Finding(kind=kind, source=self._source, **fields)
