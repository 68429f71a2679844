"""The questions by name, in the order in which they are asked, and their arms.

Two that need more than a load, `open_load` and the programs of their own, have their files.
"""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from benchmarks import open_load
from benchmarks.chains import Site, address_of, connected, empty_chain, make_chain
from benchmarks.load import RUN_SECONDS, Arm, Figures, Line, Load, Question, Scope, load_arm
from benchmarks.processes import End, RunFailed
from benchmarks.programs import PROGRAMS
from benchmarks.rivals.engine import OpenSink, sequencer_of, submit_all
from benchmarks.running import run_arm, run_load

if TYPE_CHECKING:
    from collections.abc import Sequence


# -- comparison: how near is the engine to the physical limit, and to the alternatives? ------------

BATCH_ROWS: Final = (100, 1_000, 5_000)
LARGER_PAYLOADS: Final = {256: 100_000, 1_024: 50_000}
"""Payloads other than the 64 bytes of all other runs, with the orders of a run."""
COMMON_ROWS: Final = 500
LEFT_OUT_OF_QUICK: Final = ("bare_pipe 5000", f"bare_pages {COMMON_ROWS}")
"""Left out, as are batches of 100: three minutes are not enough for every ceiling."""
BARE: Final = ("bare_pages", "bare_pipe")
FAST: Final = (*BARE, "engine", "kafka_transactions_events", "kafka_transactions_frames")


def _comparison(scope: Scope) -> list[Arm]:
    """Return every rival at its sizes, the engine and what it is compared with side by side."""
    found = [load_arm(scope, rival, rows) for rows in BATCH_ROWS for rival in FAST]
    common = ("bare_pages", "engine", "common_way")
    found += [load_arm(scope, rival, COMMON_ROWS) for rival in common]
    found += [
        load_arm(scope, rival, 1_000, name=f"{rival} 1000 persisting", stage="persist")
        for rival in ("engine", "event_sourcing")
    ]
    found += [load_arm(scope, rival, 1_000) for rival in ("event_sourcing", "nats_jetstream")]
    found += [
        load_arm(scope, "engine", rows, name=f"engine {rows} with keys", with_keys=True)
        for rows in BATCH_ROWS
    ]
    if scope.is_quick:
        return [arm for arm in found if _is_quick(arm.name)]
    return found + [
        load_arm(
            scope, rival, 1_000, name=f"{rival} 1000 of {size} bytes",
            payload_bytes=size, orders=orders,
        )
        for size, orders in LARGER_PAYLOADS.items()
        for rival in (*FAST, "common_way", "event_sourcing")
    ]  # fmt: skip


def _is_quick(arm: str) -> bool:
    return arm not in LEFT_OUT_OF_QUICK and (" 100" not in arm or " 1000" in arm)


# -- batch_size: how does the size of a batch affect the rate of each stage? -----------------------

STAGES: Final = {"persist": "persisted", "publish": "published", "deliver": "delivered"}
"""How far a run goes, and the figure of its rate."""
_STAGE_REPEATS_MAX: Final = 3
"""The shape of a curve needs fewer repeats than the ratios of `comparison`, which has its ends."""


def _batch_size(scope: Scope) -> list[Arm]:
    found = [
        load_arm(scope, rival, rows, name=f"{rival} {rows} {stage}", stage=stage)
        for rows in ((100, 5_000) if scope.is_quick else (1, 10, *BATCH_ROWS))
        for stage in (("deliver",) if scope.is_quick else STAGES)
        for rival in (("engine",) if scope.is_quick else (*BARE, "engine"))
    ]
    return [replace(arm, repeats_max=_STAGE_REPEATS_MAX) for arm in found]


# -- switches: what do comparing keys and sealing cost? --------------------------------------------

_SWITCHES: Final = {
    "neither": {"with_keys": False, "with_seal": False},
    "seal": {"with_keys": False, "with_seal": True},
    "keys": {"with_keys": True, "with_seal": False},
    "keys and seal": {"with_keys": True, "with_seal": True},
}


def _switches(scope: Scope) -> list[Arm]:
    return [
        load_arm(scope, "engine", 1_000, name=f"{name}, {stage}", stage=stage, **switches)
        for stage in (("deliver",) if scope.is_quick else ("persist", "deliver"))
        for name, switches in _SWITCHES.items()
    ]


# -- cpu: how many CPU seconds do a million orders cost, and whose are they? -----------------------


def _cpu(scope: Scope) -> list[Arm]:
    return [
        load_arm(scope, rival, rows, orders=2 * scope.orders(rows))
        for rows in BATCH_ROWS
        for rival in (*BARE, "engine")
    ]


# -- checkpoint: what is left of the rate when PostgreSQL's checkpoints come along? ----------------

_LONG_ORDERS: Final = 6_000_000
"""20 s and more of the fastest rival; both ends hold them in memory, some 2 GB."""
_LEAD_SECONDS: Final = 3.0
"""How long before a checkpoint a run begins."""
_PROOF_SECONDS: Final = 40.0
_WAIT_SECONDS: Final = 45.0
"""Wait for a checkpoint to pass, so that the time of the next is known: at most twice theirs."""
_LOOK_SECONDS: Final = 0.1
LONG_REPEATS_MAX: Final = 3

_INTERVAL: Final = "SELECT setting::float8 FROM pg_settings WHERE name = 'checkpoint_timeout'"
_BEGUN: Final = "SELECT num_timed FROM pg_stat_checkpointer"


def _checkpoint(scope: Scope) -> list[Arm]:
    rivals = ("bare_pages", "engine")
    short = [load_arm(scope, rival, 1_000, name=f"{rival}, short") for rival in rivals]
    return short + [
        replace(
            arm, seconds=arm.seconds + _PROOF_SECONDS + _WAIT_SECONDS, repeats_max=LONG_REPEATS_MAX
        )
        for rival in rivals
        for arm in [load_arm(scope, rival, 1_000, name=f"{rival}, long", orders=_LONG_ORDERS)]
    ]


async def _run_checkpoint(site: Site, arm: Arm, earlier: Sequence[Line]) -> Figures:
    """Run the load; a long run without a checkpoint has failed."""
    if arm.load is None or not arm.name.endswith("long"):
        return await run_arm(site, arm, earlier)
    figures = await run_load(site, arm.load, before=partial(_until_checkpoint_is_due, site))
    if not figures["checkpoints"]:
        raise RunFailed("no checkpoint came along")
    return {**figures}


async def _until_checkpoint_is_due(site: Site) -> None:
    """Return `_LEAD_SECONDS` before PostgreSQL's next checkpoint by time.

    They come `checkpoint_timeout` after the last one began, whether there was one to write or not.
    """
    async with connected(site.admin) as connection:
        interval_seconds = await connection.fetchval(_INTERVAL)
        async with asyncio.timeout(3 * interval_seconds):
            seen = await connection.fetchval(_BEGUN)
            while await connection.fetchval(_BEGUN) == seen:  # noqa: ASYNC110 - only this shows it
                await asyncio.sleep(_LOOK_SECONDS)
    await asyncio.sleep(interval_seconds - _LEAD_SECONDS)


# -- scale: does a long chain cost more than a short one? ------------------------------------------

LENGTHS: Final = (100_000, 1_000_000, 10_000_000)
_HUGE: Final = 100_000_000
_GROWN_PER_SECOND: Final = 70_000
_PROVEN_PER_SECOND: Final = 250_000


def _scale(scope: Scope) -> list[Arm]:
    lengths = (*LENGTHS, _HUGE) if scope.is_huge else LENGTHS
    return [_scale_arm(scope, rows) for rows in (lengths[:1] if scope.is_quick else lengths)]


def _scale_arm(scope: Scope, rows: int) -> Arm:
    arm = load_arm(scope, "engine", 1_000, name=f"{rows} rows", grow_orders=rows)
    orders = arm.load.all_orders if arm.load else 0
    seconds = RUN_SECONDS + orders * (1 / _GROWN_PER_SECOND + 1 / _PROVEN_PER_SECOND)
    return replace(arm, seconds=seconds, repeats_max=1 if rows == _HUGE else arm.repeats_max)


# -- verifier: how long does `chainctl verify` take, as an auditor calls it? -----------------------

_VERIFIED_PER_SECOND: Final = 60_000
_SPARK_SECONDS: Final = 15.0
_VERIFY_SECONDS_MAX: Final = 900.0
_BATCHES_AT_ONCE: Final = 4


def _verifier(scope: Scope) -> list[Arm]:
    return [
        Arm(
            name=f"{rows} rows",
            settings={"rows": rows},
            seconds=_SPARK_SECONDS + rows / _VERIFIED_PER_SECOND,
            repeats_max=LONG_REPEATS_MAX,
        )
        for rows in (LENGTHS[:1] if scope.is_quick else LENGTHS)
    ]


async def _run_verifier(site: Site, arm: Arm, earlier: Sequence[Line]) -> Figures:
    """Fill a chain, and verify it. Raises RunFailed unless the verdict is clean."""
    rows = int(arm.settings["rows"])
    chain_id = await make_chain(site)
    try:
        await _fill(site, chain_id, rows)
        began = time.perf_counter()
        report = await _verify(site, chain_id)
        seconds = time.perf_counter() - began
    finally:
        await empty_chain(site, chain_id)
    return {"rows": rows, "verify_seconds": seconds, "rows_per_second": rows / seconds, **report}


async def _fill(site: Site, chain_id: int, rows: int) -> None:
    load = Load(rival="engine", orders=rows, batch_rows=5_000)
    batches = load.batches(rows)
    async with sequencer_of(site, chain_id, load, sink=OpenSink()) as sequencer:
        while some := list(islice(batches, _BATCHES_AT_ONCE)):
            await submit_all(sequencer, some)


async def _verify(site: Site, chain_id: int) -> dict[str, float]:
    """Run the command; return the seconds that it reports of itself, if it does."""
    command = End(
        *(sys.executable, "-m", "chainctl", "verify", "--json"),
        *("--chain", str(chain_id), "--source", "database"),
        name="verify",
        environment={
            "CHAINCTL_DATABASE": address_of(site.admin),
            "CHAINCTL_AUDIT_DATABASE": address_of(site.auditor),
        },
    )
    async with asyncio.timeout(_VERIFY_SECONDS_MAX), command:
        report = msgspec.json.decode(await command.rest())
        if code := await command.process.wait():
            raise RunFailed(f"verify ended with {code}: {report['verdict']}")
    seconds = report.get("seconds")
    return {"scan_seconds": float(seconds)} if seconds is not None else {}


# -- all of them -----------------------------------------------------------------------------------

QUESTIONS: Final = {
    "comparison": Question(
        "The engine against the limit, and against what a user would pick instead",
        _comparison,
        run_arm,
    ),
    "batch_size": Question(
        "Batch size against the rate of persisting, publishing, and end to end",
        _batch_size,
        run_arm,
    ),
    "switches": Question("Keys and seal, switched on and off", _switches, run_arm),
    "cpu": Question("CPU seconds per million orders, by process", _cpu, run_arm),
    "open_load": Question("Latency under open load", open_load.arms, open_load.run),
    "checkpoint": Question("A run that sees checkpoints", _checkpoint, _run_checkpoint),
    "scale": Question("Rate and memory from 10^5 rows to 10^7", _scale, run_arm),
    "verifier": Question("The verifier", _verifier, _run_verifier),
}
NAMES: Final = tuple(QUESTIONS)

QUICK: Final = ("comparison", "batch_size", "switches", "open_load")
"""Those that a quick run asks."""


def known_names() -> tuple[str, ...]:
    """Return the names of all questions, those of programs of their own among them."""
    return (*NAMES, *PROGRAMS)


def question_of(name: str) -> Question:
    """Return the question `name`."""
    return QUESTIONS[name]
