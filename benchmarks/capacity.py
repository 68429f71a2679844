"""Needs of a larger load, by simulation: `python -m benchmarks.capacity` writes docs/capacity.md.

A model of discrete events moves batches through sequencer, database, broker and receiver. Service
times are those of the last whole `make bench` (results/table.md); its rates of this machine, which
the model does not see, check it: exit code 1 if one is off by more than 20 %.
"""

from __future__ import annotations

import heapq
import math
import random
import re
import sys
from collections import deque
from itertools import count, pairwise
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import msgspec

from benchmarks.host import RESULTS
from benchmarks.report import FLUSH_ALONE
from benchmarks.spreads import table, with_lines

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    Process = Generator["Resource | float", None, None]

PAGE: Final = Path(__file__).parent.parent / "docs" / "capacity.md"
BEGIN: Final = "<!-- capacity: written by `python -m benchmarks.capacity` -->"
END: Final = "<!-- capacity: end -->"

BATCH_ROWS: Final = (100, 1_000, 5_000)
ERROR_MAX: Final = 0.2
CORES: Final = 2
IN_FLIGHT: Final = 3
"""Calls of `submit_many` that a producer of the benchmark has in the air."""
BATCHES: Final = 4_000
SEED: Final = 1
TRIP_SECONDS: Final = 0.000_5
"""From one machine to another, and back. Assumed: the benchmark knows no network."""
REPLICAS: Final = 3
BUSY_MAX: Final = 0.5
PEAK: Final = 10
"""The peak is so many times the mean of a day."""
ASKED: Final = ((9, 1_000), (10, 5_000))
"""Powers of ten orders a day, with the rows of a batch."""

# -- events ----------------------------------------------------------------------------------------


class Resource:
    """A resource that a limited number of batches use at once: the cores of a machine, or one
    process."""

    def __init__(self, name: str, capacity: int = 1) -> None:
        self.name = name
        self.capacity = capacity
        self.free = capacity
        self.used_seconds = 0.0
        self.waiting: deque[Process] = deque()


class World:
    """Processes that acquire resources and let time pass, in the order of virtual time."""

    def __init__(self, spread: float) -> None:
        """`spread` is the deviation of the logarithm of a service time."""
        self.now = 0.0
        self._events: list[tuple[float, int, Process]] = []
        self._number = count()
        self._random = random.Random(SEED)
        self._spread = spread

    def start(self, process: Process, after_seconds: float = 0.0) -> None:
        """Let a process begin, or go on."""
        heapq.heappush(self._events, (self.now + after_seconds, next(self._number), process))

    def run(self) -> None:
        """Run until no process has anything left to do."""
        while self._events:
            self.now, _, process = heapq.heappop(self._events)
            for asked in process:  # until it has to wait
                if isinstance(asked, float):
                    self.start(process, asked)
                    break
                if not asked.free:
                    asked.waiting.append(process)
                    break
                asked.free -= 1

    def hold(self, resources: Sequence[Resource], mean_seconds: float) -> Process:
        """Hold all of these for a service time; the mean is what was measured."""
        yield from resources
        drawn = self._random.lognormvariate(-(self._spread**2) / 2, self._spread)
        yield mean_seconds * drawn
        for each in resources:
            each.used_seconds += mean_seconds * drawn
            self.release(each)

    def release(self, resource: Resource) -> None:
        """Give what one process held to the next that waits, or free it."""
        if resource.waiting:
            self.start(resource.waiting.popleft())
        else:
            resource.free += 1


# -- service times ---------------------------------------------------------------------------------


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of a batch, in seconds of a core; a report has them as CPU time per order."""

    rows: int
    own: float
    """Sequencer and receiver: half of what both take, each."""
    server: float
    """PostgreSQL and Kafka: half of what both take, each."""
    flush: float
    """The log's flush, for which no core works."""
    spread: float
    log_bytes: float
    """Per order."""
    measured_rate: float
    """Orders per second that were measured: the model is compared with it, and does not see it."""


def times_of(report: str, rows: int) -> Times:
    """Return the service times of a batch size, keys compared, from the report of a benchmark.

    Raises:
        ValueError: the report has no such line.
    """
    engine, bare = _row(report, f"engine {rows}"), _row(report, f"bare pages {rows}")
    commit = _row(report, "one commit after the other")
    # On a full machine processes get what the bare pipe used: the kernel's work for disk and
    # network is in no process's CPU time, and stalls leave cores idle.
    batch = engine["CPU"] * rows / 1e6 * CORES / (bare["orders/s"] * bare["CPU"] / 1e6)
    share = engine["own share"]
    return Times(
        rows=rows,
        own=batch * share / 2,
        server=batch * (1 - share) / 2,
        flush=_row(report, FLUSH_ALONE)["p50"] / 1e3,
        spread=math.log(commit["p90"] / commit["p50"]) / NormalDist().inv_cdf(0.9),
        log_bytes=engine["log bytes"],
        measured_rate=engine["orders/s"],
    )


_NUMBER: Final = re.compile(r"[0-9.]+")


def _row(report: str, name: str) -> dict[str, float]:
    """Return the numbers of a row by the headers of its table."""
    headers: list[str] = []
    for line, following in pairwise(report.splitlines()):
        if following.startswith("|---"):
            headers = line.strip("|").split("|")
        if line.startswith(f"|{name}|"):
            cells = [cell.split(" ")[0].replace(",", "") for cell in line.split("|")[1:-1]]
            numbers = zip(headers[1:], cells[1:], strict=True)
            return {header: float(cell) for header, cell in numbers if _NUMBER.fullmatch(cell)}
    raise ValueError(f"the report has no row {name!r}")


# -- one machine -----------------------------------------------------------------------------------


def rate_of_one_machine(times: Times) -> float:
    """Return the orders per second end to end of the machine that the benchmark ran on."""
    world = World(times.spread)
    cores = Resource("cores", CORES)
    sequencer, lane, broker, receiver = map(Resource, ("sequencer", "lane", "broker", "receiver"))
    left = iter(range(BATCHES))

    def caller() -> Process:
        for _ in left:
            yield from world.hold((sequencer, cores), times.own)
            yield lane  # commits of a chain follow one another
            yield from world.hold((cores,), times.server)
            yield from world.hold((), times.flush)
            world.release(lane)
            world.start(delivery())

    def delivery() -> Process:
        yield from world.hold((broker, cores), times.server)
        yield from world.hold((receiver, cores), times.own)

    for _ in range(IN_FLIGHT):
        world.start(caller())
    world.run()
    return BATCHES * times.rows / world.now


# -- a fleet ---------------------------------------------------------------------------------------


class Fleet(msgspec.Struct, frozen=True):
    """The number of machines, chains and receivers. Each machine has two cores, each chain a
    receiver."""

    chains: int = 1
    sequencers: int = 1
    databases: int = 1
    brokers: int = REPLICAS
    receivers: int = 1


class Day(msgspec.Struct, frozen=True):
    """The result of a simulated peak."""

    busy: dict[str, float]
    """The busiest of each kind, as a share of its time."""
    p99_ms: float
    """From when a batch is due until it is handed on."""


def peak_of(times: Times, fleet: Fleet, orders_per_second: float) -> Day:
    """Simulate a peak: batches that are due at random times, of every chain."""
    world = World(times.spread)
    dues = random.Random(SEED)
    machines = {
        kind: [Resource(kind, CORES) for _ in range(getattr(fleet, kind))]
        for kind in ("sequencers", "databases", "brokers", "receivers")
    }
    processes = [[Resource("chains") for _ in range(3)] for _ in range(fleet.chains)]
    latencies: list[float] = []

    def at(kind: str, chain: int) -> Resource:
        return machines[kind][chain % len(machines[kind])]

    def batch(chain: int) -> Process:
        due = world.now
        sequencer, lane, receiver = processes[chain]
        yield from world.hold((sequencer, at("sequencers", chain)), times.own)
        yield lane
        begun = world.now
        yield from world.hold((at("databases", chain),), times.server)
        yield from world.hold((), times.flush + TRIP_SECONDS)  # the standby's flush is one, too
        yield from world.hold((), times.flush + TRIP_SECONDS)
        lane.used_seconds += world.now - begun
        world.release(lane)
        for replica in range(REPLICAS):
            yield from world.hold((at("brokers", chain + replica),), times.server)
        yield from world.hold((), 2 * TRIP_SECONDS)
        yield from world.hold((receiver, at("receivers", chain)), times.own)
        latencies.append(world.now - due)

    due = 0.0
    for number in range(BATCHES):
        due += dues.expovariate(orders_per_second / times.rows)
        world.start(batch(number % fleet.chains), due)
    world.run()
    every = [each for group in (*processes, *machines.values()) for each in group]
    busy: dict[str, float] = {}
    for each in every:
        share = each.used_seconds / each.capacity / world.now
        busy[each.name] = max(busy.get(each.name, 0.0), share)
    return Day(busy, sorted(latencies)[len(latencies) * 99 // 100] * 1e3)


def fleet_for(times: Times, orders_per_second: float) -> tuple[Fleet, Day, Day]:
    """Grow the busiest kind until none is above one half; return also the first and last peak."""
    fleet = Fleet()
    first = last = peak_of(times, fleet, orders_per_second)
    while (share := max(last.busy.values())) > BUSY_MAX:
        kind = max(last.busy, key=lambda name: last.busy[name])
        grown = max(getattr(fleet, kind) + 1, math.floor(getattr(fleet, kind) * share / BUSY_MAX))
        fleet = msgspec.structs.replace(fleet, **{kind: grown})
        last = peak_of(times, fleet, orders_per_second)
    return fleet, first, last


# -- the page --------------------------------------------------------------------------------------


def _checks(report: str) -> Iterator[Sequence[str]]:
    for rows in BATCH_ROWS:
        times = times_of(report, rows)
        rate = rate_of_one_machine(times)
        off = rate / times.measured_rate - 1
        yield f"{rows:,}", f"{times.measured_rate:,.0f}", f"{rate:,.0f}", f"{off:+.0%}"


def _column(report: str, power: int, rows: int) -> dict[str, str]:
    times = times_of(report, rows)
    rate = 10**power / 86_400 * PEAK
    fleet, first, last = fleet_for(times, rate)
    busiest = sorted(first.busy.items(), key=lambda each: -each[1])[:2]
    seconds = _row(report, "two executors, 10^8 rows")["check, s"]
    executors = math.ceil(10**power / 1e8 * seconds * 2 / 3_600)
    return {
        "orders/s at ten times the mean; batches of": f"{rate:,.0f}; {rows:,}",
        "chains": str(fleet.chains),
        "sequencers, databases, brokers, receivers": ", ".join(
            str(getattr(fleet, kind)) for kind in Fleet.__struct_fields__[1:]
        ),
        "executors, to check a day in an hour": str(executors),
        "log of all databases": f"{rate * times.log_bytes / 1e6:.0f} MB/s",
        "breaks first, with one of each": ", ".join(
            f"{kind} {share:.0%}" for kind, share in busiest
        ),
        "handed on after, p99": f"{last.p99_ms:.0f} ms",
    }


def with_tables(page: str, report: str) -> str:
    """Return the page with both tables between its marks."""
    checks = table(("batch", "measured, orders/s", "model", "off by"), _checks(report))
    asked = ("a day", *(f"10^{power}" for power, _ in ASKED))
    columns = [_column(report, *each) for each in ASKED]
    fleets = ((name, *(column[name] for column in columns)) for name in columns[0])
    return with_lines(page, BEGIN, END, [*checks, "", *table(asked, fleets)])


def off_by(report: str) -> float:
    """Return the largest error of the model on this machine."""
    every = [times_of(report, rows) for rows in BATCH_ROWS]
    return max(abs(rate_of_one_machine(times) / times.measured_rate - 1) for times in every)


def main() -> int:
    """Write the page, unless the model is off."""
    report = (RESULTS / "table.md").read_text(encoding="utf-8")
    if (off := off_by(report)) > ERROR_MAX:
        print(
            f"capacity: the model is off by {off:.0%}, more than {ERROR_MAX:.0%}", file=sys.stderr
        )
        return 1
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), report), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
