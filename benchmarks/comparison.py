"""How near to the physical limit is the engine, and how does it compare with the alternatives?

The same orders, durable, in order, each acknowledged by all, through every rival in turn. The whole
matrix of payloads is run at a batch of 1,000 only.
"""

from __future__ import annotations

from benchmarks.question import Arm, Scope, load_arm
from benchmarks.running import run_arm

TITLE = "The engine against the limit, and against what a user would pick instead"

BATCH_ROWS = (100, 1_000, 5_000)
LARGER_PAYLOADS = {256: 100_000, 1_024: 50_000}
"""Payloads other than the 64 bytes of all other runs, with the orders of a run."""
COMMON_ROWS = 500
LEFT_OUT_OF_QUICK = ("bare_pipe 5000", f"bare_pages {COMMON_ROWS}")
"""Left out, as are batches of 100: three minutes are not enough for every ceiling."""
FAST = (
    "bare_pages", "bare_pipe", "engine", "kafka_transactions_events", "kafka_transactions_frames",
)  # fmt: skip


def arms(scope: Scope) -> list[Arm]:
    """Return every rival at its sizes, the engine and what it is compared with side by side."""
    found = [load_arm(scope, rival, rows) for rows in BATCH_ROWS for rival in FAST]
    found += [
        load_arm(scope, rival, COMMON_ROWS) for rival in ("bare_pages", "engine", "common_way")
    ]
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
        return [
            arm
            for arm in found
            if arm.name not in LEFT_OUT_OF_QUICK and (" 100" not in arm.name or " 1000" in arm.name)
        ]
    return found + [
        load_arm(
            scope,
            rival,
            1_000,
            name=f"{rival} 1000 of {payload_bytes} bytes",
            payload_bytes=payload_bytes,
            orders=orders,
        )
        for payload_bytes, orders in LARGER_PAYLOADS.items()
        for rival in (*FAST, "common_way", "event_sourcing")
    ]


run = run_arm
