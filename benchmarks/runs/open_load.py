"""The time of an order under an open load: one that comes whether or not the last is done.

First the sustained maximum: the highest rate of a run in whose second half no queue grows. Then
shares of it, and fixed rates, which compare from machine to machine: the engine at its defaults, by
batches and one by one, with its hot functions in Python; beside it the bare pipe and Kafka's
transactions on the same schedule, a batch of theirs being what fell due while the last one was
committed. Also, what no order can be faster than.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec.structs import replace

from benchmarks.chains import Site, connected, empty_chain, make_chain, make_topic, remove_topic
from benchmarks.disk import FLUSHED
from benchmarks.load import Arm, Figures, Line, Load, Scope, Venue
from benchmarks.processes import RunFailed, call, freeze, serve
from benchmarks.rivals.engine import sequencer_of
from benchmarks.rivals.rival import RecordSender
from benchmarks.runs.loads import run_load
from benchmarks.runs.overload import run_overload
from benchmarks.runs.schedule import Job, run_job
from benchmarks.spreads import RATE, histogram_of
from chain_kernel.speed import implementation
from sequencer import SequencerTuning

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

# -- arms ------------------------------------------------------------------------------------------

PIPE: Final = "bare pipe of pages"
IN_PYTHON: Final = "in Python"
"""Without the compiled module, where the engine has it by default."""
RATES: Final = (1_000, 10_000, 60_000, 200_000)
"""Orders per second."""
SHARES_PERCENT: Final = (50, 70, 90)
"""Shares of the sustained maximum."""
WAYS: Final[dict[str, dict[str, Any]]] = {
    "engine": {"rival": "engine"},
    "engine, one by one": {"rival": "engine", "way": "one by one"},
    "engine, no broker": {"rival": "engine_no_broker"},
    "engine, no broker, one by one": {"rival": "engine_no_broker", "way": "one by one"},
    f"engine, {IN_PYTHON}": {"rival": "engine", "implementation": "python"},
    PIPE: {"rival": "bare_pages"},
    "Kafka transactions, frames": {"rival": "kafka_transactions_frames"},
}
"""Rivals that run at every fixed rate."""
ONE_BY_ONE_IN_PYTHON: Final = f"engine, one by one, {IN_PYTHON}"
_AT_ONE_RATE: Final[dict[str, dict[str, Any]]] = {
    "engine, a task an order": {"rival": "engine", "way": "tasks"},
    ONE_BY_ONE_IN_PYTHON: {"rival": "engine", "way": "one by one", "implementation": "python"},
}
_ONE_RATE: Final = 10_000
"""A gateway's own rate."""
OVERLOAD_PERCENT: Final = 150
"""Share of the maximum at which not all that comes can be taken."""

_REPEATS_MAX: Final = 2
_SECONDS: Final = 6.0
_LONG_SECONDS: Final = 30.0
_PYTHON_SECONDS: Final = 15.0
_PYTHON_TRIES: Final = 4
"""The maximum in Python is only for the share of it."""
_FLOOR_SECONDS: Final = 3.0
_QUICK_SECONDS: Final = 2.0
_QUICK_RATE: Final = 10_000
_TRIES: Final = 5
_QUICK_TRIES: Final = 2


def arms(scope: Scope) -> list[Arm]:
    """Return the maximum, the floor, shares of the maximum, and every way at every fixed rate."""
    quick = scope.is_quick
    seconds, long = (_QUICK_SECONDS,) * 2 if quick else (_SECONDS, _LONG_SECONDS)
    tries = _QUICK_TRIES if quick else _TRIES
    found = [
        _arm("maximum", 1, seconds=long, tries=tries),
        _arm("floor", seconds=min(seconds, _FLOOR_SECONDS)),
    ]
    highest = SHARES_PERCENT[-1]
    for share in SHARES_PERCENT[-1:] if quick else SHARES_PERCENT:
        repeats = _REPEATS_MAX if share == highest else 1
        found.append(_arm(share_name(share), repeats, seconds=long, share_percent=share))
    both = implementation() == "native" and not quick
    if both:
        found += [
            _arm(
                f"maximum {IN_PYTHON}",
                1,
                seconds=_PYTHON_SECONDS,
                tries=_PYTHON_TRIES,
                implementation="python",
            ),
            _arm(f"floor {IN_PYTHON}", seconds=_FLOOR_SECONDS, implementation="python"),
            _arm(
                f"{share_name(highest)} {IN_PYTHON}",
                seconds=long,
                share_percent=highest,
                implementation="python",
            ),
        ]
    if not quick:
        found.append(_arm(share_name(OVERLOAD_PERCENT), seconds=long))
    ways = [
        (rate, name, way)
        for rate in ((_QUICK_RATE,) if quick else RATES)
        for name, way in WAYS.items()
    ]
    ways += [] if quick else [(_ONE_RATE, name, way) for name, way in _AT_ONE_RATE.items()]
    return found + [
        _arm(rate_name(rate, name), seconds=seconds, rate_per_second=rate, **way)
        for rate, name, way in ways
        if both or IN_PYTHON not in name
    ]


def _arm(name: str, repeats_max: int = _REPEATS_MAX, **settings: float | str) -> Arm:
    return Arm(name=name, settings=settings, repeats_max=repeats_max)


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
    chosen: Any = settings.get("implementation", "")
    if arm.name.startswith("floor"):
        end = call(measure_floor, implementation=chosen, site=site, schedule_seconds=seconds)
        async with end as floor:
            return await floor.result()
    if arm.name.startswith("maximum"):
        return await find_maximum(site, seconds, int(settings["tries"]), chosen)
    of = f"maximum {IN_PYTHON}" if chosen else "maximum"
    if arm.name == share_name(OVERLOAD_PERCENT):
        return await run_overload(site, maximum(earlier) * OVERLOAD_PERCENT / 100, seconds)
    if share := settings.pop("share_percent", 0):
        rate = maximum(earlier, of) * int(share) / 100
        settings |= {"rival": "engine", "rate_per_second": rate}
    return await run_job(site, Job.of(seconds=seconds, **settings))  # type: ignore[arg-type]


def maximum(lines: Sequence[Line], arm: str = "maximum") -> float:
    """Return the orders per second that the shares are of. Raises RunFailed without."""
    for line in lines:
        if line.arm == arm and line.figures is not None:
            return float(line.figures[RATE])
    raise RunFailed(f"the {arm} is not known yet")


# -- the maximum -----------------------------------------------------------------------------------

_CLOSED: Final = Load(rival="engine", orders=200_000, batch_rows=5_000)
_HIGHEST: Final = 1.4
"""Times the rate of `_CLOSED`, whose sender waits: it is above what any schedule sustains."""


async def find_maximum(
    site: Site, seconds: float, tries: int, implementation: Literal["", "python"] = ""
) -> Figures:
    """Return the figures of the fastest run in whose second half no queue grows.

    The rates are found by halving. Raises RunFailed where none was sustained.
    """
    closed = replace(_CLOSED, implementation=implementation)
    low, high = 0.0, _HIGHEST * (await run_load(site, closed))[RATE]
    best: Figures | None = None
    for _ in range(tries):
        rate = (low + high) / 2
        job = Job.of("engine", rate, seconds, implementation=implementation)
        found = await run_job(site, job)
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
    freeze()
    topic = "rival.floor"
    await make_topic(site, topic)
    venue = Venue(site=site, load=Load(rival="engine", orders=1), place={"topic": topic})
    measured = {
        "order_histogram": await _orders_alone(site),
        "flush_alone_histogram": await _flushes_alone(Path(site.directory)),
    }
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


async def _flushes_alone(folder: Path) -> str:
    """Return how long flushes take, each of 8 KB, one after the other."""
    with TemporaryFile(dir=folder) as file:

        async def flush() -> None:
            os.pwrite(file.fileno(), FLUSHED, 0)
            os.fdatasync(file.fileno())

        return histogram_of(await _timed(flush))


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


if __name__ == "__main__":
    serve(measure_floor)
