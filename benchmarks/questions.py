"""The questions by name, in the order in which they are asked, and their arms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from benchmarks.load import (
    Arm,
    Figures,
    KeyKind,
    Line,
    Load,
    Question,
    Scope,
    load_arm,
)
from benchmarks.runs import fill, open_load, outbox
from benchmarks.runs.loads import run_arm, run_load
from benchmarks.runs.open_load import IN_PYTHON
from chain_kernel.speed import implementation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site

__all__ = ["Load", "Scope", "question_of", "run_load"]
"""Names that `two_checkouts` imports from here, in every version."""

# -- comparison: how near is the engine to the physical limit, and to the alternatives? ------------

BATCH_ROWS: Final = (100, 1_000, 5_000)
LARGER_BYTES: Final = 1_024
"""A payload other than the 64 bytes of most runs."""
_LARGER_ORDERS: Final = 50_000
COMMON_ROWS: Final = 500
NOT_COMPARED: Final = "keys not compared"
KINDS: Final[dict[str, dict[str, Any]]] = {
    "": {},
    NOT_COMPARED: {"key_window_rows": 0},
    IN_PYTHON: {"implementation": "python"},
    f"{IN_PYTHON}, {NOT_COMPARED}": {"implementation": "python", "key_window_rows": 0},
}
"""The engine's rows; the first has its defaults."""
LEFT_OUT_OF_QUICK: Final = ("bare_pipe 5000", f"bare_pages {COMMON_ROWS}")
"""Left out, as are batches of 100: a few minutes are not enough for every ceiling."""
BARE: Final = ("bare_pages", "bare_pipe")
FAST: Final = (
    *BARE,
    "engine",
    "engine_no_broker",
    "kafka_transactions_events",
    "kafka_transactions_frames",
)
_GOALS: Final = ("bare_pages", "engine", "engine_no_broker", "kafka_transactions_frames")
"""Rivals that are compared closely enough for every repeat; the distance to others is a factor."""
_FAR: Final[dict[str, Any]] = {"repeats_max": 2}


def kinds(*, is_quick: bool = False) -> list[str]:
    """Return the engine's rows that differ here: without the compiled module, all is Python."""
    both = implementation() == "native" and not is_quick
    return [kind for kind in KINDS if both or IN_PYTHON not in kind]


def _comparison(scope: Scope) -> list[Arm]:
    """Return every rival at its sizes, the engine and what it is compared with side by side."""
    found = []
    for rows in BATCH_ROWS:
        found += [
            load_arm(scope, rival, rows, **({} if rival in _GOALS else _FAR)) for rival in FAST
        ]
        found += [
            load_arm(scope, "engine", rows, name=f"engine {rows} {kind}", **KINDS[kind])
            for kind in kinds(is_quick=scope.is_quick)
            if kind
        ]
    common = ("bare_pages", "engine", "common_way")
    found += [load_arm(scope, rival, COMMON_ROWS, **_FAR) for rival in common]
    found += [
        load_arm(scope, rival, 1_000, name=f"{rival} 1000 persisting", stage="persist", **_FAR)
        for rival in ("engine", "event_sourcing")
    ]
    found.append(load_arm(scope, "event_sourcing", 1_000, **_FAR))
    if scope.is_quick:
        return [
            arm
            for arm in found
            if arm.name not in LEFT_OUT_OF_QUICK and (" 100" not in arm.name or " 1000" in arm.name)
        ]
    larger = {"payload_bytes": LARGER_BYTES, "orders": _LARGER_ORDERS}
    of_size = f"1000 of {LARGER_BYTES} bytes"
    found += [
        load_arm(scope, rival, 1_000, name=f"{rival} {of_size}", **larger) for rival in _GOALS
    ]
    if IN_PYTHON in kinds():
        name = f"engine {of_size} {IN_PYTHON}"
        found.append(load_arm(scope, "engine", 1_000, name=name, **larger, **KINDS[IN_PYTHON]))
    return found


# -- batch_size: how does the size of a batch affect the rate of each stage? -----------------------

STAGES: Final = {"persist": "persisted", "publish": "published", "deliver": "delivered"}
"""The ends of a run, and the figure of each rate."""
_STAGE_REPEATS_MAX: Final = 1
"""The shape of a curve needs fewer repeats than the ratios of `comparison`, which has its ends."""
_STAGED: Final = ("bare_pages", "engine")


def _batch_size(scope: Scope) -> list[Arm]:
    found = [
        load_arm(scope, rival, rows, name=f"{rival} {rows} {stage}", stage=stage)
        for rows in ((100, 5_000) if scope.is_quick else (1, 10, *BATCH_ROWS))
        for stage in (("deliver",) if scope.is_quick else STAGES)
        for rival in (("engine",) if scope.is_quick else _STAGED)
    ]
    return [replace(arm, repeats_max=_STAGE_REPEATS_MAX) for arm in found]


# -- scale: does a long chain cost more than a short one? ------------------------------------------

LENGTHS: Final = (100_000, 1_000_000, 10_000_000)
_SCALE_REPEATS_MAX: Final = 2
"""To grow a chain takes minutes."""


def _scale(scope: Scope) -> list[Arm]:
    return [
        load_arm(
            scope, "engine", 1_000, name=f"{rows} rows", grow_orders=rows,
            repeats_max=_SCALE_REPEATS_MAX,
        )
        for rows in LENGTHS
    ]  # fmt: skip


# -- keys: what do keys cost the sequencer, by their kind and with many of them present? -----------

KEYS_OFF: Final = "keys off"
_PRESENT: Final = 3_000_000
_ALL_PRESENT_ROWS: Final = 10**7
"""The window: all keys of a run are in it."""
_KEYS_REPEATS_MAX: Final = 2


def _keys(scope: Scope) -> list[Arm]:
    kinds: dict[str, tuple[KeyKind, int, int]] = {
        KEYS_OFF: ("client", 0, 0),
        "client#number": ("client", _ALL_PRESENT_ROWS, 0),
        "time-ordered": ("time", _ALL_PRESENT_ROWS, 0),
        f"random, {_PRESENT:,} present": ("random", _ALL_PRESENT_ROWS, _PRESENT),
    }
    return [
        load_arm(
            scope, "engine", 1_000, name=name, stage="publish", payload_bytes=100,
            key_kind=kind, key_window_rows=window, grow_orders=before,
            repeats_max=_KEYS_REPEATS_MAX,
        )
        for name, (kind, window, before) in kinds.items()
    ]  # fmt: skip


# -- spark: what does the verifier's check cost beside a scan, and does its memory stay? -----------

_SPARK_REPEATS_MAX: Final = 2
_SPARK_ONCE: Final = ("wide", "executors", "replay")


def _spark(_: Scope) -> list[Arm]:
    arms = {
        "Parquet, rows without payloads": ("parquet", 50_000_000),
        "Parquet, keys and payloads": ("wide", 5_000_000),
        "two executors, 10^7 rows": ("executors", 10_000_000),
        "two executors, 10^8 rows": ("executors", 100_000_000),
        "database": ("database", 10_000_000),
        "replay into 1,000 books": ("replay", 10_000_000),
        "1,000 chains of 10^4 rows": ("chains", 10_000),
    }
    return [
        Arm(
            name=name,
            settings={"way": way, "rows": rows},
            repeats_max=1 if way in _SPARK_ONCE else _SPARK_REPEATS_MAX,
        )
        for name, (way, rows) in arms.items()
    ]


async def _run_spark(site: Site, arm: Arm, earlier: Sequence[Line]) -> Figures:
    from benchmarks.runs import spark  # Spark is imported for its own question only

    return await spark.run(site, arm)


# -- all of them -----------------------------------------------------------------------------------

QUESTIONS: Final = {
    "comparison": Question(
        "The engine against the limit, and against what a user would pick instead",
        14,
        _comparison,
        run_arm,
    ),
    "batch_size": Question(
        "Batch size against the rate of persisting, publishing, and end to end",
        4,
        _batch_size,
        run_arm,
    ),
    "open_load": Question(
        "Latency under open load, at fixed rates and near the maximum",
        16,
        open_load.arms,
        open_load.run,
    ),
    "scale": Question("Rate and memory from 10^5 rows to 10^7", 8, _scale, run_arm),
    "fill": Question("Gap fill by the size of the gap and of the table", 3, fill.arms, fill.run),
    "keys": Question("What keys cost, by their kind", 3, _keys, run_arm),
    "outbox": Question(
        "The outbox: full cycles, and from a commit to the handler",
        3,
        outbox.arms,
        outbox.run,
    ),
    "spark": Question("The verifier's check in Spark", 6, _spark, _run_spark),
}
NAMES: Final = tuple(QUESTIONS)

QUICK: Final = ("comparison", "batch_size", "open_load")
"""Those that a quick run asks."""


def question_of(name: str) -> Question:
    """Return the question `name`."""
    return QUESTIONS[name]
