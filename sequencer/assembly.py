"""Makes a batch of what was submitted: the orders that are new, their ids, and the answers."""

from __future__ import annotations

from itertools import chain as flatten
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chain_kernel.errors import IntakeMoved, OrderError, RetryError
from sequencer.core import ClockWatch, SequencerCore
from sequencer.keys.resolution import KeyResolution
from sequencer.order import Ack, Acks, columns_of, joined
from sequencer.submission import reject_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chain_kernel.clock import Clock
    from chain_kernel.model import Event, IntakeMark, Term
    from chain_kernel.ports import PendingCommit
    from chain_kernel.seal import Batch
    from sequencer.config import SequencerConfig
    from sequencer.keys.keeper import KeyKeeper
    from sequencer.keys.memory import Claims, KeyMemory
    from sequencer.keys.resolution import Resolution
    from sequencer.order import OrderColumns
    from sequencer.submission import Entry


_JOINED_ROWS_MIN: Final = 8
"""Rows per entry from which joining columns costs less than making them again (measured: 650 ns per
part, against 200 ns per row)."""


def columns_of_entries(entries: Sequence[Entry]) -> OrderColumns:
    """Return the orders of all entries as columns, one after the other."""
    made = [entry.columns for entry in entries if entry.columns is not None]
    if len(entries) == len(made) == 1:
        return made[0]
    if len(made) == len(entries) and sum(map(len, made)) >= _JOINED_ROWS_MIN * len(made):
        return joined(made)
    return columns_of(list(flatten.from_iterable(entry.orders for entry in entries)))


class Assembly:
    """The work of one commit, and its callers.

    `batch` is None where every order is a repeat: then there is nothing to add, but intake marks to
    move. It is made again, with other ids, when the epoch rises before it is committed; but not
    while it is `pending`: then its outcome must be known first.
    """

    __slots__ = (
        "_is_answered", "_places", "batch", "began_ns", "claims", "columns", "core", "entries",
        "intake", "pending",
    )  # fmt: skip

    def __init__(
        self,
        entries: Sequence[Entry],
        columns: OrderColumns | None,
        claims: Claims | None,
        places: Sequence[Sequence[Resolution]] | None = None,
    ) -> None:
        self.entries = entries
        self.columns = columns
        self.claims = claims
        self._places = places
        self._is_answered = False
        self.intake: list[IntakeMark]
        """The intake marks to store, each with the refused orders of its entry."""
        if places is None:
            self.intake = [entry.intake for entry in entries if entry.intake is not None]
        else:
            self.intake = []
            for entry, found in zip(entries, places, strict=True):
                if (mark := entry.intake) is None:
                    continue
                if entry.positions is not None:
                    placed = zip(entry.positions, entry.orders, found, strict=True)
                    rejects = tuple(
                        reject_of(position, order.key, place)
                        for position, order, place in placed
                        if isinstance(place, OrderError)
                    )
                    mark = replace(mark, rejects=mark.rejects + rejects) if rejects else mark
                self.intake.append(mark)
        self.batch: Batch | None = None
        self.core: SequencerCore | None = None
        self.pending: PendingCommit | None = None
        self.began_ns = 0

    @classmethod
    def of_resolution(cls, resolution: KeyResolution, memory: KeyMemory) -> Assembly:
        """Return the assembly of entries that were placed one by one."""
        columns = columns_of(resolution.new) if resolution.new else None
        return cls(
            [entry for entry, _ in resolution.placed],
            columns,
            memory.claims_of(columns) if columns else None,
            [places for _, places in resolution.placed],
        )

    def give_ids(self, core: SequencerCore, wall_ns: int) -> None:
        """Make the batch after everything that `core` assembled before."""
        self.core = core
        self.batch = core.assemble(self.columns, wall_ns) if self.columns else None

    def answer(self) -> None:
        """Answer every caller with its orders' places; a cancelled one is gone, its orders not.

        Answers once, however often it is called.
        """
        if self._is_answered:
            return
        self._is_answered = True
        batch = self.batch
        # The core gives a batch consecutive ids.
        ids = range(batch.first_id, batch.last_id + 1) if batch is not None else range(0)
        pid = batch.pid if batch is not None else 0
        if self._places is None:
            self._answer_in_order(pid, ids)
            return
        new = list(Acks(pid, ids))
        for entry, places in zip(self.entries, self._places, strict=True):
            entry.answer([new[place] if isinstance(place, int) else place for place in places])

    def _answer_in_order(self, pid: int, ids: range) -> None:
        """Answer every caller if the batch holds exactly the orders of all entries."""
        start = 0
        for entry in self.entries:
            if entry.is_alone:
                stop = start + 1
                entry.answer((Ack(ids[start], pid),))
            else:
                stop = start + len(entry.orders)
                entry.answer(Acks(pid, ids[start:stop]))
            if stop > start:
                pid, start = ids[stop - 1], stop

    def fail(self, error: Exception) -> None:
        """Answer every caller that has no answer yet with `error`."""
        for entry in self.entries:
            entry.fail(error)


class Assembler:
    """Assembles the batches of one chain, each after all that were assembled before.

    What is assembled is committed in its order, or this process commits nothing more. No I/O: the
    committer reads what must be read.
    """

    def __init__(self, config: SequencerConfig, keys: KeyKeeper, clock: Clock) -> None:
        self._config = config
        self._keys = keys
        self._clock = clock
        self._clock_watch = ClockWatch()
        self._core: SequencerCore | None = None
        # By source, the position after all that was assembled; None if it was never read.
        self._positions: dict[str, int | None] = {}

    def lead(self, term: Term) -> None:
        """Continue from the head that `term` found."""
        self._wall_ns()  # the first call starts the watch on the clock
        self._core = SequencerCore(
            term,
            takeover_skip_ids=self._config.tuning.takeover_skip_ids,
            id_strategy=self._config.id_strategy,
        )

    def is_current(self, assembly: Assembly) -> bool:
        """True if the ids of `assembly` are valid, and others may follow: its epoch is the last."""
        return assembly.core is self._core

    def assemble(self, entries: Sequence[Entry], beside: Assembly | None = None) -> Assembly | None:
        """Make the next batch of `entries` if all their keys are certainly new, else return None.

        `beside` is a batch whose outcome is still open: a key that it claims is not certainly new.
        """
        columns = columns_of_entries(entries)
        claims: Claims | None = None
        memory = self._keys.memory
        if memory is not None:
            claims = memory.claim(columns, beside=beside.claims if beside is not None else None)
            if claims is None:
                return None
        assembly = Assembly(entries, columns, claims)
        positions = self._positions_after(assembly.intake)
        if positions is None:
            return None
        self.give_ids(assembly)
        self._positions.update(positions)
        return assembly

    def resolve(self, entries: Sequence[Entry], known: Mapping[str, Event]) -> Assembly:
        """Make the next batch of the orders in `entries` that are new; refuse bad entries.

        For use when no other batch is open, and `assemble` returned None. `known` holds the
        committed rows with the keys of `entries`, which `following` has returned.
        """
        memory = self._keys.memory
        if memory is None:
            assembly = Assembly(entries, columns_of_entries(entries) if entries else None, None)
        else:
            resolution = self._resolution(entries, memory, known)
            assembly = Assembly.of_resolution(resolution, memory)
        self.give_ids(assembly)
        self._positions.update((mark.source, mark.position) for mark in assembly.intake)
        return assembly

    def _resolution(
        self, entries: Sequence[Entry], memory: KeyMemory, known: Mapping[str, Event]
    ) -> KeyResolution:
        """Place `entries`; fail the refused ones, and those whose marks follow a refused one."""
        while True:
            resolution = KeyResolution(memory, known)
            resolution.add(entries)
            for entry, refusal in resolution.refused:
                entry.fail(refusal)
            if all(entry.intake is None for entry, _ in resolution.refused):
                return resolution
            entries = self.following([entry for entry, _ in resolution.placed])

    def give_ids(self, assembly: Assembly) -> None:
        """Make the batch of `assembly`, again if a new term has voided its ids. Raises ClockError.

        Raises RetryError before the first term.
        """
        if self._core is None:
            raise RetryError("not the leader yet")
        assembly.give_ids(self._core, self._wall_ns())

    def unread_sources(self, entries: Sequence[Entry]) -> list[str]:
        """Return the intakes of `entries` whose stored position is to be read; see `learn`.

        For use when no other batch is open, as `resolve`. It is not known yet, or the first mark of
        `entries` does not follow it: then an operator may have moved it.
        """
        firsts: dict[str, IntakeMark] = {}
        for entry in entries:
            if entry.intake is not None:
                firsts.setdefault(entry.intake.source, entry.intake)
        return [source for source, mark in firsts.items() if not self._is_next(mark, {})]

    def learn(self, source: str, mark: IntakeMark | None) -> None:
        """Note how far `source` was taken; None if never."""
        self._positions[source] = None if mark is None else mark.position

    def following(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return the entries whose marks follow the stored ones; refuse the others.

        If one call of an intake was not taken, the next call must not move the mark past it.
        """
        followed: list[Entry] = []
        newest: dict[str, int] = {}
        for entry in entries:
            mark = entry.intake
            if mark is not None:
                if not self._is_next(mark, newest):
                    entry.fail(IntakeMoved(mark.source, mark.previous))
                    continue
                newest[mark.source] = mark.position
            followed.append(entry)
        return followed

    def _positions_after(self, marks: Sequence[IntakeMark]) -> dict[str, int] | None:
        """Return the positions of the intakes after `marks`; None unless each mark certainly
        follows what was taken before.
        """
        newest: dict[str, int] = {}
        for mark in marks:
            if not self._is_next(mark, newest):
                return None
            newest[mark.source] = mark.position
        return newest

    def _is_next(self, mark: IntakeMark, newest: Mapping[str, int]) -> bool:
        """Return whether `mark` certainly follows all that was assembled, and then `newest`."""
        known = newest if mark.source in newest else self._positions
        return mark.source in known and known[mark.source] == mark.previous

    def _wall_ns(self) -> int:
        """Return the time for the stamp of a batch. Raises ClockError."""
        wall_ns = self._clock.wall_ns()
        self._clock_watch.check_jump(wall_ns, self._clock.monotonic_ns())
        return wall_ns
