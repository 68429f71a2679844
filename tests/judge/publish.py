"""Commit, then publish: what a topic may hold."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, ClassVar

from .chain_bytes import Row, read_frame
from .rules import Model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .chain_bytes import Frame


class Committed:
    """The rows of a chain by their place, and the seals after its batches."""

    def __init__(self, genesis: bytes) -> None:
        self.rows: list[Row] = []
        self.ids: list[int] = []
        self.seals = {0: genesis}
        self.batches: list[tuple[int, int, int]] = []
        """The batch of each row: its epoch, the id before it, and its last id."""

    def batch(self, epoch: int, seal: bytes, rows: Sequence[Row]) -> None:
        last_id = rows[-1][0]
        self.seals[last_id] = seal
        self.batches += [(epoch, rows[0][1], last_id)] * len(rows)
        self.rows += rows
        self.ids += [row[0] for row in rows]

    def behind(self, row_id: int, count: int) -> list[Row]:
        at = bisect_right(self.ids, row_id)
        return self.rows[at : at + count]

    def forget(self, until_id: int) -> None:
        """Drop rows up to there, and seals before it."""
        count = bisect_right(self.ids, until_id)
        del self.rows[:count], self.ids[:count], self.batches[:count]
        self.seals = {at: seal for at, seal in self.seals.items() if at >= until_id}


class Publish(Model):
    """The topic: frames of committed rows, and heartbeats of a head that was there."""

    RULES: ClassVar[tuple[str, ...]] = (
        "G2 publisher", "G2 heartbeat", "G2 header of a frame", "G2 frame before its commit",
        "G2 batch of a frame", "G2 seal of a frame", "G14 published or on record",
    )  # fmt: skip

    def __init__(self, genesis: bytes, without: str = "") -> None:
        super().__init__(without)
        self.chain = Committed(genesis)
        self.frames: list[Frame] = []

    def batch(self, epoch: int, at_us: int, seal: bytes, rows: Sequence[Row]) -> None:
        del at_us
        self.chain.batch(epoch, seal, rows)

    def frame(self, record: bytes) -> None:
        frame = read_frame(record)
        if frame is None:
            return
        head = frame.ids[2]
        self.rule("G2 publisher", frame.epoch <= frame.publisher_epoch, head)
        if not frame.rows:
            is_seal = self.chain.seals.get(head) == frame.seal_before
            is_head = frame.ids == (head, head, head) and not frame.row_count
            self.rule("G2 heartbeat", is_seal and is_head, frame)
            return
        first, last = frame.rows[0], frame.rows[-1]
        is_right = (*frame.ids, frame.row_count) == (first[1], first[0], last[0], len(frame.rows))
        self.rule("G2 header of a frame", is_right, frame.ids, frame.row_count)
        rows = self.chain.behind(first[1], len(frame.rows))
        self.rule("G2 frame before its commit", frame.rows == rows, first[0])
        if frame.rows == rows:
            self._require_batch(frame, last[0])
        self.frames.append(frame)

    def _require_batch(self, frame: Frame, last_id: int) -> None:
        """Judge what a frame says of its batch, of which it may be a slice."""
        at = bisect_right(self.chain.ids, frame.rows[0][1])
        epoch, before_id, end_id = self.chain.batches[at]
        is_of_one = self.chain.batches[at + len(frame.rows) - 1] == (epoch, before_id, end_id)
        is_right = is_of_one and (frame.epoch, frame.is_batch_end) == (epoch, last_id == end_id)
        self.rule("G2 batch of a frame", is_right, last_id, frame.epoch, epoch)
        after = self.chain.seals[end_id] if frame.is_batch_end else bytes(32)
        is_seal = (frame.seal_before, frame.seal_after) == (self.chain.seals[before_id], after)
        self.rule("G2 seal of a frame", is_seal, last_id)

    def published(self, until_id: int, on_record: Sequence[tuple[int, int]]) -> None:
        """Take note of what is said to be published; `on_record`: after and until of skips."""
        published = {row[0] for frame in self.frames for row in frame.rows}
        missing = [
            row_id
            for row_id in self.chain.ids
            if row_id <= until_id
            and row_id not in published
            and not any(after < row_id <= until for after, until in on_record)
        ]
        self.rule("G14 published or on record", not missing, missing[:5])

    def forget(self, until_id: int) -> None:
        self.chain.forget(until_id)
        self.frames = [frame for frame in self.frames if frame.ids[2] > until_id]

    def promises(self) -> Iterator[tuple[str, bool]]:
        known = set(self.chain.rows)
        yield "G2", all(row in known for frame in self.frames for row in frame.rows)
