"""Many receivers in a process of their own.

`python -m tests.faults.receivers` reads the configs as one line of JSON, starts them all at once
and writes a line. For each id that it then reads it writes what each has taken, once all have
delivered, and stored, the row with that id.
"""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from hashlib import sha256

import msgspec

from chain_kernel.model import Event
from matcher_receiver import ReceiverConfig
from matcher_receiver.receiver import Receiver
from orderchain import open_receiver


class Taken(msgspec.Struct):
    """All that a receiver has handed on: where it began and ended, and every byte of it."""

    after_id: int
    until_id: int = 0
    digest: str = ""

    def take(self, events: Sequence[Event]) -> None:
        """Take what comes next."""
        for each in events:
            self.until_id = each.id
            self.digest = sha256(self.digest.encode() + msgspec.msgpack.encode(each)).hexdigest()


class Delivered:
    """How far each receiver has come."""

    def __init__(self) -> None:
        self._taken: dict[str, Taken] = {}
        self._changed = asyncio.Condition()

    async def follow(self, name: str, receiver: Receiver) -> None:
        taken = self._taken[name] = Taken(receiver.head_delivered)
        async for run in receiver:
            await receiver.checkpoint(run)
            async with self._changed:
                taken.take(run.events)
                self._changed.notify_all()

    async def until(self, row_id: int) -> dict[str, Taken]:
        """Return what each has taken once all have come to that row."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: min(taken.until_id for taken in self._taken.values()) >= row_id
            )
            return self._taken


async def main() -> None:
    reader = asyncio.StreamReader(limit=2**20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    configs = msgspec.json.decode(await reader.readline(), type=list[ReceiverConfig])
    delivered = Delivered()
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        started = await asyncio.gather(
            *(stack.enter_async_context(open_receiver(config)) for config in configs)
        )
        following = [
            tasks.create_task(delivered.follow(str(config.name), receiver))
            for config, receiver in zip(configs, started, strict=True)
        ]
        print("started", flush=True)  # noqa: T201 - read by the test
        while line := await reader.readline():
            taken = msgspec.json.encode(await delivered.until(int(line)))
            print(taken.decode(), flush=True)  # noqa: T201 - read by the test
        for task in following:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
