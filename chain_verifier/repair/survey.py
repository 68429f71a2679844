"""The stored batches of a chain, compared with their seals: those that do not fit. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.clock import time_of
from chain_verifier.checks.seals import ArchivedRow, SealedBatch, stored_of

if TYPE_CHECKING:
    from collections.abc import Mapping


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
        if self.content is None:
            return False
        return self.entry.seal_after(seal, self.content) == self.entry.seal


class Repair(Struct, frozen=True, kw_only=True, gc=False):
    """One batch as it is to be, and how it is stored."""

    before: BatchEnd
    entry: SealedBatch
    was: SealedBatch | None
    """The stored entry; None where there is none."""
    rows: Sequence[ArchivedRow] | None
    """Contents due in its pages; None: they stay as they are."""
    is_tail: bool = False
    """True if it comes after the head."""

    @property
    def what(self) -> str:
        """The name of what is written, as a piece gives it."""
        if self.is_tail:
            return "tail"
        if self.was != self.entry:
            return "entry"
        return "head" if self.rows is None else "rows"


class RepairPiece(Struct, frozen=True, kw_only=True):
    """Neighbouring batches to which the same happens."""

    what: str
    """`rows`: their pages are replaced; `entry`: their entries, too; `tail`: they are added after
    the head; `head`: the head gets the seal of its batch; `left`: nothing is done."""
    after_id: int
    """The row before the first; exclusive."""
    until_id: int
    """The last row."""
    batches: int = 0
    rows: int = 0
    """Both 0 where they are not known, since the entries are missing."""
    why: str = ""
    """Why they are left."""


def add_piece(pieces: list[RepairPiece], piece: RepairPiece) -> None:
    """Add a piece; one that goes on from the last one, with the same fate, is joined to it."""
    last = pieces[-1] if pieces else None
    fate = (piece.what, piece.why, piece.after_id)
    if last is None or (last.what, last.why, last.until_id) != fate:
        pieces.append(piece)
        return
    pieces[-1] = replace(
        last,
        until_id=piece.until_id,
        batches=last.batches + piece.batches,
        rows=last.rows + piece.rows,
    )


def batch_piece(what: str, entry: SealedBatch, why: str = "") -> RepairPiece:
    """Return one batch as a piece."""
    ends = {"after_id": entry.prev_last_id, "until_id": entry.last_id}
    return RepairPiece(what=what, **ends, batches=1, rows=entry.row_count, why=why)


def left_range(after_id: int, until_id: int, why: str) -> RepairPiece:
    """Return a range that is left, whose batches cannot be counted."""
    return RepairPiece(what="left", after_id=after_id, until_id=until_id, why=why)


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
    """Takes the stored batches in the order of ids, and names what does not fit.

    It puts nothing right itself: after a wrong stored seal, the next batch does not fit either,
    until a source has shown the right one.
    """

    def __init__(self, start: BatchEnd, kept: Mapping[int, bytes]) -> None:
        """Begin at the genesis or the boundary; `kept` are seals that were verified, or kept
        elsewhere, by the last ids of their batches.
        """
        self.kept = kept
        self.at = start
        self.damaged: dict[int, Damaged] = {}
        """By the id before them, in order."""
        self.holes: list[Hole] = []
        self.left: list[RepairPiece] = []
        self.unmet = {at_id: seal for at_id, seal in kept.items() if at_id >= start.id}
        """Kept seals that no batch has."""
        self._last: Damaged | None = None
        """The last batch, if it is in its place, whether it fits or not."""
        self._meet(start)

    def take(self, stored: SurveyedBatch) -> None:
        """Look at the next batch."""
        self._end_last(following=stored)
        entry, before = stored.entry, self.at
        self._last = None
        if entry.prev_last_id > before.id:
            self.holes.append(Hole(before=before, until_id=entry.prev_last_id, following=stored))
        elif entry.prev_last_id < before.id:
            why = f"it follows {entry.prev_last_id}, as another batch does"
            add_piece(self.left, batch_piece("left", entry, why))
        else:
            self._last = Damaged(before=before, stored=stored)
            if not stored.follows_from(before.seal):
                self.damaged[before.id] = self._last
        self.at = place_after(entry)
        self._meet(self.at)

    def end(self, head_id: int, head_seal: bytes) -> None:
        """Compare the end with the head."""
        last = self._last
        if self.at.id == head_id and self.at.seal != head_seal and last is not None:
            # Whole by itself or not: which of the two seals is wrong, the source has to show.
            self.damaged[last.before.id] = last
        self._end_last(head_seal=head_seal)
        if self.at.id < head_id:
            self.holes.append(
                Hole(before=self.at, until_id=head_id, following=None, head_seal=head_seal)
            )
        elif last is None and self.at.seal != head_seal:  # as in a chain without a batch
            why = "the head has another seal than its batch"
            add_piece(self.left, left_range(head_id, head_id, why))

    def _end_last(self, **what_follows: Any) -> None:  # noqa: ANN401 - own type per field
        last = self._last
        if last is not None and last.before.id in self.damaged:
            self.damaged[last.before.id] = replace(last, **what_follows)

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
    named = ("first_id", "prev_last_id", "row_count", "epoch", "seal")
    entry = SealedBatch(
        **{name: row[name] for name in named},
        last_id=row["id"],
        # In the place of a time that no commit can have, another wrong one.
        committed_at=time_of((row["committed_at_us"] or 0) * 1_000),
    )
    stored = stored_of(row)
    ends = (entry.first_id, entry.last_id, entry.prev_last_id)
    is_named = stored.rows == entry.row_count and stored.ends == ends
    return SurveyedBatch(entry=entry, content=stored.content if is_named else None)
