"""Puts the table of the kept results into README.md, between two marks.

python -m benchmarks.readme
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.host import RESULTS
from benchmarks.questions import COMMON_ROWS
from benchmarks.rivals import rival_of
from benchmarks.session import read_lines
from benchmarks.spreads import Lines, cell

if TYPE_CHECKING:
    from collections.abc import Iterator

README = Path(__file__).parent.parent / "README.md"
BEGIN = "<!-- benchmark: written by `python -m benchmarks.readme` -->"
END = "<!-- benchmark: end -->"

_ROWS = (100, 1_000, 5_000)
_RATE = "delivered_per_second"
_SHOWN = (
    "bare_pages", "bare_pipe", "engine", "kafka_transactions_events",
    "kafka_transactions_frames", "event_sourcing", "nats_jetstream", "common_way",
)  # fmt: skip


def table(lines: Lines) -> Iterator[str]:
    """Yield the rows of the table: rivals down, batch sizes across, orders per second."""
    yield "| orders/s, median (lowest to highest) | batch 100 | 1,000 | 5,000 |"
    yield "|---|---|---|---|"
    for name in _SHOWN:
        sizes = [f"{name} {rows}" for rows in _ROWS]
        if name == "common_way":
            sizes[1] = f"{name} {COMMON_ROWS}"
        cells = [cell(lines.spread(arm, _RATE)) for arm in sizes]
        if any(text != "-" for text in cells):
            title = rival_of(name).title
            shown = f"**{title}**" if name == "engine" else title
            note = f" (at {COMMON_ROWS})" if name == "common_way" else ""
            yield f"| {shown}{note} | {' | '.join(cells)} |"


def with_table(text: str, lines: Lines) -> str:
    """Return `text` with the table between its marks. Raises ValueError without them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{README.name} has no line {BEGIN!r} with {END!r} behind it")
    return "\n".join([before + BEGIN, *table(lines), END]) + after


def main() -> None:
    """Write README.md."""
    lines = Lines(read_lines(RESULTS / "comparison.jsonl"))
    README.write_text(with_table(README.read_text(encoding="utf-8"), lines), encoding="utf-8")


if __name__ == "__main__":
    main()
