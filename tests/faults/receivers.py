"""Many receivers in a process of their own.

`python -m tests.faults.receivers` reads the configs as one line of JSON, starts them all at once
and writes a line. For each id that it then reads it writes a line when all have delivered, and
stored, the row with that id.
"""

import asyncio
import sys
from contextlib import AsyncExitStack

import msgspec

from matcher_receiver import ReceiverConfig
from matcher_receiver.receiver import Receiver
from orderchain import open_receiver


class Delivered:
    """How far each receiver has come."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._changed = asyncio.Condition()

    async def follow(self, name: str, receiver: Receiver) -> None:
        self._places[name] = receiver.head_delivered
        async for run in receiver:
            await receiver.checkpoint(run)
            async with self._changed:
                self._places[name] = run.end.id
                self._changed.notify_all()

    async def until(self, row_id: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: min(self._places.values()) >= row_id)


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
            await delivered.until(int(line))
            print("delivered", flush=True)  # noqa: T201 - read by the test
        for task in following:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
