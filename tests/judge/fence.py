"""Fence, commits and take-overs of one chain, and the answers that callers may get."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar

from .chain_bytes import Row, next_seal
from .rules import Model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Fence(Model):
    """The chain in the database: one row of the head, raised by terms and by batches.

    A key may be committed while somebody asks for it, or has not heard the outcome.
    """

    RULES: ClassVar[tuple[str, ...]] = (
        "G7 next epoch", "G7 head of a term", "G7 fence", "G1 parent", "G1 linked", "G1 head",
        "G13 seal", "G13 time", "G4 one row a key", "G9 said not to be", "G3 not replicated",
        "G3 acknowledged before committed", "G4 one place a key", "G4 conflict",
        "G4 too old, not below", "G4 too old within the window", "G9 reported that it was not",
    )  # fmt: skip

    def __init__(self, genesis: bytes, without: str = "") -> None:
        super().__init__(without)
        self.epoch, self.head, self.seal, self.at_us = 0, 0, genesis, 0
        self.after_id = 0
        """Rows up to it were forgotten."""
        self.rows: list[Row] = []
        self.epochs: list[int] = []
        """The epoch of each row."""
        self.place: dict[str, int] = {}
        """Where the row of a key is in `rows`."""
        self.answers: dict[str, int] = {}
        self.replicated = 0
        self._open: Counter[str] = Counter()
        self._in_doubt: set[str] = set()

    def term(self, epoch: int, after_id: int) -> None:
        self.rule("G7 next epoch", epoch == self.epoch + 1, epoch, self.epoch)
        self.rule("G7 head of a term", after_id == self.head, epoch, after_id, self.head)
        self.epoch = epoch

    def batch(self, epoch: int, at_us: int, seal: bytes, rows: Sequence[Row]) -> None:
        pids = [rows[0][1], *(row[0] for row in rows)]
        self.rule("G1 parent", rows[0][1] == self.head, rows[0][1], self.head)
        is_linked = all(row[1] == pid < row[0] for row, pid in zip(rows, pids, strict=False))
        self.rule("G1 linked", is_linked, rows[0][0])
        self.rule("G7 fence", epoch == self.epoch, f"batch of epoch {epoch} in {self.epoch}")
        self.rule("G13 time", at_us >= self.at_us, at_us, self.at_us)
        self.rule("G13 seal", seal == next_seal(self.seal, epoch, at_us, rows), rows[-1][0])
        for row in rows:
            self.rule("G4 one row a key", row[2] not in self.place, row)
            self.rule("G9 said not to be", self.may_commit(row[2]), row[2], row[0])
            self.place[row[2]] = len(self.rows)
            self.rows.append(row)
            self.epochs.append(epoch)
        self.head, self.seal, self.at_us = rows[-1][0], seal, at_us

    def stored_head(self, *head: object) -> None:
        """Take note of the head's own row: id, seal and epoch."""
        self.rule("G1 head", head == (self.head, self.seal, self.epoch), head[0], self.head)

    def durable(self, until_id: int) -> None:
        """Say how far the synchronous standby has come."""
        self.replicated = max(self.replicated, until_id)

    def asked(self, keys: Sequence[str]) -> None:
        self._open.update(keys)

    def unheard(self, keys: Sequence[str]) -> None:
        """Take note of a call whose end nobody heard of, or left open."""
        self._open.subtract(keys)
        self._in_doubt.update(keys)

    def not_done(self, keys: Sequence[str], said: str) -> None:
        """Take note of an error which says that nothing was committed, nor will be."""
        self._open.subtract(keys)
        for key in keys:
            is_sure = not self.may_commit(key)
            is_not = key not in self.place
            self.rule("G9 reported that it was not", is_not or not is_sure, key, said)

    def answered(self, key: str, payload: bytes, row_id: int, pid: int) -> None:
        self._open[key] -= 1
        self._in_doubt.add(key)
        at = self.place.get(key)
        self.rule("G3 acknowledged before committed", at is not None, key, row_id)
        if at is not None:
            row = self.rows[at]
            same = (row[0], row[1], row[4]) == (row_id, pid, payload)
            self.rule("G4 one place a key", same, key, (row_id, pid), row)
        self.rule("G3 not replicated", row_id <= self.replicated, key, row_id, self.replicated)
        self.answers[key] = row_id

    def conflict(self, key: str, payload: bytes, named_id: int) -> None:
        """Take note of a refusal: the key has another content, in the row that is named."""
        row = self.rows[self.place[key]] if key in self.place else None
        is_right = row is not None and row[0] == named_id and row[4] != payload
        self.rule("G4 conflict", is_right, key, named_id, row)

    def too_old(self, key: str, number: int, highest: int, window_rows: int) -> None:
        self.rule("G4 too old, not below", number < highest, key, highest)
        if (at := self.place.get(key)) is not None:
            is_past = len(self.rows) - 1 - at >= window_rows
            self.rule("G4 too old within the window", is_past, key, self.rows[at][0])

    def may_commit(self, key: str) -> bool:
        return self._open[key] > 0 or key in self._in_doubt

    def forget(self, until_id: int) -> None:
        count = bisect_right(self.rows, until_id, key=itemgetter(0))
        for row_id, _, key, *_ in self.rows[:count]:
            self.after_id = row_id
            self.answers.pop(key, None)
            self._in_doubt.discard(key)
            del self._open[key]
        del self.rows[:count], self.epochs[:count]
        self.place = {row[2]: at for at, row in enumerate(self.rows)}

    def promises(self) -> Iterator[tuple[str, bool]]:
        ids = [self.after_id, *(row[0] for row in self.rows)]
        row_of = {row[2]: row[0] for row in self.rows}
        yield "G1", [row[1] for row in self.rows] == ids[:-1] and ids == sorted(set(ids))
        yield "G3", all(key in row_of and row_id in ids for key, row_id in self.answers.items())
        yield "G4", len(row_of) == len(self.rows)
        yield "G4", all(row_of.get(key, row_id) == row_id for key, row_id in self.answers.items())
        yield "G7", self.epochs == sorted(self.epochs)
