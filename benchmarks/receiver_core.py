"""What do header, bounds and links cost a receiver on top of decoding what it gets?

Every arm takes the same frames from memory, on one core, and ends with the rows as typed values:

- plain: CRC-32 and a typed decode without bounds; what no receiver may leave out;
- bounded: the same, the decoder checking the bounds of every field;
- core: the receive core as it is shipped: header, CRC, bounds, decode, and every link;
- receiver: the whole receiver around it, iterated by a caller, without Kafka and database.

    python -m benchmarks.receiver_core [--repeats 15] [--orders 400000]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any, Final
from zlib import crc32

import msgspec
import uvloop
from msgspec import Meta, Struct

from benchmarks.arms import interleave, ratio, spread
from benchmarks.frames import CHAIN_ID, EmptyDatabase, FrameChain, MemoryFrames, frame_chain
from benchmarks.host import RESULTS, describe_host
from matcher_receiver import Receiver, ReceiverConfig
from matcher_receiver.core import ReceiveCore
from orderchain.frame import HEADER_BYTES, decode_header
from orderchain.limits import ID_MAX, KEY_BYTES_MAX, PAYLOAD_BYTES_MAX
from orderchain.model import Run

if TYPE_CHECKING:
    from collections.abc import Callable

CASES: Final = {
    "frames of 100": (100, 0),
    "frames of 1,000": (1_000, 0),
    "frames of 5,000": (5_000, 0),
    "frames of 1,000, ids above 2^40": (1_000, 2**40),
}
"""Rows of a frame, and the id before the first."""


class PlainRow(Struct, array_like=True, frozen=True, gc=False):
    """A row with types and no bounds."""

    id: int
    pid: int
    key: str
    event_time_ns: int
    payload: bytes


class BoundedRow(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """A row whose decoder checks every bound of the protocol."""

    id: Annotated[int, Meta(ge=1, le=ID_MAX)]
    pid: Annotated[int, Meta(ge=0, le=ID_MAX)]
    key: Annotated[str, Meta(min_length=1, max_length=KEY_BYTES_MAX)]
    event_time_ns: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    payload: Annotated[bytes, Meta(max_length=PAYLOAD_BYTES_MAX)]


async def decoding(chain: FrameChain, row: type[Struct]) -> float:
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


async def core(chain: FrameChain) -> float:
    """Return rows per second of the core."""
    receiving = ReceiveCore(CHAIN_ID, chain.start)
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


async def receiver(chain: FrameChain) -> float:
    """Return rows per second of the whole receiver."""
    config = ReceiverConfig(chain_id=CHAIN_ID, start=chain.start)
    rows = 0
    async with Receiver(config, MemoryFrames(chain.frames), EmptyDatabase(chain.standing)) as found:
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


async def measure(orders: int, repeats: int) -> dict[str, Any]:
    """Run every arm on frames of every size."""
    result: dict[str, Any] = {}
    for case, (frame_rows, after_id) in CASES.items():
        chain = frame_chain(orders, frame_rows, after_id=after_id)
        arms: dict[str, Callable[[], Any]] = {
            "plain": lambda chain=chain: decoding(chain, PlainRow),
            "bounded": lambda chain=chain: decoding(chain, BoundedRow),
            "core": lambda chain=chain: core(chain),
            "receiver": lambda chain=chain: receiver(chain),
        }
        figures = await interleave(arms, repeats)
        result[case] = {
            name: {
                **spread(values),
                "to_plain": ratio(figures, name, "plain"),
                "to_bounded": ratio(figures, name, "bounded"),
            }
            for name, values in figures.items()
        }
        for name, found in result[case].items():
            print(
                f"{case:32} {name:9} {found['median'] / 1e6:6.2f} M/s"
                f" ({found['min'] / 1e6:.2f} to {found['max'] / 1e6:.2f})"
                f"  / plain {found['to_plain']['median']:.2f}"
                f"  / bounded {found['to_bounded']['median']:.2f}",
                flush=True,
            )
    return result


async def main() -> None:
    """Measure, print, and add a line to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--orders", type=int, default=400_000)
    parser.add_argument("--dry", action="store_true", help="print only")
    arguments = parser.parse_args()
    async with asyncio.timeout(600):
        found = await measure(arguments.orders, arguments.repeats)
    if arguments.dry:
        return
    result = {
        "benchmark": "receiver_core",
        "host": describe_host(),
        "orders": arguments.orders,
        "repeats": arguments.repeats,
        "payload_bytes": 100,
        "cases": found,
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "receiver_core.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    uvloop.run(main())
