"""The load of one run, its seeded orders, the same for every rival, and its result."""

from __future__ import annotations

from base64 import b64encode
from random import Random
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from benchmarks.chains import Site
from sequencer import Order

if TYPE_CHECKING:
    from collections.abc import Iterator

EVENT_TIME_NS = 1_700_000_000_000_000_000

Stage = Literal["persist", "publish", "deliver"]
"""How far a run goes: rows durable; rows on the broker too; rows handed on by a second process."""

WARM_UP_SHARE = 20
"""One order in this many goes first, untimed: it warms caches, plans and connections."""


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


class Load(Struct, frozen=True, kw_only=True):
    """The orders of one run, and how they are batched."""

    rival: str
    orders: int
    batch_rows: int = 1_000
    payload_bytes: int = 64
    stage: Stage = "deliver"
    grow_orders: int = 0
    """Orders sent before the timed ones, made as they are sent: how long the chain is by then."""
    seed: int = 1
    with_keys: bool = False
    """The engine alone: compare every order's key with those of the last million rows."""
    with_seal: bool = True
    """The engine alone."""
    is_kept: bool = False
    """The receiver keeps what it was handed and reports its digest: for tests, not for figures."""

    @property
    def warm_up_orders(self) -> int:
        """Orders sent before the timed ones: whole batches, at least two."""
        return self.batch_rows * max(2, self.orders // WARM_UP_SHARE // self.batch_rows)

    @property
    def all_orders(self) -> int:
        """Orders that the database must hold in the end."""
        return self.untimed_orders + self.orders

    @property
    def untimed_orders(self) -> int:
        """Orders sent before the timed ones."""
        return self.warm_up_orders + self.grow_orders

    @property
    def deadline_seconds(self) -> float:
        """After this long, a run has hung: ten minutes, and more for long chains."""
        return 600.0 + self.all_orders / 20_000

    def batches(self, count: int) -> Iterator[list[Order]]:
        """Yield the first `count` orders, in batches."""
        return order_batches(
            count, self.batch_rows, payload_bytes=self.payload_bytes, seed=self.seed
        )


class Venue(Struct, frozen=True, kw_only=True):
    """Where a run takes place: handed to the processes of both ends."""

    site: Site
    load: Load
    place: dict[str, str | int]
    """Names of the topic, the table, the chain: what the rival prepared."""


class Produced(Struct, frozen=True, kw_only=True):
    """What the process of the sending end reports. Times are of the monotonic clock, which all
    processes of a machine share."""

    began_ns: int
    persisted_ns: int
    """The last order was durable."""
    published_ns: int
    """The broker had acknowledged the last order."""
    cpu_seconds: float
    memory_mib: float


class Received(Struct, frozen=True, kw_only=True):
    """What the process of the receiving end reports."""

    ended_ns: int
    rows: int
    """Orders handed on, those of the warm-up among them."""
    last_id: int
    cpu_seconds: float
    memory_mib: float
    digest: str
    """SHA-256 over the orders that were handed on, where they were kept, else empty."""
    notes: dict[str, float] = {}
    """Figures of the rival's own."""


class Stored(Struct, frozen=True, kw_only=True):
    """What durable storage holds after a run."""

    rows: int
    last_id: int
