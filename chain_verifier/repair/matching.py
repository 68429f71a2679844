"""Which batches of a source may be written where a stored chain does not fit. Pure.

Nothing is written back that no seal proves. Within the chain the seals are the database's own: the
rows of a source, with the seal before them, must give the seal that is stored after them, and
other rows that do cannot be found. Where the entry of a batch is missing, too, whole batches of the
source must lead from one stored seal to the next. After the head there is no seal to arrive at: a
batch counts there only if a leader whom the database knows has signed it, or if the batches lead to
a seal that was kept elsewhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.clock import ns_of, time_of
from chain_kernel.seal import Columns, committed_at_of, content_of, page_image
from chain_verifier.checks.seals import ArchivedRow, SealedBatch, SealRun
from chain_verifier.repair.survey import (
    BatchEnd,
    Damaged,
    Hole,
    Repair,
    RepairPiece,
    Survey,
    add_piece,
    batch_piece,
    left_range,
    place_after,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HELD_ROWS_MAX: Final = 500_000
"""Rows of whole batches that wait until it is known whether they lead anywhere. A batch whose entry
is stored is judged at once, and never waits. A longer tail is written back in several runs."""

_SENT_WITHIN: Final = timedelta(seconds=20)
_CLOCKS_WITHIN: Final = timedelta(seconds=1)
"""A batch is committed at most so long before its record, and after it where the broker's clock is
late: a search of 9 s at most. A leader sends within milliseconds."""

_MICROSECOND: Final = timedelta(microseconds=1)

_KEPT: Final = "only --expect-seal with the seal of a batch from there on proves it"

UNKNOWN_SENDER: Final = f"the database does not know the term that sent it: {_KEPT}"
ROWS_ALONE: Final = "a journal has rows, not the batches and seals that could prove them"


class Offer(Struct, frozen=True, kw_only=True, gc=False):
    """The rows of one batch as a source has them, and what it knows of the batch."""

    rows: Sequence[ArchivedRow]
    """At least one."""
    epoch: int | None = None
    seal_before: bytes | None = None
    seal: bytes | None = None
    """None, as the two before, in a journal, which knows only rows."""
    committed_at: datetime | None = None
    sent_at: datetime | None = None
    """When its frame was sent: the time of its commit is searched for shortly before."""
    is_signed: bool = False
    """True if a leader whom the database knows has signed it."""


class SourceMatching:
    """Takes the batches of one source in any order, and names those that may be written back."""

    def __init__(
        self, survey: Survey, head: BatchEnd, chain_id: int, source: str, *, has_tail: bool = True
    ) -> None:
        """`head` is that of the database; `source` is what reasons call the source.

        Without `has_tail` nothing is added after the head.
        """
        self.head = head
        """After `repairs`, the head that they lead to."""
        self.written: list[RepairPiece] = []
        self.left = list(survey.left)
        self.notes: list[str] = []
        """Facts of the source that should be known once it was read."""
        self._survey = survey
        self._stored_head = head
        self._chain_id = chain_id
        self._source = source
        self._open = dict(survey.damaged)
        self._faults: dict[int, str] = {}
        spans = [(each.before.id, each.stored.entry.last_id) for each in self._open.values()]
        spans += [(hole.before.id, hole.end_id) for hole in survey.holes]
        self._spans = sorted(spans)
        self._held: dict[int, list[Offer]] = {}
        self._held_rows = 0
        self._is_full = False
        self._disowned: tuple[int, int, str] | None = None
        self._unmet = dict(survey.unmet)
        self._may_extend = has_tail and survey.at.id == head.id
        """True if the batch at the head has its entry, so that others may follow it."""
        self._has_tail = has_tail

    def wants(self, after_id: int, until_id: int) -> bool:
        """Return whether the rows of a source after `after_id` up to `until_id` may be of use."""
        if until_id > self._stored_head.id:
            return True
        at = bisect_right(self._spans, (after_id, self._stored_head.id))
        near = self._spans[max(0, at - 1) : at + 1]
        return any(after_id < until and until_id > after for after, until in near)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges (after, until] of the stored batches whose rows are wanted, in order:
        for a source that knows only rows.
        """
        entries = [damaged.stored.entry for damaged in self._survey.damaged.values()]
        following = [hole.following for hole in self._survey.holes if hole.following is not None]
        entries += [each.entry for each in following]
        return sorted((entry.prev_last_id, entry.last_id) for entry in entries)

    def disown(self, after_id: int, until_id: int, why: str) -> None:
        """Note that the source has rows after the head that nothing can prove, and why."""
        if until_id > self._stored_head.id:
            low, high, _ = self._disowned or (after_id, until_id, why)
            self._disowned = (min(low, after_id), max(high, until_id), why)

    def repairs(self, offers: Iterable[Offer]) -> Iterator[Repair]:
        """Yield what may be written back, and fill `written`, `left` and `head`.

        Entries come in an order in which each finds the one before it.
        """
        for repair in self._found(offers):
            add_piece(self.written, batch_piece(repair.what, repair.entry))
            self._settle(repair)
            yield repair
        for pid, damaged in sorted(self._open.items()):
            why = self._faults.get(pid, f"{self._source} does not have its rows")
            add_piece(self.left, batch_piece("left", damaged.stored.entry, why))
        for at_id in sorted(self._unmet):
            if at_id > self.head.id:
                why = "the chain ends before the row whose seal was verified or kept"
                self._leave(self.head.id, at_id, why)
            else:
                why = "no batch ends here under the seal that was verified or kept: rewritten"
                self._leave(at_id, at_id, why)

    def _found(self, offers: Iterable[Offer]) -> Iterator[Repair]:
        for offer in offers:
            damaged = self._open.get(offer.rows[0][1])
            if damaged is None:
                self._keep(offer)
            elif (repair := self._repair_of(damaged, offer)) is not None:
                yield repair
        for hole in self._survey.holes:
            yield from self._bridge(hole)
        if self._may_extend:
            yield from self._tail()

    def _settle(self, repair: Repair) -> None:
        """Note what is repaired, and what is well by it: the next batch may follow from it now."""
        place = place_after(repair.entry)
        self._open.pop(repair.before.id, None)
        if self._unmet.get(place.id) == place.seal:
            del self._unmet[place.id]
        if place.id >= self.head.id:
            self.head = place
        following = self._open.get(place.id)
        if following is None:
            return
        is_of_head = following.head_seal in (None, following.stored.entry.seal)
        if is_of_head and following.stored.follows_from(place.seal):
            del self._open[place.id]
        else:
            self._open[place.id] = replace(following, before=place)

    # -- a batch whose entry is stored ---------------------------------------------------------

    def _repair_of(self, damaged: Damaged, offer: Offer) -> Repair | None:
        before, entry = damaged.before, damaged.stored.entry
        fault = self._fault(before, entry, offer.rows)
        if fault is None:
            is_whole = damaged.stored.follows_from(before.seal)
            rows = None if is_whole else offer.rows
            return Repair(before=before, entry=entry, was=entry, rows=rows)
        self._faults[before.id] = f"{self._source}: {fault}"
        whole = self._whole(before, offer)
        if whole is None or whole.last_id != entry.last_id:
            return None
        if damaged.is_proven(whole.seal) or self._is_kept(whole):
            return Repair(before=before, entry=whole, was=entry, rows=offer.rows)
        return None

    def _is_kept(self, entry: SealedBatch) -> bool:
        return self._survey.kept.get(entry.last_id) == entry.seal

    def _fault(
        self, before: BatchEnd, entry: SealedBatch, rows: Sequence[ArchivedRow]
    ) -> str | None:
        """Return why `rows` are not those of a batch after `before`."""
        return SealRun(self._chain_id, before.id, before.seal).fault(entry, rows)

    def _whole(self, before: BatchEnd, offer: Offer) -> SealedBatch | None:
        """Return the entry that the source itself has for a batch after `before`, if its rows give
        its seal.
        """
        if offer.epoch is None or offer.seal is None or offer.seal_before != before.seal:
            return None
        if offer.epoch < before.epoch:
            return None
        entry = SealedBatch(
            first_id=offer.rows[0][0],
            last_id=offer.rows[-1][0],
            prev_last_id=before.id,
            row_count=len(offer.rows),
            epoch=offer.epoch,
            seal=offer.seal,
            committed_at=offer.committed_at or before.committed_at,
        )
        if offer.committed_at is None:
            entry = replace(entry, committed_at=_commit_time(before, entry, offer))
        return entry if self._fault(before, entry, offer.rows) is None else None

    # -- batches whose entries are missing -----------------------------------------------------

    def _keep(self, offer: Offer) -> None:
        """Hold a batch until it is known whether it leads anywhere; what is signed comes first."""
        pid = offer.rows[0][1]
        is_in_hole = any(hole.before.id <= pid < hole.end_id for hole in self._survey.holes)
        if pid < self._stored_head.id and not is_in_hole:
            return
        offers = self._held.setdefault(pid, [])
        if any((each.seal, each.is_signed) == (offer.seal, offer.is_signed) for each in offers):
            return
        if self._held_rows + len(offer.rows) > HELD_ROWS_MAX:
            self._is_full = True
            return
        self._held_rows += len(offer.rows)
        offers.append(offer)
        offers.sort(key=lambda each: not each.is_signed)

    def _path(self, before: BatchEnd, until_id: int | None) -> Iterator[tuple[Repair, Offer]]:
        """Yield the batches of the source that follow each other from `before`."""
        place = before
        while until_id is None or place.id < until_id:
            held = ((self._whole(place, offer), offer) for offer in self._held.get(place.id, ()))
            entry, offer = next((each for each in held if each[0] is not None), (None, None))
            if entry is None or offer is None:
                return
            yield Repair(before=place, entry=entry, was=None, rows=offer.rows), offer
            place = place_after(entry)

    def _bridge(self, hole: Hole) -> list[Repair]:
        """Return the batches that lead over a hole; none unless they arrive at its end."""
        path = [repair for repair, _ in self._path(hole.before, hole.until_id)]
        place = place_after(path[-1].entry) if path else hole.before
        landing = self._landing(hole, place) if place.id == hole.until_id else None
        if landing is not None:
            return [*path, *landing]
        why = self._no_batch_after(place)
        if place.id >= hole.until_id:
            why = f"the batches of {self._source} do not lead to the seal after {hole.end_id}"
        self._leave(hole.before.id, hole.end_id, why)
        return []

    def _landing(self, hole: Hole, place: BatchEnd) -> list[Repair] | None:
        """Return what is to be done with the batch after a hole; None if it does not fit."""
        following = hole.following
        if following is None:
            self._may_extend = self._has_tail and place.seal == hole.head_seal
            return [] if place.seal == hole.head_seal else None
        if following.follows_from(place.seal):
            return []
        entry = following.entry
        for offer in self._held.get(place.id, ()):
            if self._fault(place, entry, offer.rows) is None:
                return [Repair(before=place, entry=entry, was=entry, rows=offer.rows)]
        return None

    def _no_batch_after(self, place: BatchEnd) -> str:
        if self._is_full:
            return f"more than {HELD_ROWS_MAX:,} rows at once: repair once more"
        if any(_lacks_time(place, offer) for offer in self._held.get(place.id, ())):
            within = f"within {_SENT_WITHIN.seconds} s of its record"
            return f"the commit time of the batch after {place.id} is not {within}"
        return f"{self._source} has no batch after {place.id} whose seal fits"

    def _leave(self, after_id: int, until_id: int, why: str) -> None:
        add_piece(self.left, left_range(after_id, until_id, why))

    # -- after the head ------------------------------------------------------------------------

    def _tail(self) -> Iterator[Repair]:
        path: list[Repair] = []
        proven, is_signed = 0, True
        for repair, offer in self._path(self._stored_head, None):
            path.append(replace(repair, is_tail=True))
            is_signed = is_signed and offer.is_signed
            if is_signed or self._is_kept(repair.entry):
                proven, is_signed = len(path), True
        yield from path[:proven]
        head = self.head
        beyond = [each for pid, held in self._held.items() if pid >= head.id for each in held]
        if path[proven:]:
            until_id = path[-1].entry.last_id
            self._leave(head.id, until_id, f"no known key signed it: {_KEPT}")
        elif beyond:
            until_id = max(offer.rows[-1][0] for offer in beyond)
            self._leave(head.id, until_id, self._no_batch_after(head))
        if self._disowned is not None and self._disowned[1] > head.id:
            after_id, until_id, why = self._disowned
            self._leave(max(after_id, head.id), until_id, why)


def _lacks_time(before: BatchEnd, offer: Offer) -> bool:
    """Return whether all of a batch after `before` is known but the time of its commit."""
    if not offer.is_signed or offer.sent_at is None or offer.epoch is None:
        return False
    return offer.seal_before == before.seal and offer.epoch >= before.epoch


def _commit_time(before: BatchEnd, entry: SealedBatch, offer: Offer) -> datetime:
    """Return when a batch was committed, found by its seal; if it is not found, any other time.

    The time of the batch before is tried first: a clock that was set back repeats it.
    """
    if offer.sent_at is None:
        return before.committed_at
    earliest = ns_of(before.committed_at) // 1_000
    sent = ns_of(offer.sent_at) // 1_000 + 999  # the time of a record has no microseconds
    first = max(earliest, sent - _SENT_WITHIN // _MICROSECOND)
    last = sent + _CLOCKS_WITHIN // _MICROSECOND
    columns: list[Any] = [list(column) for column in zip(*offer.rows, strict=True)]
    found = committed_at_of(
        entry.seal,
        before.seal,
        epoch=entry.epoch,
        first_id=entry.first_id,
        last_id=entry.last_id,
        row_count=entry.row_count,
        content=content_of(page_image(Columns(*columns)).columns),
        candidates=(
            range(earliest, earliest + 1), range(sent, first - 1, -1), range(sent + 1, last + 1),
        ),
    )  # fmt: skip
    return before.committed_at if found is None else time_of(found * 1_000)
