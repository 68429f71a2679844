"""The questions: loads of seeded orders, the same for every rival; arms."""

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
"""The end of a run: rows durable; rows on the broker too; rows handed on by a second process."""

KeyKind = Literal["client", "time", "random"]
"""`client#number`, rising; free-form, beginning with a time; 128 random bits."""

KEY_WINDOW_ROWS = 1_000_000
"""Rows whose keys the engine compares: as many as by default."""

WARM_UP_SHARE = 20
"""One order in this many goes first, untimed: it warms caches, plans and connections."""


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
    key_window_rows: int = KEY_WINDOW_ROWS
    """The engine alone: compare every order's key with those of so many last rows. 0: not at all"""
    implementation: Literal["", "python", "native"] = ""
    """The hot functions that both ends run; those of the benchmark's own process if empty."""

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
        """Yield the first `count` orders, in batches, with varied payloads and keys of one kind.

        Payloads are ASCII, six random bits per byte: a rival that sends JSON need not encode them
        first.
        """
        random, key, size = Random(self.seed), self._key_maker(), self.payload_bytes
        for start in range(0, count, self.batch_rows):
            stop = min(start + self.batch_rows, count)
            noise = b64encode(random.randbytes(size * (stop - start)))
            yield [
                Order(key(n), noise[(n - start) * size : (n - start + 1) * size], EVENT_TIME_NS + n)
                for n in range(start, stop)
            ]

    def _key_maker(self) -> Callable[[int], str]:
        if self.key_kind == "client":
            return lambda n: f"client-{n % 64}#{n}"
        if self.key_kind == "time":
            return lambda n: f"{EVENT_TIME_NS + 1_000 * n:x}-{self.seed:08x}-{n:x}"
        random = Random(-self.seed)
        return lambda _: f"{random.getrandbits(128):032x}"


class Venue(Struct, frozen=True, kw_only=True):
    """The place of a run: handed to the processes of both ends."""

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

ORDERS = {1: 2_000, 10: 20_000, 100: 100_000, 500: 100_000, 1_000: 200_000, 5_000: 400_000}
"""Timed orders of a run by its batch size: one to four seconds each, for the fast ones."""

QUICK_SHARE = 4
"""A quick run sends one order in this many."""

_SLOW_RATES = {"common_way": 4_000, "event_sourcing": 20_000}
"""About how many orders per second the slow rivals manage: they get no more than they need."""


class Scope(Struct, frozen=True, kw_only=True):
    """The part of a question that is asked."""

    is_quick: bool = False
    repeats: int = 5

    def orders(self, batch_rows: int) -> int:
        """Return the orders of a run in whole batches."""
        orders = ORDERS[batch_rows]
        return max(batch_rows * 4, orders // QUICK_SHARE) if self.is_quick else orders


_ALL_REPEATS = 1_000


class Arm(Struct, frozen=True, kw_only=True):
    """One of the things compared, each repeat of which is saved by itself."""

    name: str
    load: Load | None = None
    settings: dict[str, float | int | str] = {}
    """For questions that do more than run a load."""
    repeats_max: int = _ALL_REPEATS


class Line(Struct, frozen=True, kw_only=True):
    """One repeat of an arm, as it is saved."""

    question: str
    arm: str
    repeat: int
    run: str
    """Beginning of the run that it belongs to."""
    settings: dict[str, Any] = {}
    figures: Figures | None = None
    """None where the run failed, or did not verify: then there is no figure."""
    failure: str | None = None
    seconds: float = 0.0


class Question(Struct, frozen=True):
    """A question: the arms that are compared, and how one repeat of an arm is run."""

    title: str
    minutes: int
    """About how long all of it takes on two cores."""
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
    orders = settings.pop("orders", None) or scope.orders(batch_rows)
    repeats_max = settings.pop("repeats_max", _ALL_REPEATS)
    if rate := _SLOW_RATES.get(rival):  # no more than a few seconds either
        orders = min(orders, max(2 * batch_rows, 4 * rate // (2 if scope.is_quick else 1)))
    orders = max(1, orders // batch_rows) * batch_rows
    load = Load(rival=rival, orders=orders, batch_rows=batch_rows, **settings)
    return Arm(name=name or f"{rival} {batch_rows}", load=load, repeats_max=repeats_max)
