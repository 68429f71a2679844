"""What of a stored chain does not fit: the stored batches, compared with their seals. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.clock import time_of
from chain_verifier.checks.seals import ArchivedRow, SealedBatch, stored_of

if TYPE_CHECKING:
    from collections.abc import Mapping

PIECES_MAX: Final = 1_000
"""Ranges that a plan lists; all are counted."""


class BatchEnd(Struct, frozen=True, kw_only=True, gc=False):
    """The end of a batch, from which the next one goes on."""

    id: int
    seal: bytes
    epoch: int
    committed_at: datetime


class SurveyedBatch(Struct, frozen=True, kw_only=True, gc=False):
    """The entry of a batch in `chain_batch`, and what its pages hold."""

    entry: SealedBatch
    content: bytes | None
    """The digest of its rows; None if they are not those that the entry names."""

    def follows_from(self, seal: bytes) -> bool:
        """Return whether entry and rows give the stored seal after `seal`."""
        return self.seal_after(seal) == self.entry.seal

    def seal_after(self, seal: bytes) -> bytes | None:
        """Return the seal that they give after `seal`; None if the rows are not the entry's."""
        return None if self.content is None else self.entry.seal_after(seal, self.content)


class Repair(Struct, frozen=True, kw_only=True, gc=False):
    """One batch as it is to be, and how it is stored."""

    before: BatchEnd
    entry: SealedBatch
    was: SealedBatch | None
    """The stored entry; None where there is none."""
    rows: Sequence[ArchivedRow] | None
    """What its pages are to hold; None: they stay as they are."""
    is_tail: bool = False
    """Whether it comes after the head."""

    @property
    def what(self) -> str:
        """What is written, as a piece names it."""
        if self.is_tail:
            return "tail"
        if self.was != self.entry:
            return "entry"
        return "head" if self.rows is None else "rows"


class Piece(Struct, frozen=True, kw_only=True):
    """Neighbouring batches to which the same happens."""

    what: str
    """`rows`: their pages are replaced; `entry`: their entries, too; `tail`: they are added after
    the head; `head`: the head gets the seal of its batch; `left`: nothing is done."""
    after_id: int
    """The row before the first; exclusive."""
    until_id: int
    """The last row."""
    batches: int
    rows: int
    """Both 0 where nobody knows them, since the entries are missing."""
    why: str = ""
    """Why they are left."""


class Pieces:
    """Gathers batches into ranges."""

    def __init__(self, others: Pieces | None = None) -> None:
        """Begin with nothing, or with what `others` has."""
        self.listed: list[Piece] = [] if others is None else list(others.listed)
        self.batches: int = 0 if others is None else others.batches
        self.rows: int = 0 if others is None else others.rows
        self.count: int = 0 if others is None else others.count
        """All pieces, also those that are not listed."""

    def add(self, piece: Piece) -> None:
        """Add a piece; one that goes on from the last one, with the same fate, is joined to it."""
        self.batches += piece.batches
        self.rows += piece.rows
        last = self.listed[-1] if self.listed else None
        if last is not None and _is_next(last, piece):
            self.listed[-1] = replace(
                last,
                until_id=piece.until_id,
                batches=last.batches + piece.batches,
                rows=last.rows + piece.rows,
            )
            return
        self.count += 1
        if len(self.listed) < PIECES_MAX:
            self.listed.append(piece)

    def add_repair(self, repair: Repair) -> None:
        """Add what is written."""
        self.add(batch_piece(repair.what, repair.entry))


def _is_next(last: Piece, piece: Piece) -> bool:
    return (last.what, last.why, last.until_id) == (piece.what, piece.why, piece.after_id)


class Damaged(Struct, frozen=True, kw_only=True):
    """A stored batch in its place, whose entry and rows do not give its seal; or the last one,
    where they do, but the head has another.
    """

    before: BatchEnd
    stored: SurveyedBatch
    following: SurveyedBatch | None = None
    """The batch after it, which proves a seal if it follows from it."""
    head_seal: bytes | None = None
    """The head's, where it is the last batch."""

    def is_proven(self, seal: bytes) -> bool:
        """Return whether `seal` is stored for it, or what comes after it follows from `seal`."""
        if seal in (self.stored.entry.seal, self.head_seal):
            return True
        return self.following is not None and self.following.follows_from(seal)


class Hole(Struct, frozen=True, kw_only=True):
    """A range without entries of batches, between two places."""

    before: BatchEnd
    until_id: int
    following: SurveyedBatch | None
    """The batch that names the row `until_id` before it; None at the head."""
    head_seal: bytes | None = None

    @property
    def end_id(self) -> int:
        """The last row whose batch depends on the hole."""
        return self.until_id if self.following is None else self.following.entry.last_id


class Survey:
    """Takes the stored batches in the order of ids, and names what does not fit."""

    def __init__(self, start: BatchEnd, kept: Mapping[int, bytes]) -> None:
        """Begin at the genesis or the boundary; `kept` are seals that were verified, or kept
        elsewhere, by the last ids of their batches.
        """
        self.kept = kept
        self.at = start
        self.damaged: dict[int, Damaged] = {}
        """By the id before them, in order."""
        self.holes: list[Hole] = []
        self.repairs: list[Repair] = []
        """What needs no source: a seal that rows and the next batch show to be another one."""
        self.left = Pieces()
        self.unmet = {at_id: seal for at_id, seal in kept.items() if at_id >= start.id}
        """Kept seals that no batch has."""
        self._pending: Damaged | None = None
        self._last: Damaged | None = None
        self._meet(start)

    def take(self, stored: SurveyedBatch) -> None:
        """Look at the next batch."""
        self._decide(stored)
        entry, before = stored.entry, self.at
        if entry.prev_last_id > before.id:
            hole = Hole(before=before, until_id=entry.prev_last_id, following=stored)
            self.holes.append(hole)
        elif entry.prev_last_id < before.id:
            why = f"it follows {entry.prev_last_id}, as another batch does"
            self.left.add(batch_piece("left", entry, why))
        self._last = None
        if entry.prev_last_id == before.id:
            self._last = Damaged(before=before, stored=stored)
            self._pending = None if stored.follows_from(before.seal) else self._last
        self._move(entry)

    def end(self, head_id: int, head_seal: bytes) -> None:
        """Compare the end with the head."""
        last = self._last
        if self._pending is None and last is not None and last.stored.entry.last_id == head_id:
            # Whole by itself: which of the two seals is wrong, the source has to show.
            self._pending = last if last.stored.entry.seal != head_seal else None
        if self._pending is not None:
            self._pending = replace(self._pending, head_seal=head_seal)
        self._decide(None)
        if self.at.id < head_id:
            self.holes.append(
                Hole(before=self.at, until_id=head_id, following=None, head_seal=head_seal)
            )
        elif last is None and self.at.seal != head_seal:  # as in a chain without a batch
            self.left.add(left_range(head_id, head_id, "the head has another seal than its batch"))

    def _decide(self, following: SurveyedBatch | None) -> None:
        """Decide on the batch before, now that it is known what follows it."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        damaged = replace(pending, following=following)
        entry = damaged.stored.entry
        seal = damaged.stored.seal_after(damaged.before.seal)
        is_kept = seal is not None and self.kept.get(entry.last_id) == seal
        if seal is None or not (is_kept or (damaged.is_proven(seal) and seal != entry.seal)):
            self.damaged[damaged.before.id] = damaged
            return
        # Its rows are right, since what follows hangs on them: only a stored seal is wrong, its own
        # or the head's.
        right = replace(entry, seal=seal)
        self.repairs.append(Repair(before=damaged.before, entry=right, was=entry, rows=None))
        self._move(right)

    def _move(self, entry: SealedBatch) -> None:
        self.at = place_after(entry)
        self._meet(self.at)

    def _meet(self, place: BatchEnd) -> None:
        if self.unmet.get(place.id) == place.seal:
            del self.unmet[place.id]


def place_after(entry: SealedBatch) -> BatchEnd:
    """Return the place after a batch."""
    return BatchEnd(
        id=entry.last_id, seal=entry.seal, epoch=entry.epoch, committed_at=entry.committed_at
    )


def stored_batch(row: Mapping[str, Any]) -> SurveyedBatch:
    """Return a batch as the statement `sealed` of the database returns it."""
    entry = SealedBatch(
        first_id=row["first_id"],
        last_id=row["id"],
        prev_last_id=row["prev_last_id"],
        row_count=row["row_count"],
        epoch=row["epoch"],
        seal=row["seal"],
        committed_at=time_of(row["committed_at_us"] * 1_000),
    )
    stored = stored_of(row)
    ends = (entry.first_id, entry.last_id, entry.prev_last_id)
    is_named = stored.rows == entry.row_count and stored.ends == ends
    return SurveyedBatch(entry=entry, content=stored.content if is_named else None)


def batch_piece(what: str, entry: SealedBatch, why: str = "") -> Piece:
    """Return one batch as a piece."""
    return Piece(
        what=what,
        after_id=entry.prev_last_id,
        until_id=entry.last_id,
        batches=1,
        rows=entry.row_count,
        why=why,
    )


def left_range(after_id: int, until_id: int, why: str) -> Piece:
    """Return a range that is left, whose batches nobody can count."""
    return Piece(what="left", after_id=after_id, until_id=until_id, batches=0, rows=0, why=why)
