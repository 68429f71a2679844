"""What do comparing keys and sealing cost?

Keys are compared or not by `key_window_rows`. Sealing cannot be switched off: here every seal is
replaced by the one before it, and such a chain is proven by its links and its content alone.
"""

from __future__ import annotations

from benchmarks.question import Arm, Scope, load_arm
from benchmarks.running import run_arm

TITLE = "Keys and seal, switched on and off"

SWITCHES = {
    "neither": {"with_keys": False, "with_seal": False},
    "seal": {"with_keys": False, "with_seal": True},
    "keys": {"with_keys": True, "with_seal": False},
    "keys and seal": {"with_keys": True, "with_seal": True},
}


def arms(scope: Scope) -> list[Arm]:
    """Return the four combinations, persisting and end to end, at a batch of 1,000."""
    stages = ("deliver",) if scope.is_quick else ("persist", "deliver")
    return [
        load_arm(scope, "engine", 1_000, name=f"{name}, {stage}", stage=stage, **switches)
        for stage in stages
        for name, switches in SWITCHES.items()
    ]


run = run_arm
