"""Commit, then publish: what a topic may hold."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, ClassVar

from .chain_bytes import Row, read_frame
from .rules import Model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Committed:
    """The rows of a chain by their place, and the seals after its batches."""

    def __init__(self, genesis: bytes) -> None:
        self.rows: list[Row] = []
        self.ids: list[int] = []
        self.seals = {0: genesis}
        self.epoch_of: dict[int, int] = {}
        """By the last ids of batches, and so `first_of`: the row before the batch."""
        self.before: dict[int, int] = {}

    def batch(self, epoch: int, seal: bytes, rows: Sequence[Row]) -> None:
        last_id = rows[-1][0]
        self.before[last_id] = rows[0][1]
        self.epoch_of[last_id] = epoch
        self.seals[last_id] = seal
        self.rows += rows
        self.ids += [row[0] for row in rows]

    def behind(self, row_id: int, count: int) -> list[Row]:
        at = bisect_right(self.ids, row_id)
        return self.rows[at : at + count]


class Publish(Model):
    """The topic: frames of committed rows, and heartbeats of a head that was there."""

    RULES: ClassVar[tuple[str, ...]] = (
        "G2 frame before its commit", "G2 heartbeat", "G2 publisher", "G2 seal of a frame",
    )  # fmt: skip

    def __init__(self, genesis: bytes, without: str = "") -> None:
        super().__init__(without)
        self.chain = Committed(genesis)
        self.published: list[list[Row]] = []

    def batch(self, epoch: int, at_us: int, seal: bytes, rows: Sequence[Row]) -> None:
        del at_us
        self.chain.batch(epoch, seal, rows)

    def frame(self, record: bytes) -> None:
        frame = read_frame(record)
        if frame is None:
            return
        self.rule("G2 publisher", frame.epoch <= frame.publisher_epoch, frame.head)
        if not frame.rows:
            is_seal = self.chain.seals.get(frame.head) == frame.seal_before
            self.rule("G2 heartbeat", is_seal, frame.head)
            return
        rows = self.chain.behind(frame.rows[0][1], len(frame.rows))
        self.rule("G2 frame before its commit", frame.rows == rows, frame.rows[0][0])
        if frame.seal_after is not None:
            before = self.chain.before.get(frame.head)
            expected = (self.chain.seals.get(before or 0), self.chain.seals.get(frame.head))
            is_seal = (frame.seal_before, frame.seal_after) == expected
            self.rule("G2 seal of a frame", is_seal, frame.head)
        self.published.append(frame.rows)

    def skips(self, on_record: Sequence[tuple[int, int]]) -> None:
        """Take note of the end of a topic that kept everything; `on_record`: after and until."""
        published = {row[0] for rows in self.published for row in rows}
        missing = [
            row_id
            for row_id in self.chain.ids
            if row_id not in published
            and not any(after < row_id <= until for after, until in on_record)
        ]
        self.rule("G14 published or on record", not missing, missing[:5])

    def promises(self) -> Iterator[tuple[str, bool]]:
        known = set(self.chain.rows)
        yield "G2", all(row in known for rows in self.published for row in rows)
