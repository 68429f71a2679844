"""A chain in memory, as frames: what a receiver takes, made before anything is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from benchmarks.workload import EVENT_TIME_NS, order_batches
from orderchain.batch import Term
from orderchain.limits import FRAME_BYTES_MAX
from orderchain.model import ChainHead, FrameTerm, Mark, Standing
from orderchain.seal import genesis_seal
from sequencer.core import SequencerCore
from sequencer.publisher import batch_frames

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from orderchain.model import Run

CHAIN_ID: Final = 1
_DATABASE_ID: Final = UUID(int=1)
_TERM: Final = FrameTerm(
    epoch=1, nonce=b"a leader's nonce", frame_key=b"the key that signs their frames."
)


class FrameChain(msgspec.Struct, frozen=True):
    """Frames that follow each other, and the place before the first one."""

    start: Mark
    standing: Standing
    """What the database reports of that place: it makes the publisher known."""
    frames: list[bytes]
    rows: int


def frame_chain(rows: int, frame_rows: int, *, after_id: int = 0) -> FrameChain:
    """Return `rows` orders in frames of `frame_rows`, as the shipped sequencer makes them.

    The ids follow `after_id`: those of 2^30 and more cost Python more to compare.
    """
    seal = genesis_seal(_DATABASE_ID, CHAIN_ID)
    start = Mark(id=after_id, batch_last_id=after_id, seal=seal, epoch=1)
    head = ChainHead(
        chain_id=CHAIN_ID,
        database_id=_DATABASE_ID,
        epoch=1,
        nonce=_TERM.nonce,
        last_id=start.id,
        last_seal=seal,
        published_id=start.id,
        topic="memory",
        partition=0,
    )
    term = Term(
        chain_id=CHAIN_ID,
        database_id=_DATABASE_ID,
        epoch=1,
        nonce=_TERM.nonce,
        frame_key=_TERM.frame_key,
        last_id=start.id,
        last_seal=seal,
        last_committed_at_us=0,
        published_id=start.id,
        topic=head.topic,
        partition=0,
        key_salt=0,
        partition_ids=2**40,
    )
    core = SequencerCore(term, takeover_skip_ids=0)
    frames = [
        frame
        for orders in order_batches(rows, frame_rows)
        for frame in batch_frames(core.assemble(orders, EVENT_TIME_NS), term, FRAME_BYTES_MAX)
    ]
    standing = Standing(head=head, mark=start, is_primary=True, terms=(_TERM,))
    return FrameChain(start, standing, frames, rows)


class MemoryFrames:
    """A `FrameSource` that has everything at once."""

    def __init__(self, frames: list[bytes], records_max: int = 27) -> None:
        """Hand out `records_max` at a time: as many frames of 1,000 as one fetch brings."""
        self._frames = frames
        self._at = 0
        self._records_max = records_max

    @property
    def place(self) -> tuple[str, int] | None:
        """Memory has no topic."""
        return None

    async def start(self) -> None:
        """Nothing is needed."""

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        """Return the next frames at once."""
        at, self._at = self._at, self._at + self._records_max
        return list(self._frames[at : self._at])

    async def close(self) -> None:
        """Nothing is held."""


class EmptyDatabase:
    """A `GapSource` that knows the place before the first frame, and no row."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing

    @property
    def chain_id(self) -> int:
        """The chain of the place."""
        return self._standing.head.chain_id

    async def standing(self, at_id: int, batch_id: int | None = None) -> Standing:
        """Return the place that is known. Raises RuntimeError for any other."""
        if at_id != self._standing.head.last_id:
            raise RuntimeError(f"asked for {at_id}: a frame was not taken")
        return self._standing

    async def runs(
        self, after: Mark, until_id: int, *, from_primary: bool = False
    ) -> AsyncGenerator[Run, None]:
        """Refuse: nothing is to be filled here."""
        raise RuntimeError(f"a fill behind {after.id} up to {until_id}")
        yield  # an async generator, as the port wants it

    async def close(self) -> None:
        """Nothing is held."""
