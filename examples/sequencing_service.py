"""A sequencing service of your own: orders on standard input, their places on standard output.

    eval "$(chainctl stack env)"
    chainctl chain create 7
    echo '{"key": "anna/1", "symbol": "ALPHA", "side": "B", "qty": 100}' |
        python examples/sequencing_service.py 7

prints {"key":"anna/1","id":1,"pid":0} once the order is committed: from then on it stays, and every
receiver of the chain gets it in this place. A line that cannot be an order is answered with why it
is refused. The engine never looks into an order; this service
hands over the line as it came.
"""

from __future__ import annotations

import asyncio
import os
import sys
from stat import S_ISREG
from typing import TYPE_CHECKING

import msgspec

from orderchain import Sequencer, SequencerConfig, errors, open_sequencer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# Orders handed over and not acknowledged yet. Whatever arrives while a commit runs is the next
# batch, so a higher number allows larger batches. It also bounds the memory.
IN_FLIGHT_MAX = 10_000
NAME = "example-sequencing"
LINE_BYTES_MAX = 2**24  # far more than an order may have: the sequencer refuses those

Answer = dict[str, str | int]
Answers = asyncio.Queue[asyncio.Task[Answer] | None]


class Keyed(msgspec.Struct):
    """What this service needs of an order: the client's unique id for it."""

    key: str


async def main(chain_id: int) -> None:
    """Sequence every line, in the order of the lines."""
    config = SequencerConfig(
        chain_id=chain_id,
        database=os.environ["CHAINCTL_DATABASE"],
        kafka=os.environ.get("CHAINCTL_KAFKA"),
        owner=NAME,
    )
    # Entering takes the chain over, leaving commits and publishes what was accepted.
    async with open_sequencer(config) as sequencer:
        await sequence(sequencer, standard_input())


async def sequence(sequencer: Sequencer, lines: AsyncIterator[bytes]) -> None:
    """Submit each line without waiting for the one before."""
    answers = Answers(IN_FLIGHT_MAX)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(print_each(answers))
        async for line in lines:
            order = line.rstrip(b"\n")
            # Tasks begin in the order in which they were made, and ids follow the calls of submit.
            await answers.put(tasks.create_task(place(sequencer, order)))
        await answers.put(None)


async def place(sequencer: Sequencer, order: bytes) -> Answer:
    """Return the place of an order, or why it is refused: one client's fault stops no other.

    Raises what stops the sequencer.
    """
    try:
        key = msgspec.json.decode(order, type=Keyed).key
        ack = await sequencer.submit(key, order)
    except (
        msgspec.MsgspecError,
        errors.OrderError,
    ) as error:  # it got no id, and nothing is stored
        return {"line": order.decode(errors="replace"), "refused": str(error)}
    return {"key": key, "id": ack.id, "pid": ack.pid}


async def print_each(answers: Answers) -> None:
    """Print the answers, in the order of the lines."""
    while (answer := await answers.get()) is not None:
        print(msgspec.json.encode(await answer).decode(), flush=True)


async def standard_input() -> AsyncIterator[bytes]:
    """Yield the lines of standard input: of a file, which is there, or as they come in a pipe."""
    if S_ISREG(os.fstat(sys.stdin.fileno()).st_mode):
        for line in sys.stdin.buffer:
            yield line
        return
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    async for line in reader:
        yield line


if __name__ == "__main__":
    try:
        asyncio.run(main(int(sys.argv[1])))
    except errors.OrderchainError as error:  # another leader above all: it has taken the chain over
        print(f"{NAME}: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, errors.RefusedError) else 3)
