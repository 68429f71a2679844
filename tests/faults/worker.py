"""A sequencer in a process of its own, to be killed, stopped and fenced.

`python -m tests.faults.worker` reads JSON lines: first the settings, then orders to submit. It
writes JSON lines: that it leads, each answer, and at the end why it ended. Exit codes are those of
the command line: 0 stopped in order, 2 refused, 3 failed after the start.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Sequence
from contextlib import suppress

import msgspec

from chain_kernel.errors import OrderchainError, RefusedError
from sequencer import Ack, Order, Sequencer, SequencerConfig, open_sequencer

from .seen import is_sure

LINE_BYTES_MAX = 2**26


class Submit(msgspec.Struct, forbid_unknown_fields=True):
    """Orders to submit: together in one call, or each in a call of its own."""

    keys: list[str]
    payload_bytes: int = 20
    together: bool = True


class Report(msgspec.Struct, omit_defaults=True):
    """What happened: `leads`, `acked`, `refused`, or `ended`."""

    what: str
    keys: list[str] = []
    acks: list[tuple[int, int]] = []
    epoch: int = 0
    head: int = 0
    error: str = ""
    text: str = ""
    is_sure: bool = False
    """The error says that nothing was committed, nor will be."""
    published: int = 0
    unknown_outcomes: int = 0


def payload_of(key: str, size: int) -> bytes:
    """Return a payload that names its owner."""
    return (key.encode() * (size // len(key) + 1))[:size]


def say(report: Report) -> None:
    # Straight to the pipe: what a killed process has said must not sit in a buffer of its own.
    line = memoryview(msgspec.json.encode(report) + b"\n")
    while line:
        line = line[os.write(1, line) :]


async def submit(sequencer: Sequencer, work: Submit) -> None:
    orders = [Order(key, payload_of(key, work.payload_bytes)) for key in work.keys]
    if work.together:
        await answer(sequencer.submit_many(orders), work.keys)
    else:
        await asyncio.gather(
            *(answer(submit_one(sequencer, order), [order.key]) for order in orders)
        )


async def submit_one(sequencer: Sequencer, order: Order) -> Sequence[Ack]:
    return [await sequencer.submit(order.key, order.payload)]


async def answer(acks: Awaitable[Sequence[Ack]], keys: list[str]) -> None:
    try:
        say(Report("acked", keys=keys, acks=[(ack.id, ack.pid) for ack in await acks]))
    except OrderchainError as error:
        kind, text = type(error).__name__, str(error)
        say(Report("refused", keys=keys, error=kind, text=text, is_sure=is_sure(error)))


async def read_lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


async def take_orders(sequencer: Sequencer, reader: asyncio.StreamReader) -> None:
    """Submit what comes, in its order, without waiting for answers, until the input ends."""
    running: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        task = asyncio.create_task(submit(sequencer, msgspec.json.decode(line, type=Submit)))
        running.add(task)
        task.add_done_callback(running.discard)
        await asyncio.sleep(0)
    if running:
        await asyncio.wait(running)


async def lead(config: SequencerConfig, reader: asyncio.StreamReader) -> Report:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with open_sequencer(config) as sequencer:
        stats = sequencer.stats()
        say(Report("leads", epoch=stats.epoch, head=stats.head_persisted))
        ends = [
            asyncio.create_task(take_orders(sequencer, reader)),
            asyncio.create_task(sequencer.until_stopped()),
            asyncio.create_task(stop.wait()),
        ]
        done, pending = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in pending & {ends[1], ends[2]}:
            task.cancel()
        for task in done:
            task.result()
    if ends[0] in pending:
        ends[0].cancel()
    await asyncio.gather(*ends, return_exceptions=True)
    stats = sequencer.stats()
    return Report(
        "ended",
        epoch=stats.epoch,
        head=stats.head_persisted,
        published=stats.head_published,
        unknown_outcomes=stats.unknown_outcomes,
    )


async def main() -> int:
    reader = await read_lines()
    config = msgspec.json.decode(await reader.readline(), type=SequencerConfig)
    try:
        say(await lead(config, reader))
    except OrderchainError as error:
        with suppress(BrokenPipeError):
            say(Report("ended", error=type(error).__name__, text=str(error)))
        return 2 if isinstance(error, RefusedError) else 3
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
