"""What do header, bounds and links cost a receiver on top of decoding what it gets?

Every arm takes the same frames from memory, on one core, and ends with the rows as typed values:

- plain: CRC-32 and a typed decode without bounds; what no receiver may leave out;
- bounded: the same, the decoder checking the bounds of every field;
- core: the receive core as it is shipped: header, CRC, bounds, decode, and every link;
- receiver: the whole receiver around it, iterated by a caller, without Kafka and database.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID
from zlib import crc32

import msgspec
from msgspec import Meta, Struct

from benchmarks.load import EVENT_TIME_NS, order_batches
from benchmarks.spreads import compared, interleave
from matcher_receiver import Receiver, ReceiverConfig
from matcher_receiver.core import ReceiveCore
from orderchain.frame import HEADER_BYTES, decode_header
from orderchain.limits import FRAME_BYTES_MAX, ID_MAX, KEY_BYTES_MAX, PAYLOAD_BYTES_MAX
from orderchain.model import ChainHead, FrameTerm, Mark, Run, Standing, Term
from orderchain.seal import genesis_seal
from sequencer.core import SequencerCore
from sequencer.publisher import batch_frames

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.question import Figures

_CASES: Final = {
    "frames of 100": (100, 0),
    "frames of 1,000": (1_000, 0),
    "frames of 5,000": (5_000, 0),
    "frames of 1,000, ids above 2^40": (1_000, 2**40),
}
"""Rows of a frame, and the id before the first: those of 2^30 and more cost Python more."""

_RECORDS_MAX: Final = 27
"""Frames of 1,000 that one fetch brings."""

_CHAIN_ID: Final = 1
_DATABASE_ID: Final = UUID(int=1)
_TERM: Final = FrameTerm(
    epoch=1, nonce=b"a leader's nonce", frame_key=b"the key that signs their frames."
)


async def receiver_core(*, repeats: int, orders: int) -> Figures:
    """Run every arm on frames of every size."""
    cases: Figures = {}
    for case, (frame_rows, after_id) in _CASES.items():
        print(case, flush=True)
        chain = frame_chain(orders, frame_rows, after_id)
        arms = {
            "plain": partial(_decoding, chain, _PlainRow),
            "bounded": partial(_decoding, chain, _BoundedRow),
            "core": partial(_core, chain),
            "receiver": partial(_receiver, chain),
        }
        figures = await interleave(arms, repeats)
        cases[case] = compared(figures, to_plain="plain", to_bounded="bounded")
    return {"orders": orders, "repeats": repeats, "payload_bytes": 100, "cases": cases}


class _PlainRow(Struct, array_like=True, frozen=True, gc=False):
    """A row with types and no bounds."""

    id: int
    pid: int
    key: str
    event_time_ns: int
    payload: bytes


class _BoundedRow(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """A row whose decoder checks every bound of the protocol."""

    id: Annotated[int, Meta(ge=1, le=ID_MAX)]
    pid: Annotated[int, Meta(ge=0, le=ID_MAX)]
    key: Annotated[str, Meta(min_length=1, max_length=KEY_BYTES_MAX)]
    event_time_ns: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    payload: Annotated[bytes, Meta(max_length=PAYLOAD_BYTES_MAX)]


async def _decoding(chain: FrameChain, row: type[Struct]) -> float:
    """Return rows per second of CRC and decode alone."""
    decoder = msgspec.msgpack.Decoder(list[row])  # type: ignore[valid-type]
    rows = 0
    began = time.perf_counter()
    for frame in chain.frames:
        view = memoryview(frame)
        crc32(view)
        # Held while the next frame is decoded, as a caller of the receiver holds its run.
        events = decoder.decode(view[HEADER_BYTES:])
        rows += len(events)
    return _rate(rows, chain, began)


async def _core(chain: FrameChain) -> float:
    """Return rows per second of the core."""
    receiving = ReceiveCore(_CHAIN_ID, chain.start)
    receiving.judge_standing(chain.standing, "start")
    rows = 0
    began = time.perf_counter()
    for frame in chain.frames:
        header = decode_header(frame)
        receiving.admit(header, frame)
        receiving.judge(header)
        run = receiving.deliver(header, frame)
        if not isinstance(run, Run):
            raise RuntimeError(f"not delivered: {run}")
        rows += len(run.events)
    return _rate(rows, chain, began)


async def _receiver(chain: FrameChain) -> float:
    """Return rows per second of the whole receiver."""
    config = ReceiverConfig(chain_id=_CHAIN_ID, start=chain.start)
    rows = 0
    frames, database = _MemoryFrames(chain.frames), _EmptyDatabase(chain.standing)
    async with Receiver(config, frames, database) as found:
        began = time.perf_counter()
        async for run in found:
            rows += len(run.events)
            if rows >= chain.rows:
                break
        return _rate(rows, chain, began)


def _rate(rows: int, chain: FrameChain, began: float) -> float:
    seconds = time.perf_counter() - began
    if rows != chain.rows:
        raise RuntimeError(f"{rows} of {chain.rows} rows")
    return rows / seconds


class FrameChain(Struct, frozen=True):
    """Frames that follow each other, and the place before the first one."""

    start: Mark
    standing: Standing
    """What the database reports of that place: it makes the publisher known."""
    frames: list[bytes]
    rows: int


def frame_chain(rows: int, frame_rows: int, after_id: int) -> FrameChain:
    """Return `rows` orders in frames of `frame_rows`, as the shipped sequencer makes them."""
    seal = genesis_seal(_DATABASE_ID, _CHAIN_ID)
    start = Mark(id=after_id, batch_last_id=after_id, seal=seal, epoch=1)
    head = ChainHead(
        chain_id=_CHAIN_ID,
        database_id=_DATABASE_ID,
        epoch=1,
        nonce=_TERM.nonce,
        last_id=after_id,
        last_seal=seal,
        published_id=after_id,
        topic="memory",
        partition=0,
    )
    term = Term(
        **msgspec.structs.asdict(head),
        frame_key=_TERM.frame_key,
        last_committed_at_us=0,
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


class _MemoryFrames:
    """A `FrameSource` that has everything at once."""

    place = None

    def __init__(self, frames: list[bytes]) -> None:
        self._frames = frames
        self._at = 0

    async def start(self) -> None:
        """Nothing is needed."""

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        """Return the next frames at once."""
        at, self._at = self._at, self._at + _RECORDS_MAX
        return list(self._frames[at : self._at])

    async def close(self) -> None:
        """Nothing is held."""


class _EmptyDatabase:
    """A `GapSource` that knows the place before the first frame, and no row."""

    chain_id = _CHAIN_ID

    def __init__(self, standing: Standing) -> None:
        self._standing = standing

    async def standing(self, at_id: int, batch_id: int | None = None) -> Standing:
        """Return the place that is known. Raises RuntimeError for any other."""
        if at_id != self._standing.head.last_id:
            raise RuntimeError(f"asked for {at_id}: a frame was not taken")
        return self._standing

    async def runs(
        self, after: Mark, until_id: int, *, from_primary: bool = False
    ) -> AsyncIterator[Run]:
        """Refuse: nothing is to be filled here."""
        raise RuntimeError(f"a fill behind {after.id} up to {until_id}")
        yield  # an async generator, as the port wants it

    async def close(self) -> None:
        """Nothing is held."""
