"""Seeded orders, the same for every arm of a comparison."""

from __future__ import annotations

from base64 import b64encode
from random import Random
from typing import TYPE_CHECKING

from sequencer import Order

if TYPE_CHECKING:
    from collections.abc import Iterator

EVENT_TIME_NS = 1_700_000_000_000_000_000


def order_batches(
    count: int, batch_rows: int, *, payload_bytes: int = 100, seed: int = 1
) -> Iterator[list[Order]]:
    """Yield `count` orders in batches, with varied payloads and keys (client, rising number).

    Payloads are ASCII, six random bits per byte: a rival that sends JSON need not encode them
    first.
    """
    random = Random(seed)
    for start in range(0, count, batch_rows):
        stop = min(start + batch_rows, count)
        noise = b64encode(random.randbytes(payload_bytes * (stop - start)))
        yield [
            Order(
                f"client-{n % 64}#{n}",
                noise[(n - start) * payload_bytes : (n - start + 1) * payload_bytes],
                EVENT_TIME_NS + n,
            )
            for n in range(start, stop)
        ]
