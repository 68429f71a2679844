"""Makes chains for tests: batches with true links and seals, and their frames."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any
from uuid import UUID

from chain_kernel.frame import FrameHeader, encode_frame
from chain_kernel.model import ChainHead, Event, FrameTerm, Mark, Run
from chain_kernel.seal import Batch, genesis_seal
from chain_kernel.testing.memory_chain import heartbeat_header, sealed, slices_of
from chain_kernel.testing.memory_receiver import head_of, mark_at
from matcher_receiver.core import ReceiveCore
from matcher_receiver.decisions import FrameDecision

CHAIN_ID = 7
DATABASE_ID = UUID("3b8a9a4e-52a5-4f86-9a3e-0f6f0a1f7b10")
NONCE = b"first leader's n"
NEXT_NONCE = b"next leader's no"
FIRST_COMMIT_US = 1_750_000_000_000_000


def key_of(nonce: bytes) -> bytes:
    """The frame key of the term with `nonce`."""
    return sha256(nonce).digest()


def signed(header: FrameHeader, events: Sequence[Event], by: bytes | None = None) -> bytes:
    """A frame as the leader whose nonce is in the header would send it; or the one of `by`."""
    return encode_frame(header, events, key_of(by or header.publisher_nonce))


def decide(core: ReceiveCore, header: FrameHeader) -> FrameDecision:
    """What a core says to a frame with this header, signed by whom it names."""
    return core.admit(header, signed(header, ())) or core.judge(header)


@dataclass
class Chain:
    """A growing chain: what a sequencer would have committed."""

    chain_id: int = CHAIN_ID
    database_id: UUID = DATABASE_ID
    seed: int = 0
    epoch: int = 1
    nonce: bytes = NONCE
    older_terms: tuple[FrameTerm, ...] = ()
    published_id: int = 0
    batches: list[Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    def add(self, rows: int, *, payload_bytes: int = 8, skip: int = 0) -> Batch:
        """Commit a batch of `rows`; ids skip by chance, and by `skip` before the first."""
        before = self.mark()
        events = []
        pid = before.id
        next_id = pid + 1 + skip
        for _ in range(rows):
            payload = self._random.randbytes(payload_bytes)
            events.append(Event(next_id, pid, f"key-{next_id}", next_id * 1_000, payload))
            pid = next_id
            next_id += self._random.choice((1, 1, 1, 3))
        return self.add_events(events)

    def add_events(self, events: list[Event]) -> Batch:
        """Commit a batch of just these rows."""
        batch = sealed(
            events,
            chain_id=self.chain_id,
            epoch=self.epoch,
            seal_before=self.mark().seal,
            committed_at_us=FIRST_COMMIT_US + len(self.batches),
        )
        self.batches.append(batch)
        return batch

    def take_over(self, nonce: bytes = NEXT_NONCE) -> None:
        """A new leader: the next epoch, another nonce."""
        self.older_terms = self.terms
        self.epoch += 1
        self.nonce = nonce

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in batch.events]

    @property
    def ids(self) -> list[int]:
        return [event.id for event in self.events]

    def mark(self, at_id: int | None = None) -> Mark:
        """The mark after a row; without an id the head's."""
        return mark_at(self, self._last_id if at_id is None else at_id)

    @property
    def _last_id(self) -> int:
        return self.batches[-1].last_id if self.batches else 0

    def proves(self, mark: Mark) -> bool:
        """Whether the row of a mark is there, and its batch has its seal."""
        is_row = mark.id in (0, *self.ids)
        batch = self.mark(mark.batch_last_id)
        return (
            is_row and batch.is_batch_end and (batch.seal, batch.epoch) == (mark.seal, mark.epoch)
        )

    @property
    def genesis(self) -> bytes:
        return genesis_seal(self.database_id, self.chain_id)

    @property
    def terms(self) -> tuple[FrameTerm, ...]:
        """All leaders, the newest first."""
        newest = FrameTerm(epoch=self.epoch, nonce=self.nonce, frame_key=key_of(self.nonce))
        return (newest, *self.older_terms)

    def head(self) -> ChainHead:
        return head_of(self)

    def headers(
        self, batch: Batch, slice_rows: int = 1_000
    ) -> list[tuple[FrameHeader, list[Event]]]:
        """The slices of a batch, as the leader of now publishes them."""
        return slices_of(batch, slice_rows, **self._publisher())

    def frames(self, batch: Batch, slice_rows: int = 1_000) -> list[bytes]:
        return [signed(header, rows) for header, rows in self.headers(batch, slice_rows)]

    def all_frames(self, slice_rows: int = 1_000) -> list[bytes]:
        return [frame for batch in self.batches for frame in self.frames(batch, slice_rows)]

    def heartbeat_header(self) -> FrameHeader:
        mark = self.mark()
        return heartbeat_header(
            mark.id,
            chain_id=self.chain_id,
            epoch=mark.epoch,
            seal_before=mark.seal,
            **self._publisher(),
        )

    def _publisher(self) -> dict[str, Any]:
        return {"publisher_epoch": self.epoch, "publisher_nonce": self.nonce}

    def heartbeat(self) -> bytes:
        return signed(self.heartbeat_header(), [])


def make_chain(sizes: Iterable[int], *, seed: int = 0, **settings: Any) -> Chain:
    """A chain with batches of `sizes`."""
    chain = Chain(seed=seed, **settings)
    for rows in sizes:
        chain.add(rows)
    return chain


def ids_of(runs: Iterable[Run]) -> list[int]:
    return [event.id for run in runs for event in run.events]
