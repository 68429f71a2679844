"""A batch: the rows of one database commit, encoded once for table, seal and frames."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from msgspec import Struct

from orderchain.model import Event
from orderchain.seal import PageImage


class Batch(Struct, frozen=True, kw_only=True):
    """Linked rows that are committed together, with the seal over them."""

    chain_id: int
    epoch: int
    pid: int
    """Last id of the previous batch; the pid of the first row."""
    first_id: int
    last_id: int
    seal_before: bytes
    seal: bytes
    committed_at_us: int
    """Set by the sequencer, in microseconds since 1970 UTC; never falls along a chain."""
    events: list[Event]
    pages: tuple[PageImage, ...]
    """The images of `events`: what COPY sends and the seal covers."""

    @property
    def row_count(self) -> int:
        """Number of rows; at least 1."""
        return len(self.events)

    @property
    def size(self) -> int:
        """Bytes of its images."""
        return sum(page.size for page in self.pages)


class IntakeReject(Struct, frozen=True, kw_only=True):
    """A record of an intake that became no order; stored with the mark that moved past it.

    The record itself stays where it is: `position` says where.
    """

    position: int
    """Position of the record in its source: its offset or its row."""
    key: str | None
    """The record's key; None where it has none that is valid as a key."""
    reason: str
    """What was wrong, for people."""


class IntakeMark(Struct, frozen=True, kw_only=True):
    """How far an intake has been read; stored in the transaction of the batch it led to."""

    source: str
    """`file:NAME` or `topic:NAME:PARTITION`."""
    position: int
    """Rows of the file, or the next offset of the partition."""
    digest: bytes
    """Running digest of what was read up to `position`; empty where the source needs none."""
    previous: int | None = None
    """The position stored so far; None where the source was never read. The mark is stored only if
    this is still the stored position: so no intake of a source skips or repeats what another one
    took, and none skips orders of its own that were not taken. None in a mark that was read."""
    rejects: tuple[IntakeReject, ...] = ()
    """What was refused on the way here, stored with the mark; none in a mark that was read."""


class LeaseSight(Struct, frozen=True, kw_only=True):
    """What a look at the lease shows. Two equal sights mean that nobody renewed it in between."""

    epoch: int
    nonce: bytes
    counter: int
    """Raised by the leader at a steady pace."""
    released: bool
    """Whether the leader handed over, or there never was one."""
    owner: str


TERM_SPREAD_IDS: Final = 2**29
"""A term's spread is below this: as many ids as a take-over skips per second, see
`sequencer.core`."""


class Term(Struct, frozen=True, kw_only=True):
    """What a leader holds after its take-over: its epoch, and where the chain was.

    A term never changes; the sequencer's core tracks how the chain moves on.
    """

    chain_id: int
    database_id: UUID
    epoch: int
    nonce: bytes
    frame_key: bytes
    """Signs the frames of this term; drawn at its take-over, never published, never shown."""
    last_id: int
    last_seal: bytes
    last_committed_at_us: int
    published_id: int
    topic: str
    partition: int
    key_salt: int
    """Seeds the hashes of this chain's keys; 64 bits, not negative."""
    partition_ids: int
    """Ids that one partition of the table spans; no batch straddles a multiple of it."""
    spread: int = 0
    """Drawn at the take-over, below TERM_SPREAD_IDS: it separates the ids of this term from those
    of another life of the chain that began at the same place."""
    seen_id: int = 0
    """The highest id in the topic's last frames, if it is above `last_id`: a life of the chain that
    was lost gave it, or it was made up. 0 for none."""

    def __repr__(self) -> str:
        """Show whose term it is, without the key of its frames and the salt of its keys."""
        return f"Term(chain_id={self.chain_id}, epoch={self.epoch}, last_id={self.last_id})"
