"""A place in a chain, and the head of a chain: what positions are compared by."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from msgspec import Struct

TERMS_MAX: Final = 16
"""Terms that a standing tells of, the newest. One a take-over; frames of older ones are long gone
from the topic's end, and rows of theirs are read from the database."""


class Mark(Struct, frozen=True, kw_only=True):
    """A place after a row of a chain, with the seal of a whole batch at or before it.

    The seal's unit is the batch, a row may stand in the middle of one: so a mark holds both. It is
    the last whole batch in a word of the database. At the end of a run that came by a frame it is
    the last one whose seal the database has shown: whoever stores that place stores no seal that
    only a frame has told of.
    """

    id: int
    """Id of the row; 0 for the place before the first row."""
    batch_last_id: int
    """Last id of the batch; never above `id`, and 0 before the first batch."""
    seal: bytes
    """Seal after that batch; the chain's genesis seal before the first batch."""
    epoch: int
    """Epoch of that batch; 0 before the first batch."""

    @property
    def is_batch_end(self) -> bool:
        """Whether the row is the last of its batch."""
        return self.id == self.batch_last_id


class ChainHead(Struct, frozen=True, kw_only=True):
    """The head row of a chain as read at one instant, together with the database's own id."""

    chain_id: int
    database_id: UUID
    epoch: int
    """Term of the leader; rises at every take-over."""
    nonce: bytes
    """Drawn by that leader. Empty until the first take-over."""
    last_id: int
    """head_persisted: the last committed id, 0 for an empty chain."""
    last_seal: bytes
    published_id: int
    """head_published: end of the contiguous run that the broker has acknowledged; <= last_id."""
    topic: str
    partition: int


class FrameTerm(Struct, frozen=True, kw_only=True):
    """One term of a chain's leaders, as far as it concerns those who read its frames."""

    epoch: int
    nonce: bytes
    """Stands in every frame that the leader of this term sends."""
    frame_key: bytes
    """Signs those frames. A secret: who knows it can make frames that are believed."""

    def __repr__(self) -> str:
        return f"FrameTerm(epoch={self.epoch}, nonce={self.nonce.hex()})"


class Standing(Struct, frozen=True, kw_only=True):
    """What a source says of one place, read in one snapshot with the head."""

    head: ChainHead
    mark: Mark | None
    """The mark behind the row asked for; None when the source holds no such row."""
    is_primary: bool
    """False on a standby, whose word may be old: only the primary's contradictions count."""
    terms: tuple[FrameTerm, ...] = ()
    """The newest TERMS_MAX terms of the chain, the newest first, of the same snapshot."""
    batch_seal: bytes | None = None
    """Seal after the batch that was asked for too; None when none ends there, or none was."""
