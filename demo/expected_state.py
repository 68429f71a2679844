"""The same orders applied straight from the input: the state the matching service must reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from demo.handlers import HANDLERS, Handler, handler_kind
from sequencer.intake.file import FileIntake, FileOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sequencer.intake.file import Portion


PORTION_ROWS: Final = 5_000
"""Rows read at once. It bounds the memory, and the reaction time to Ctrl-C."""


class Straight(Struct, frozen=True, kw_only=True):
    """An input as read, and what a handler made of it."""

    rows: int
    last_key: str
    handler: str
    """Which of `HANDLERS` the columns asked for."""
    counters: dict[str, int]
    digest: str


def apply_straight(path: Path, on_rows: Callable[[int], None]) -> Straight:
    """Apply the rows of `path`, without database, broker or receiver in between.

    After each portion, `on_rows` gets the number of rows done; what it raises ends the work.
    Raises InputError, which names the line, for a file that cannot be read to its end.
    """
    handler: Handler | None = None
    kind, rows, last_key = "", 0, ""
    with FileIntake(path, FileOptions()) as intake:
        for portion in _portions(intake):
            if handler is None:
                kind = handler_kind(msgspec.msgpack.decode(portion.orders[0].payload))
                handler = HANDLERS[kind]()
            handler.apply(order.payload for order in portion.orders)
            rows, last_key = portion.mark.position, portion.orders[-1].key
            on_rows(rows)
    if handler is None:
        raise ValueError("an intake without rows refuses them")
    return Straight(
        rows=rows,
        last_key=last_key,
        handler=kind,
        counters=handler.counters(),
        digest=handler.digest(),
    )


def _portions(intake: FileIntake) -> Iterator[Portion]:
    while (portion := intake.read(PORTION_ROWS)) is not None:
        yield portion
