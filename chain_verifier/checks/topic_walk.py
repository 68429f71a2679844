"""Walks the frames of a topic in the order of their offsets, as a receiver reads them. Pure.

A publisher resends a tail whenever it does not know that the tail arrived, and Kafka repeats what a
retry sent twice; a receiver drops both. So only the first occurrence of a row counts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from msgspec import Struct


class FrameHead(Struct, frozen=True, gc=False):
    """A frame with rows, reduced to its place in the chain."""

    offset: int
    first_pid: int
    first_id: int
    last_id: int
    count: int
    epoch: int


class FrameMark(Struct, frozen=True):
    """What is special about a frame that does not simply continue where the previous one ended."""

    highest_before: int
    """The highest id of the earlier frames."""
    seen: tuple[tuple[int, int], ...]
    """Ranges (after, until] of ids that earlier frames already hold."""

    def is_seen(self, row_id: int) -> bool:
        """Whether an earlier frame holds the range of `row_id`."""
        return any(after < row_id <= until for after, until in self.seen)


class EpochFall(Struct, frozen=True):
    """A frame of new rows whose epoch is below that of earlier rows."""

    id: int
    epoch: int
    expected_epoch: int


class WalkState(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a walk must remember to continue later."""

    frames: int
    first_pid: int | None
    highest: int
    epoch: int
    seen: tuple[tuple[int, int], ...]


class TopicWalk:
    """What the frames of a topic hold, taken one by one in the order of offsets."""

    def __init__(self, state: WalkState | None = None) -> None:
        self.frames = 0
        self.first_pid: int | None = None
        """The pid of the first frame: where the topic begins."""
        self.highest = 0
        """The highest id of all frames so far."""
        self.marks: dict[int, FrameMark] = {}
        """By offset."""
        self.is_late = False
        """Whether some frame holds new rows after later ones."""
        self.falls: list[EpochFall] = []
        self._epoch = 0
        # Ranges (after, until] that were seen, disjoint, in order, not touching.
        self._afters: list[int] = []
        self._untils: list[int] = []
        if state is not None:
            self._go_on(state)

    def state(self) -> WalkState:
        """Return what another walk needs to continue from here, without marks and falls."""
        seen = tuple(zip(self._afters, self._untils, strict=True))
        return WalkState(self.frames, self.first_pid, self.highest, self._epoch, seen)

    def _go_on(self, state: WalkState) -> None:
        self.frames = state.frames
        self.first_pid = state.first_pid
        self.highest = state.highest
        self._epoch = state.epoch
        self._afters = [after for after, _ in state.seen]
        self._untils = [until for _, until in state.seen]

    def add(self, frame: FrameHead) -> None:
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

    def _note_new(self, frame: FrameHead) -> None:
        if frame.first_pid < self.highest:
            self.is_late |= self._has_new_below(frame)
        elif frame.epoch < self._epoch:
            self.falls.append(EpochFall(frame.first_id, frame.epoch, self._epoch))
        else:
            self._epoch = frame.epoch

    def _has_new_below(self, frame: FrameHead) -> bool:
        until = min(frame.last_id, self.highest)
        return self._seen_in(frame.first_pid, until) != ((frame.first_pid, until),)

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
