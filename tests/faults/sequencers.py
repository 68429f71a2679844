"""Many sequencers in a process of their own.

`python -m tests.faults.sequencers` reads the configs as one line of JSON, leads the chains that are
no standbys, and writes a line. For each line that it then reads, which is the number of a chain, it
waits until it leads that chain; then it submits orders to each chain that it leads, and writes how
many each has acknowledged in all.
"""

import asyncio
import sys
from collections.abc import Mapping

import msgspec

from sequencer import Sequencer, SequencerConfig, open_sequencers
from tests.builders.orders import make_orders

BATCH = 5
BATCHES = 4


async def submit(sequencer: Sequencer) -> None:
    """Submit some orders, with keys that no other process has."""
    stats = sequencer.stats()
    for number in range(BATCHES):
        start = stats.orders + number * BATCH
        await sequencer.submit_many(make_orders(BATCH, prefix=f"{stats.name}/", start=start))


async def submit_to_all(sequencers: Mapping[int, Sequencer]) -> dict[int, int]:
    led = [each for each in sequencers.values() if each.why_not_ready() is None]
    await asyncio.gather(*map(submit, led))
    return {chain_id: each.stats().orders for chain_id, each in sequencers.items()}


async def main() -> None:
    reader = asyncio.StreamReader(limit=2**20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    configs = msgspec.json.decode(await reader.readline(), type=list[SequencerConfig])
    async with open_sequencers(configs) as sequencers:
        print("leading", flush=True)  # noqa: T201 - read by the test
        while line := await reader.readline():
            await sequencers[int(line)].until_leading()
            acked = msgspec.json.encode(await submit_to_all(sequencers))
            print(acked.decode(), flush=True)  # noqa: T201 - read by the test


if __name__ == "__main__":
    asyncio.run(main())
