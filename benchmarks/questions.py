"""The questions by name, in the order in which they are asked, and their arms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from benchmarks import fill, open_load, outbox
from benchmarks.load import (
    KEY_WINDOW_ROWS,
    RUN_SECONDS,
    Arm,
    Figures,
    KeyKind,
    Line,
    Load,
    Question,
    Scope,
    load_arm,
)
from benchmarks.running import run_arm, run_load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site

__all__ = ["Load", "Scope", "question_of", "run_load"]
"""What `two_checkouts` imports from here, in every version."""

# -- comparison: how near is the engine to the physical limit, and to the alternatives? ------------

BATCH_ROWS: Final = (100, 1_000, 5_000)
LARGER_PAYLOADS: Final = {256: 100_000, 1_024: 50_000}
"""Payloads other than the 64 bytes of most runs, with the orders of a run."""
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
    found.append(load_arm(scope, "event_sourcing", 1_000))
    found += [
        load_arm(
            scope, "engine", rows, name=f"engine {rows} with keys",
            key_window_rows=KEY_WINDOW_ROWS,
        )
        for rows in BATCH_ROWS
    ]  # fmt: skip
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


# -- keys: what do keys cost the sequencer, by their kind and with many of them present? -----------

KEYS_OFF: Final = "keys off"
_PRESENT: Final = 3_000_000
_ALL_PRESENT_ROWS: Final = 10**7
"""The window: all keys of a run are in it."""


def _keys(scope: Scope) -> list[Arm]:
    present = _PRESENT // 10 if scope.is_quick else _PRESENT
    kinds: dict[str, tuple[KeyKind, int, int]] = {
        KEYS_OFF: ("client", 0, 0),
        "client#number": ("client", _ALL_PRESENT_ROWS, 0),
        "time-ordered": ("time", _ALL_PRESENT_ROWS, 0),
        f"random, {present:,} present": ("random", _ALL_PRESENT_ROWS, present),
    }
    return [
        load_arm(
            scope, "engine", 1_000, name=name, stage="publish", payload_bytes=100,
            key_kind=kind, key_window_rows=window, grow_orders=before,
        )
        for name, (kind, window, before) in kinds.items()
    ]  # fmt: skip


# -- spark: what does the verifier's check cost beside a scan, and does its memory stay? -----------

_SPARK_REPEATS_MAX: Final = 3


def _spark(scope: Scope) -> list[Arm]:
    share = 10 if scope.is_quick else 1
    arms = {
        "Parquet, rows without payloads": ("parquet", 50_000_000, 90.0),
        "Parquet, keys and payloads": ("wide", 5_000_000, 40.0),
        "two executors, 10^7 rows": ("executors", 10_000_000, 35.0),
        "two executors, 10^8 rows": ("executors", 100_000_000, 50.0),
        "database": ("database", 10_000_000, 60.0),
    }
    return [
        Arm(
            name=name,
            settings={"way": way, "rows": rows // share},
            seconds=seconds,
            repeats_max=_SPARK_REPEATS_MAX,
        )
        for name, (way, rows, seconds) in arms.items()
    ]


async def _run_spark(site: Site, arm: Arm, earlier: Sequence[Line]) -> Figures:
    from benchmarks import spark  # Spark is imported for its own question only

    return await spark.run(site, arm)


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
    "open_load": Question("Latency under open load", open_load.arms, open_load.run),
    "scale": Question("Rate and memory from 10^5 rows to 10^7", _scale, run_arm),
    "fill": Question("Gap fill by the size of the gap and of the table", fill.arms, fill.run),
    "keys": Question("What keys cost, by their kind", _keys, run_arm),
    "outbox": Question(
        "The outbox: full cycles, and from a commit to the handler", outbox.arms, outbox.run
    ),
    "spark": Question("The verifier's check in Spark", _spark, _run_spark),
}
NAMES: Final = tuple(QUESTIONS)

QUICK: Final = ("comparison", "batch_size", "open_load")
"""Those that a quick run asks."""


def question_of(name: str) -> Question:
    """Return the question `name`."""
    return QUESTIONS[name]
