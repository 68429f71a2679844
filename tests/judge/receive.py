"""Receive, fill and prove; then a handler's effect and its checkpoint."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar

from .publish import Committed
from .rules import Model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .chain_bytes import Row


class Receive(Model):
    """Receivers by the names of their processes: each hands on what follows what it had."""

    RULES: ClassVar[tuple[str, ...]] = (
        "G5 order of delivery", "G2 delivered before committed", "G11 end of run",
        "G13 seal of run", "G11 fill",
    )  # fmt: skip

    def __init__(self, genesis: bytes, without: str = "") -> None:
        super().__init__(without)
        self.chain = Committed(genesis)
        self.heads: dict[str, int] = {}
        self.handed_on: dict[str, list[Row]] = {}

    def batch(self, epoch: int, at_us: int, seal: bytes, rows: Sequence[Row]) -> None:
        del at_us
        self.chain.batch(epoch, seal, rows)

    def receiving(self, name: str, at_id: int) -> None:
        """Take note of a start, which goes on where its checkpoint stands."""
        self.heads[name] = at_id
        self.handed_on[name] = []

    def filled(
        self, after_id: int, until_id: int, rows: Sequence[Row], end: tuple[int, int, bytes]
    ) -> None:
        """Take note of a run of a fill, which is asked for up to `until_id`."""
        last_id, batch_last_id, seal = end
        is_linked = bool(rows) and rows == self.chain.behind(after_id, len(rows))
        is_end = is_linked and rows[-1][0] == last_id <= until_id
        is_seal = self.chain.seals.get(batch_last_id) == seal
        self.rule("G11 fill", is_end and is_seal, after_id, until_id, [row[0] for row in rows], end)

    def run(self, name: str, rows: Sequence[Row], end: tuple[int, int, bytes]) -> None:
        """Take note of a run; `end`: its last id, that of the last whole batch, its seal."""
        first_pid, (last_id, batch_last_id, seal) = rows[0][1], end
        head = self.heads.get(name, first_pid)
        self.rule(
            "G5 order of delivery", first_pid == head, f"{name} was at {head}, then {first_pid}"
        )
        committed = self.chain.behind(first_pid, len(rows))
        self.rule("G2 delivered before committed", rows == committed, name, first_pid)
        self.rule("G11 end of run", rows[-1][0] == last_id, name, end)
        self.rule("G13 seal of run", self.chain.seals.get(batch_last_id) == seal, name, end)
        self.heads[name] = last_id
        self.handed_on.setdefault(name, []).extend(rows)

    def forget(self, until_id: int) -> None:
        self.chain.forget(until_id)
        for rows in self.handed_on.values():
            del rows[: bisect_right(rows, until_id, key=itemgetter(0))]

    def promises(self) -> Iterator[tuple[str, bool]]:
        parts = list(self.handed_on.values())
        yield (
            "G5",
            all(row[1] == before[0] for rows in parts for before, row in pairwise(rows)),
        )
        yield "G2", all(row in self.chain.rows for rows in parts for row in rows)


class Effects(Model):
    """Handlers by their names: effects are the chain from its beginning, across restarts."""

    RULES: ClassVar[tuple[str, ...]] = (
        "G5 effects are a prefix", "G5 hole in the journal", "G5 place of a checkpoint",
    )  # fmt: skip

    def __init__(self, without: str = "") -> None:
        super().__init__(without)
        self.rows: list[Row] = []
        self._before_id = 0
        self.done: dict[str, int] = {}
        """How many rows have taken effect, by name."""
        self.effects: dict[str, list[Row]] = {}

    def batch(self, epoch: int, at_us: int, seal: bytes, rows: Sequence[Row]) -> None:
        del epoch, at_us, seal
        self.rows += rows

    def journal(self, name: str, first_pid: int) -> None:
        """Take note of a run that a journal is about to get, of which it may have a part."""
        head = self._head_of(name)
        self.rule("G5 hole in the journal", first_pid <= head, name, first_pid, head)

    def resumed(self, name: str, at_id: int, may_lag: bool) -> None:
        """Take note of a checkpoint that is stored; it `may_lag` behind the effects."""
        head = self._head_of(name)
        is_place = at_id <= head if may_lag else at_id == head
        self.rule("G5 place of a checkpoint", is_place, name, at_id, head)

    def effect(self, name: str, rows: Sequence[Row]) -> None:
        done = self.done.get(name, 0)
        expected = self.rows[done : done + len(rows)]
        shown = f"{name}: {[row[0] for row in rows]} at place {done}"
        self.rule("G5 effects are a prefix", list(rows) == expected, shown)
        self.done[name] = done + len(rows)
        self.effects.setdefault(name, []).extend(rows)

    def forget(self, until_id: int) -> None:
        count = bisect_right(self.rows, until_id, key=itemgetter(0))
        self._before_id = self.rows[count - 1][0] if count else self._before_id
        del self.rows[:count]
        for name, rows in self.effects.items():
            self.done[name] -= count
            del rows[:count]

    def promises(self) -> Iterator[tuple[str, bool]]:
        yield "G5", all(rows == self.rows[: len(rows)] for rows in self.effects.values())

    def _head_of(self, name: str) -> int:
        done = self.done.get(name, 0)
        return self.rows[done - 1][0] if done else self._before_id
