"""Entries on their way to a commit: which of their orders become rows, and the batch of those."""

from __future__ import annotations

from itertools import chain as flatten
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from orderchain.errors import OrderError
from sequencer.columns import columns_of, joined
from sequencer.order import Ack
from sequencer.sifting import reject_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orderchain.batch import Batch, IntakeMark
    from sequencer.columns import OrderColumns
    from sequencer.core import SequencerCore
    from sequencer.entry import Entry
    from sequencer.key_memory import Claims, KeyMemory
    from sequencer.placing import Place, Placing

_JOINED_ROWS_MIN: Final = 8
"""Rows of an entry from which joining columns costs less than making them anew (measured: 650 ns a
part, beside 200 ns a row)."""


def columns_of_entries(entries: Sequence[Entry]) -> OrderColumns:
    """Return the orders of all entries as columns, one after the other."""
    made = [entry.columns for entry in entries if entry.columns is not None]
    if len(entries) == len(made) == 1:
        return made[0]
    if len(made) == len(entries) and sum(map(len, made)) >= _JOINED_ROWS_MIN * len(made):
        return joined(made)
    return columns_of(list(flatten.from_iterable(entry.orders for entry in entries)))


class Assembly:
    """What one commit is to do, for whom.

    `batch` is None where every order is a repeat: then there is nothing to add, but intake marks to
    move. It is made anew, with other ids, when the epoch rises before it is committed; but not once
    it `is_sent`: then what became of it must be known first.
    """

    __slots__ = ("_places", "batch", "claims", "columns", "core", "entries", "intake", "is_sent")

    def __init__(
        self,
        entries: Sequence[Entry],
        columns: OrderColumns | None,
        claims: Claims | None,
        places: Sequence[Sequence[Place]] | None = None,
    ) -> None:
        self.entries = entries
        self.columns = columns
        self.claims = claims
        self._places = places
        self.intake = self._marks()
        self.batch: Batch | None = None
        self.core: SequencerCore | None = None
        self.is_sent = False

    @classmethod
    def of_placing(cls, placing: Placing, memory: KeyMemory) -> Assembly:
        """Return the assembly of entries that were placed one by one."""
        columns = columns_of(placing.new) if placing.new else None
        return cls(
            [entry for entry, _ in placing.placed],
            columns,
            memory.claims_of(columns) if columns else None,
            [places for _, places in placing.placed],
        )

    def give_ids(self, core: SequencerCore, wall_ns: int) -> None:
        """Make the batch behind everything that `core` assembled before."""
        self.core = core
        self.batch = core.assemble(self.columns, wall_ns) if self.columns else None

    def answer(self) -> None:
        """Tell every caller its orders' places; a cancelled one has gone, its orders have not."""
        events = self.batch.events if self.batch is not None else []
        new = [Ack(event.id, event.pid) for event in events]
        if self._places is None:
            self._answer_in_order(new)
            return
        for entry, places in zip(self.entries, self._places, strict=True):
            entry.answer([new[place] if isinstance(place, int) else place for place in places])

    def _answer_in_order(self, acks: list[Ack]) -> None:
        """Tell every caller, where the batch holds just the orders of all entries."""
        start = 0
        for entry in self.entries:
            stop = start + len(entry.orders)
            entry.answer(acks[start:stop])
            start = stop

    def _marks(self) -> list[IntakeMark]:
        """Return the intake marks to store, each with what was refused on the way."""
        if self._places is None:
            return [entry.intake for entry in self.entries if entry.intake is not None]
        return [
            _with_rejects(entry, entry.intake, places)
            for entry, places in zip(self.entries, self._places, strict=True)
            if entry.intake is not None
        ]

    def fail(self, error: Exception) -> None:
        """Tell every caller that has no answer yet."""
        for entry in self.entries:
            entry.fail(error)


def _with_rejects(entry: Entry, mark: IntakeMark, places: Sequence[Place]) -> IntakeMark:
    """Return the mark of `entry`, with those of its orders that were refused."""
    if entry.positions is None:
        return mark
    rejects = tuple(
        reject_of(position, order.key, place)
        for position, order, place in zip(entry.positions, entry.orders, places, strict=True)
        if isinstance(place, OrderError)
    )
    return replace(mark, rejects=mark.rejects + rejects) if rejects else mark
