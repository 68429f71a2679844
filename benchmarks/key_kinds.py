"""What do keys cost the sequencer, by their kind and with many of them present?

Every arm submits as many orders in batches of 1,000, with a real broker on the same machine; "keys
off" compares none.

    python -m benchmarks.key_kinds [--repeats 5] [--present 3000000]
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from benchmarks.arms import interleave
from benchmarks.chains import Site, make_chain
from benchmarks.committing import Figures, config_of, keyed, run, submit_all, submit_many, tell
from sequencer import open_sequencer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable


async def fill(site: Site, rows: int) -> int:
    """Return a chain that holds `rows` rows with random keys."""
    chain_id = await make_chain(site)
    config = config_of(site, chain_id, batch_rows_max=5_000, key_window_rows=10**7)
    async with open_sequencer(config) as sequencer:
        for start in range(0, rows, 500_000):
            count = min(500_000, rows - start)
            await submit_all(sequencer, list(keyed(count, 5_000, random_keys(), b"")))
    return chain_id


def client_keys() -> Callable[[int], str]:
    """Keys of the form `client#number`, rising; a new series at each call."""
    run = uuid.uuid4().hex[:8]
    return lambda n: f"{run}-{n % 64}#{n}"


def time_ordered_keys() -> Callable[[int], str]:
    """Free-form keys that begin with a time."""
    run = uuid.uuid4().hex[:8]
    return lambda n: f"{time.time_ns():x}-{run}-{n:x}"


def random_keys() -> Callable[[int], str]:
    """Random free-form keys."""
    return lambda _: uuid.uuid4().hex


async def measure(site: Site, arguments: argparse.Namespace) -> Figures:
    """Compare kinds of keys with keys off."""
    orders, present = arguments.orders, arguments.present
    filled = await fill(site, present)

    def arm(
        kind: Callable[[], Callable[[int], str]], chain_id: int | None = None
    ) -> Callable[[], Awaitable[float]]:
        return lambda: submit_many(site, orders, 1_000, window=10**7, key=kind(), chain_id=chain_id)

    figures = await interleave(
        {
            "keys off": lambda: submit_many(site, orders, 1_000),
            "client#number": arm(client_keys),
            "time-ordered": arm(time_ordered_keys),
            f"random, {present:,} present": arm(random_keys, filled),
        },
        arguments.repeats,
    )
    return {"keys": tell("keys", figures, "keys off")}


if __name__ == "__main__":
    run("key_kinds", __doc__ or "", measure, present=3_000_000)
