"""Orders over TCP, pipelined: a client sends its next orders before the first one is answered.

    eval "$(chainctl stack env)"
    chainctl chain create 7
    python examples/pipelined_gateway.py 7 8001 &
    echo '{"key": "anna#1", "symbol": "ALPHA", "side": "B", "qty": 100}' | nc -N 127.0.0.1 8001

answers {"key":"anna#1","id":1,"pid":0} once the order is committed. Answers come in the order of
the lines. A door of WebSocket or FIX messages needs the same rule: **after one refusal it refuses
all that follows on that connection**. For anna#7 may find the queue full, and anna#8 room again:
then anna#8 is the client's highest number, and anna#7 is refused forever, under this key. The
client connects again, and sends again from the first refused order on.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress

import msgspec

from orderchain import Ack, Sequencer, SequencerConfig, errors, open_sequencer

NAME = "example-pipelined"
IN_FLIGHT_MAX = 1_000
"""Orders of a connection without an answer. Then no more is read: the client's sends wait."""
LINE_BYTES_MAX = 2**20

Placed = tuple[str, asyncio.Future[Ack] | None]


class Keyed(msgspec.Struct):
    """What this service needs of an order: the client's unique id for it, client#number."""

    key: str


class Door:
    """One connection: orders enter the sequencer in the order of the lines."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        self.refused: str | None = None
        """Why orders are refused from now on."""
        self._placed: asyncio.Queue[Placed | None] = asyncio.Queue(IN_FLIGHT_MAX)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take orders until the client ends, and answer each of them."""
        answering = asyncio.create_task(self._answer(writer))
        try:
            async for line in reader:
                await self._placed.put(self._place(line.rstrip(b"\n")))
        except (ConnectionError, ValueError):  # the client is gone, or a line is too long
            pass
        await self._placed.put(None)
        await answering

    def _place(self, line: bytes) -> Placed:
        """Submit an order, unless one before it was refused."""
        key = line.decode(errors="replace")
        try:
            key = msgspec.json.decode(line, type=Keyed).key
            if self.refused is None:
                return key, self._sequencer.submit_nowait(key, line)
        except (msgspec.MsgspecError, errors.OrderchainError) as error:
            self.refused = self.refused or f"{key}: {error}"
        return key, None

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        """Answer each order, in their order."""
        while (placed := await self._placed.get()) is not None:
            key, place = placed
            answer: dict[str, object] = {"key": key, "refused": self.refused}
            if place is not None:
                try:
                    ack = await place
                    answer = {"key": key, "id": ack.id, "pid": ack.pid}
                except errors.OrderchainError as error:  # of its key, or this process leads no more
                    self.refused = self.refused or f"{key}: {error}"
                    answer = {"key": key, "refused": str(error)}
            with suppress(ConnectionError):  # a client that is gone gets no answers
                writer.write(msgspec.json.encode(answer) + b"\n")
                await writer.drain()
        writer.close()


async def main(chain_id: int, port: int) -> None:
    """Lead the chain, and serve while this process leads."""
    config = SequencerConfig(
        chain_id=chain_id,
        owner=NAME,
        database=os.environ["CHAINCTL_DATABASE"],
        kafka=os.environ.get("CHAINCTL_KAFKA"),
        standby=True,
        # No `submit_within_seconds`: Busy would come once later orders wait already.
    )
    doors: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        door = asyncio.create_task(Door(sequencer).serve(reader, writer))
        doors.add(door)
        door.add_done_callback(doors.discard)

    async with open_sequencer(config) as sequencer:
        server = await asyncio.start_server(connected, "127.0.0.1", port, limit=LINE_BYTES_MAX)
        print("port", server.sockets[0].getsockname()[1], flush=True)
        try:
            await sequencer.until_stopped()
        finally:
            server.close()


if __name__ == "__main__":
    try:
        asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
    except errors.OrderchainError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, errors.RefusedError) else 3)
