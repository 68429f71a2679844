"""What is asked: loads of seeded orders, the same for every rival; arms; questions."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Sequence
from random import Random
from typing import Any, Literal

from msgspec import Struct

from benchmarks.chains import Site
from sequencer import Order

# -- one run ---------------------------------------------------------------------------------------

EVENT_TIME_NS = 1_700_000_000_000_000_000

Stage = Literal["persist", "publish", "deliver"]
"""How far a run goes: rows durable; rows on the broker too; rows handed on by a second process."""

KeyKind = Literal["client", "time", "random"]
"""`client#number`, rising; free-form, beginning with a time; 128 random bits."""

KEY_WINDOW_ROWS = 1_000_000
"""Rows whose keys the engine compares in a load with keys."""

WARM_UP_SHARE = 20
"""One order in this many goes first, untimed: it warms caches, plans and connections."""


def _key_maker(kind: KeyKind, seed: int) -> Callable[[int], str]:
    if kind == "client":
        return lambda n: f"client-{n % 64}#{n}"
    if kind == "time":
        return lambda n: f"{EVENT_TIME_NS + 1_000 * n:x}-{seed:08x}-{n:x}"
    random = Random(-seed)
    return lambda _: f"{random.getrandbits(128):032x}"


def order_batches(
    count: int,
    batch_rows: int,
    *,
    payload_bytes: int = 100,
    seed: int = 1,
    key_kind: KeyKind = "client",
) -> Iterator[list[Order]]:
    """Yield `count` orders in batches, with varied payloads and keys of one kind.

    Payloads are ASCII, six random bits per byte: a rival that sends JSON need not encode them
    first.
    """
    random, key = Random(seed), _key_maker(key_kind, seed)
    for start in range(0, count, batch_rows):
        stop = min(start + batch_rows, count)
        noise = b64encode(random.randbytes(payload_bytes * (stop - start)))
        yield [
            Order(
                key(n),
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
    key_kind: KeyKind = "client"
    key_window_rows: int = 0
    """The engine alone: compare every order's key with those of so many last rows."""
    is_kept: bool = False
    """The receiver keeps what it was handed and reports its digest: for tests, not for figures."""

    @property
    def warm_up_orders(self) -> int:
        """Orders sent before the timed ones: whole batches, at least two."""
        return self.batch_rows * max(2, self.orders // WARM_UP_SHARE // self.batch_rows)

    @property
    def untimed_orders(self) -> int:
        """Orders sent before the timed ones."""
        return self.warm_up_orders + self.grow_orders

    @property
    def all_orders(self) -> int:
        """Orders that the database must hold in the end."""
        return self.untimed_orders + self.orders

    def batches(self, count: int) -> Iterator[list[Order]]:
        """Yield the first `count` orders, in batches."""
        return order_batches(
            count,
            self.batch_rows,
            payload_bytes=self.payload_bytes,
            seed=self.seed,
            key_kind=self.key_kind,
        )


class Venue(Struct, frozen=True, kw_only=True):
    """Where a run takes place: handed to the processes of both ends."""

    site: Site
    load: Load
    place: dict[str, str | int]
    """Names of the topic, the table, the chain: what the rival prepared."""

    @property
    def chain_id(self) -> int:
        """The chain of a rival that has one."""
        return int(self.place["chain_id"])

    @property
    def topic(self) -> str:
        """The topic of a rival that has one of its own."""
        return str(self.place["topic"])

    @property
    def deadline_seconds(self) -> float:
        """After this long, a run has hung: ten minutes, and more for long chains."""
        return 600.0 + self.load.all_orders / 20_000


# -- questions -------------------------------------------------------------------------------------

Figures = dict[str, Any]

RUN_SECONDS = 3.0
"""What a run costs besides its orders: two processes, a chain, a topic, a proof."""

ORDERS = {1: 2_000, 10: 20_000, 100: 100_000, 500: 100_000, 1_000: 200_000, 5_000: 400_000}
"""Timed orders of a run by its batch size: one to four seconds each, for the fast ones."""

QUICK_SHARE = 4
"""A quick run sends one order in this many."""

_EXPECTED_RATES = {"common_way": 4_000, "event_sourcing": 20_000}
_EXPECTED_RATES_BY_ROWS = {1: 700, 10: 6_000, 100: 30_000, 500: 60_000, 1_000: 90_000}
_EXPECTED_RATE = 110_000


class Scope(Struct, frozen=True, kw_only=True):
    """How much of a question is asked."""

    is_quick: bool = False
    is_huge: bool = False
    """Chains of 10^8 rows too: an hour, and 30 GB of disk."""
    repeats: int = 5

    def orders(self, batch_rows: int) -> int:
        """Return the orders of a run in whole batches."""
        orders = ORDERS[batch_rows]
        return max(batch_rows * 4, orders // QUICK_SHARE) if self.is_quick else orders


class Arm(Struct, frozen=True, kw_only=True):
    """One of the things compared, each repeat of which is saved by itself."""

    name: str
    load: Load | None = None
    settings: dict[str, float | int | str] = {}
    """For questions that do more than run a load."""
    seconds: float
    """About how long one repeat takes."""
    repeats_max: int = 1_000


class Line(Struct, frozen=True, kw_only=True):
    """One repeat of an arm, as it is saved."""

    question: str
    arm: str
    repeat: int
    run: str
    """The start of the run that it belongs to; its conditions are in `conditions.jsonl`."""
    engine: str
    """Fingerprint of the engine's code."""
    settings: dict[str, Any] = {}
    figures: Figures | None = None
    """None where the run failed, or did not verify: then there is no figure."""
    failure: str | None = None
    seconds: float = 0.0


class Question(Struct, frozen=True):
    """What is asked: the arms that are compared, and how one repeat of an arm is run."""

    title: str
    arms: Callable[[Scope], list[Arm]]
    """The first arm may be what others need to know."""
    run: Callable[[Site, Arm, Sequence[Line]], Awaitable[Figures]]
    """The lines are those of this question so far."""


def load_arm(
    scope: Scope,
    rival: str,
    batch_rows: int,
    *,
    name: str | None = None,
    **settings: Any,  # noqa: ANN401 - fields of Load
) -> Arm:
    """Return the arm of a load through a rival, with the number of orders that suits it."""
    rate = _EXPECTED_RATES.get(rival) or _EXPECTED_RATES_BY_ROWS.get(batch_rows, _EXPECTED_RATE)
    orders = settings.pop("orders", None) or scope.orders(batch_rows)
    if rival in _EXPECTED_RATES:  # a slow one needs no more than a few seconds either
        orders = min(orders, max(2 * batch_rows, 4 * rate // (2 if scope.is_quick else 1)))
    orders = max(1, orders // batch_rows) * batch_rows
    load = Load(rival=rival, orders=orders, batch_rows=batch_rows, **settings)
    seconds = RUN_SECONDS + 1.3 * load.all_orders / rate
    return Arm(name=name or f"{rival} {batch_rows}", load=load, seconds=seconds)
