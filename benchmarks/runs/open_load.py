"""How long does an order take under an open load: one that comes whether or not the last is done?

First the sustained maximum: the highest rate of a run in whose second half no queue grows. Then
shares of it, and fixed rates, which compare from machine to machine: the engine at its defaults, by
batches and one by one, with keys not compared; beside it the bare pipe and Kafka's transactions on
the same schedule, a batch of theirs being what fell due while the last one was committed. Also,
what no order can be faster than.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.chains import Site, connected, empty_chain, make_chain, make_topic, remove_topic
from benchmarks.load import Arm, Figures, Line, Load, Scope, Venue
from benchmarks.processes import RunFailed
from benchmarks.rivals.engine import sequencer_of
from benchmarks.rivals.rival import RecordSender
from benchmarks.runs.loads import run_load
from benchmarks.runs.schedule import Job, run_job
from benchmarks.spreads import RATE, histogram_of
from sequencer import SequencerTuning

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

# -- arms ------------------------------------------------------------------------------------------

PIPE: Final = "bare pipe of pages"
RATES: Final = (1_000, 10_000, 60_000, 200_000)
"""Orders per second."""
SHARES_PERCENT: Final = (50, 70, 90)
"""Shares of the sustained maximum."""
WAYS: Final[dict[str, dict[str, Any]]] = {
    "engine": {"rival": "engine"},
    "engine, one by one": {"rival": "engine", "way": "one by one"},
    "engine, keys not compared": {"rival": "engine", "key_window_rows": 0},
    PIPE: {"rival": "bare_pages"},
    "Kafka transactions, frames": {"rival": "kafka_transactions_frames"},
}
"""What runs at every fixed rate."""
_TASKS: Final = "engine, a task an order"
_TASKS_RATES: Final = RATES[:2]

_REPEATS_MAX: Final = 2
_SECONDS: Final = 12.0
_LONG_SECONDS: Final = 30.0
_FLOOR_SECONDS: Final = 3.0
_QUICK_SECONDS: Final = 2.0
_QUICK_RATE: Final = 10_000
_TRIES: Final = 5
_QUICK_TRIES: Final = 2


def arms(scope: Scope) -> list[Arm]:
    """Return the maximum, the floor, shares of the maximum, and every way at every fixed rate."""
    quick, seconds = scope.is_quick, _QUICK_SECONDS if scope.is_quick else _SECONDS
    long = _QUICK_SECONDS if quick else _LONG_SECONDS
    tries: dict[str, float | int | str] = {
        "seconds": long,
        "tries": _QUICK_TRIES if quick else _TRIES,
    }
    shares, rates = (SHARES_PERCENT[-1:], (_QUICK_RATE,)) if quick else (SHARES_PERCENT, RATES)
    ways = [(rate, name, way) for rate in rates for name, way in WAYS.items()]
    if not quick:
        ways += [(rate, _TASKS, {"rival": "engine", "way": "tasks"}) for rate in _TASKS_RATES]
    return [
        Arm(name="maximum", settings=tries, repeats_max=1),
        Arm(
            name="floor",
            settings={"seconds": min(seconds, _FLOOR_SECONDS)},
            repeats_max=_REPEATS_MAX,
        ),
        *(
            Arm(
                name=share_name(share),
                settings={"seconds": long, "share_percent": share},
                repeats_max=_REPEATS_MAX,
            )
            for share in shares
        ),
        *(
            Arm(
                name=rate_name(rate, name),
                settings={"seconds": seconds, "rate_per_second": rate, **way},
                repeats_max=_REPEATS_MAX,
            )
            for rate, name, way in ways
        ),
    ]


def share_name(share_percent: int) -> str:
    """Return the name of an arm whose rate is a share of the maximum."""
    return f"{share_percent} % of the maximum"


def rate_name(rate: int, way: str) -> str:
    """Return the name of an arm at a fixed rate."""
    return f"{rate:,}/s, {way}"


async def run(site: Site, arm: Arm, earlier: Sequence[Line]) -> Figures:
    """Run one repeat. The shares are those of the maximum that was found before."""
    settings = dict(arm.settings)
    seconds = float(settings.pop("seconds"))
    if arm.name == "floor":
        return {**await measure_floor(site, seconds)}
    if arm.name == "maximum":
        return await find_maximum(site, seconds, int(settings["tries"]))
    if share := settings.pop("share_percent", 0):
        settings |= {"rival": "engine", "rate_per_second": maximum(earlier) * int(share) / 100}
    return await run_job(site, Job.of(seconds=seconds, **settings))  # type: ignore[arg-type]


def maximum(lines: Sequence[Line]) -> float:
    """Return the orders per second that the shares are of. Raises RunFailed without."""
    for line in lines:
        if line.arm == "maximum" and line.figures is not None:
            return float(line.figures[RATE])
    raise RunFailed("the maximum is not known yet")


# -- the maximum -----------------------------------------------------------------------------------

_CLOSED: Final = Load(rival="engine", orders=200_000, batch_rows=5_000)
_HIGHEST: Final = 1.4
"""Times the rate of `_CLOSED`, whose sender waits: it is above what any schedule sustains."""


async def find_maximum(site: Site, seconds: float, tries: int) -> Figures:
    """Return the figures of the fastest run in whose second half no queue grows.

    The rates are found by halving. Raises RunFailed where none was sustained.
    """
    low, high = 0.0, _HIGHEST * (await run_load(site, _CLOSED))[RATE]
    best: Figures | None = None
    for _ in range(tries):
        rate = (low + high) / 2
        found = await run_job(site, Job.of("engine", rate, seconds))
        if found["is_growing"]:
            high = rate
        else:
            low, best = rate, found
    if best is None:
        raise RunFailed(f"a queue grew at every rate, the last of {high:,.0f} orders per second")
    # What came in is what was sustained: the end of a run also waits for its last orders.
    return {**best, RATE: best["rate_per_second"], "not_sustained_per_second": high}


# -- the floor -------------------------------------------------------------------------------------

FLOOR_TRIES = 1_000
FLOOR_PACE_SECONDS = 0.005


async def measure_floor(site: Site, schedule_seconds: float) -> dict[str, str]:
    """Return what no order can be faster than: one commit, one send, each with nothing beside it.

    One after the other, a stall of the disk counts once, however long it is: only the one call that
    met it is late. So each is also measured on a schedule, from when it was due, as orders are.
    Beside them, one order after the other, each submitted alone.
    """
    topic = "rival.floor"
    await make_topic(site, topic)
    venue = Venue(site=site, load=Load(rival="engine", orders=1), place={"topic": topic})
    measured = {"order_histogram": await _orders_alone(site)}
    async with connected(site.admin) as connection:
        try:
            await connection.execute("CREATE TABLE IF NOT EXISTS rival_floor (payload bytea)")
            insert = await connection.prepare("INSERT INTO rival_floor VALUES ($1)")
            async with RecordSender(venue) as sender:

                async def send() -> None:
                    await sender.send(bytes(100))
                    await sender.settle()

                for name, call_of in (
                    ("commit", partial(insert.fetch, bytes(100))),
                    ("send", send),
                ):
                    measured[f"{name}_histogram"] = histogram_of(await _timed(call_of))
                    due = await timed_from_due(call_of, seconds=schedule_seconds)
                    measured[f"due_{name}_histogram"] = histogram_of(due)
        finally:
            await connection.execute("DROP TABLE IF EXISTS rival_floor")
            await remove_topic(site, topic)
    return measured


async def _orders_alone(site: Site) -> str:
    """Return how long orders take that are submitted one after the other."""
    chain_id, load = await make_chain(site), Load(rival="engine", orders=1)
    orders = (order for batch in load.batches(2 * FLOOR_TRIES) for order in batch)
    try:
        async with sequencer_of(site, chain_id, load, tuning=SequencerTuning()) as sequencer:

            async def submit() -> None:
                order = next(orders)
                await sequencer.submit(order.key, order.payload, order.event_time_ns)

            return histogram_of(await _timed(submit))
    finally:
        await empty_chain(site, chain_id)


async def _timed(call: Callable[[], Awaitable[object]]) -> list[int]:
    """Return how long calls take that are made one after the other, in nanoseconds."""
    found = []
    for number in range(-FLOOR_TRIES // 10, FLOOR_TRIES):  # those below 0 are not counted
        began_ns = time.monotonic_ns()
        await call()
        if number >= 0:
            found.append(time.monotonic_ns() - began_ns)
    return found


async def timed_from_due(
    call: Callable[[], Awaitable[object]],
    *,
    seconds: float,
    pace_seconds: float = FLOOR_PACE_SECONDS,
) -> list[int]:
    """Return when calls on a constant schedule were done, from when each was due, in nanoseconds.

    They run one at a time: calls that fall due during a long one are late too, and show it.
    """
    found = []
    due_ns = time.monotonic_ns()
    for _ in range(round(seconds / pace_seconds)):
        due_ns += int(pace_seconds * 1e9)
        if (early_ns := due_ns - time.monotonic_ns()) > 0:
            await asyncio.sleep(early_ns / 1e9)
        await call()
        found.append(time.monotonic_ns() - due_ns)
    return found
