"""What a receiver pays: for what it gets, and for what it must read itself."""

from __future__ import annotations

import statistics
import time
from functools import partial
from itertools import starmap
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID
from zlib import crc32

import msgspec
from msgspec import Meta, Struct

from benchmarks.chains import SQL, Site, connected, generate_chain
from benchmarks.load import EVENT_TIME_NS, Figures, order_batches
from benchmarks.rivals.bare import generate_rows
from benchmarks.spreads import compared, interleave, spreads
from gapfill import GapReader, GapReaderConfig
from matcher_receiver import Receiver, ReceiverConfig
from matcher_receiver.core import ReceiveCore
from orderchain.clients.session import ONE_CHAIN_SETTINGS
from orderchain.frame import HEADER_BYTES, decode_header
from orderchain.limits import FRAME_BYTES_MAX, ID_MAX, KEY_BYTES_MAX, PAYLOAD_BYTES_MAX
from orderchain.model import ChainHead, Event, FrameTerm, Mark, Run, Standing, Term
from orderchain.seal import genesis_seal
from sequencer.core import SequencerCore
from sequencer.publisher import batch_frames

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from orderchain.clients.postgres import Connection


def _rate(rows: int, expected: int, began: float) -> float:
    """Return rows per second. Raises RuntimeError where some are lacking."""
    seconds = time.perf_counter() - began
    if rows != expected:
        raise RuntimeError(f"{rows} rows, expected {expected}")
    return rows / seconds


# -- fill: what does a fill cost beside a SELECT from a row per order; does it grow with a chain? --

_PAGE_ROWS: Final = 5_000
"""Rows of a SELECT, of what a reader holds at once, and of a batch."""
_LONG_GAP_ROWS: Final = 300_000
_LONG_AFTER_ID: Final = 1_000
_MIDDLE_ROWS: Final = 1_000_000
"""Rows of the chain that is also stored as a row per order."""
_FLAT_GAP_ROWS: Final = 10_000
_RANGES: Final = {1: 1_000, 100: 1_000, 1_000: 500, 20_000: 40}
"""Rows of a gap, and how many gaps of a repeat."""
_WARM_UP_GAPS: Final = 20
"""Statements are prepared by then."""


async def fill(site: Site, *, repeats: int, largest: int) -> Figures:
    """Measure ranges, a long gap, and chains of different length."""
    sizes = sorted({100_000, _MIDDLE_ROWS, largest})
    chains = {rows: await generate_chain(site, rows, batch_rows=_PAGE_ROWS) for rows in sizes}
    middle = chains[_MIDDLE_ROWS]
    await generate_rows(site, middle, _MIDDLE_ROWS)
    long = {
        "records": partial(_select_long, site, middle, as_events=False),
        "events": partial(_select_long, site, middle, as_events=True),
        "fill": partial(_fill, site, middle, _LONG_AFTER_ID, _LONG_GAP_ROWS),
    }
    return {
        "payload_bytes": 100,
        "page_rows": _PAGE_ROWS,
        "long_gap_rows": _LONG_GAP_ROWS,
        "ranges_ms": {
            str(rows): spreads([await _gaps(site, middle, rows, seed) for seed in range(repeats)])
            for rows in _RANGES
        },
        "long": compared(await interleave(long, repeats), to_records="records", to_events="events"),
        "flat_warm_seconds": await _flat(site, chains, 4 * repeats, is_warm=True),
        "flat_cold_seconds": await _flat(site, chains, 2 * repeats, is_warm=False),
    }


async def _gaps(site: Site, chain_id: int, rows: int, seed: int) -> dict[str, float]:
    """Return the milliseconds of gaps of `rows` rows, filled and plainly read, by turns."""
    random = Random(seed)
    filled, read = [], []
    async with _plainly(site) as connection, _reader(site, chain_id) as reader:
        for turn in range(_RANGES[rows] + _WARM_UP_GAPS):
            after_id = random.randrange(1, _MIDDLE_ROWS - rows)
            gap = await _gap(reader, after_id, rows)
            began = time.perf_counter()
            runs = [run.events async for run in gap]
            between = time.perf_counter()
            events: list[Event] = []
            async for page in _selected(connection, chain_id, after_id, rows):
                events += starmap(Event, page)
            ended = time.perf_counter()
            if [event for run in runs for event in run] != events:
                raise RuntimeError(f"other rows after {after_id}")
            if turn >= _WARM_UP_GAPS:
                filled.append((between - began) * 1e3)
                read.append((ended - between) * 1e3)
    p99 = [statistics.quantiles(one, n=100, method="inclusive")[98] for one in (filled, read)]
    return {
        "fill_p50": statistics.median(filled),
        "select_p50": statistics.median(read),
        "fill_p99": p99[0],
        "select_p99": p99[1],
        "rate_to_select": statistics.median(read) / statistics.median(filled),
    }


async def _flat(site: Site, chains: dict[int, int], repeats: int, *, is_warm: bool) -> Figures:
    """Time the same gap in chains of different length, at places drawn by a seed."""
    random = Random(1)

    async def fill_somewhere(rows: int, chain_id: int) -> float:
        after_id = random.randrange(1, rows - _FLAT_GAP_ROWS)
        if is_warm:
            await _fill(site, chain_id, after_id, _FLAT_GAP_ROWS)
        return _FLAT_GAP_ROWS / await _fill(site, chain_id, after_id, _FLAT_GAP_ROWS)

    arms = {str(rows): partial(fill_somewhere, rows, chain) for rows, chain in chains.items()}
    base = str(min(chains))
    found = compared(await interleave(arms, repeats), to_shortest=base)
    for arm in found.values():
        arm["median_to_shortest"] = arm["median"] / found[base]["median"]
    return found


async def _select_long(site: Site, chain_id: int, *, as_events: bool) -> float:
    """Return rows per second of SELECTs from a row per order, one after the other."""
    rows = 0
    async with _plainly(site) as connection:
        began = time.perf_counter()
        async for page in _selected(connection, chain_id, _LONG_AFTER_ID, _LONG_GAP_ROWS):
            rows += len(list(starmap(Event, page)) if as_events else page)
        return _rate(rows, _LONG_GAP_ROWS, began)


async def _fill(site: Site, chain_id: int, after_id: int, rows: int) -> float:
    """Return rows per second of the shipped reader, on a connection that is open."""
    async with _reader(site, chain_id) as reader:
        gap = await _gap(reader, after_id, rows)
        found = 0
        began = time.perf_counter()
        async for run in gap:
            found += len(run.events)
        return _rate(found, rows, began)


async def _gap(reader: GapReader, after_id: int, rows: int) -> AsyncIterator[Run]:
    """Return the runs of a gap, of which nothing is read yet."""
    mark = (await reader.standing(after_id)).mark
    if mark is None:
        raise RuntimeError(f"no row {after_id}")
    return reader.runs(mark, after_id + rows)


async def _selected(
    connection: Connection, chain_id: int, after_id: int, rows: int
) -> AsyncIterator[Any]:
    """Yield the next rows in pages, read as a program would that only wants them."""
    until_id = after_id + rows
    while after_id < until_id:
        page = await connection.fetch(SQL["page"], chain_id, after_id, until_id, _PAGE_ROWS)
        after_id = page[-1][0]
        yield page


def _plainly(site: Site) -> Any:  # noqa: ANN401 - a context manager
    """Connect as the reader does, so that both arms get the same plans."""
    return connected(site.gap_reader, settings=ONE_CHAIN_SETTINGS)


def _reader(site: Site, chain_id: int) -> GapReader:
    config = GapReaderConfig(
        database=site.gap_reader, chain_id=chain_id, page_rows=_PAGE_ROWS, linger_seconds=5.0
    )
    return GapReader(config)


# -- receiver_core: what do header, bounds and links cost on top of decoding what comes? -----------

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
    return {"payload_bytes": 100, "cases": cases}


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
    decoder = msgspec.msgpack.Decoder(list[row])  # type: ignore[valid-type]
    rows = 0
    began = time.perf_counter()
    for frame in chain.frames:
        view = memoryview(frame)
        crc32(view)
        # Held while the next frame is decoded, as a caller of the receiver holds its run.
        events = decoder.decode(view[HEADER_BYTES:])
        rows += len(events)
    return _rate(rows, chain.rows, began)


async def _core(chain: FrameChain) -> float:
    receiving = ReceiveCore(_CHAIN_ID, chain.start)
    receiving.judge_standing(chain.database, "start")
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
    return _rate(rows, chain.rows, began)


async def _receiver(chain: FrameChain) -> float:
    config = ReceiverConfig(chain_id=_CHAIN_ID, start=chain.start)
    rows = 0
    frames, database = _MemoryFrames(chain.frames), _EmptyDatabase(chain.database)
    async with Receiver(config, frames, database) as found:
        began = time.perf_counter()
        async for run in found:
            rows += len(run.events)
            if rows >= chain.rows:
                break
        return _rate(rows, chain.rows, began)


class FrameChain(Struct, frozen=True):
    """Frames that follow each other, and the place before the first one."""

    start: Mark
    database: Standing
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

    async def start(self) -> None: ...

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        at, self._at = self._at, self._at + _RECORDS_MAX
        return list(self._frames[at : self._at])

    async def close(self) -> None: ...


class _EmptyDatabase:
    """A `GapSource` that knows the place before the first frame, and no row."""

    chain_id = _CHAIN_ID

    def __init__(self, standing: Standing) -> None:
        self._standing = standing

    async def standing(self, at_id: int, batch_id: int | None = None) -> Standing:
        if at_id != self._standing.head.last_id:
            raise RuntimeError(f"asked for {at_id}: a frame was not taken")
        return self._standing

    async def runs(
        self, after: Mark, until_id: int, *, from_primary: bool = False
    ) -> AsyncGenerator[Run, None]:
        raise RuntimeError(f"a fill after {after.id} up to {until_id}")
        yield  # an async generator, as the port wants it

    async def close(self) -> None: ...
