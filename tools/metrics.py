"""Writes the table of metrics into `docs/operations.md`: `python -m tools.metrics`.

It has their names: what each counts, and its unit, is the HELP that `/metrics` gives with it.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_kernel.monitoring import Metric

PAGE: Final = Path(__file__).parents[1] / "docs" / "operations.md"
BEGIN: Final = "<!-- metrics -->\n\n"
END: Final = "\n<!-- end -->"
EXPORTED: Final = (
    ("sequencer.stats", "METRICS"),
    ("sequencer.intake.topic", "METRICS"),
    ("matcher_receiver.stats", "METRICS"),
    ("chainctl.commands.verifier.seal", "METRICS"),
    ("outbox.sender.config", "METRICS"),
    ("outbox.acts", "METRICS"),
    ("outbox.consumer.config", "METRICS"),
    ("outbox.callback.callback_service", "METRICS"),
)
"""The place in which each part declares what it exports."""


def row_of(metrics: Sequence[Metric[object]]) -> str:
    """Return the row of one part: what its names begin with, and their ends."""
    names = [metric.name for metric in metrics]
    shared = names[0]
    while not all(name.startswith(shared) for name in names):
        shared = shared[:-1]
    shared = shared[: shared.rindex("_") + 1]
    ends = ", ".join(name.removeprefix(shared) for name in names)
    return f"| {shared.removeprefix('orderchain_').rstrip('_')} | {ends} |\n"


def with_table(page: str) -> str:
    """Return the text of the page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    rows = [row_of(getattr(import_module(module), name)) for module, name in EXPORTED]
    head = "| `orderchain`, and | and |\n|---|---|\n"
    return before + BEGIN + head + "".join(rows) + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
