"""The input of a demo: generated or given, and read once from end to end before anything else."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from demo.expected_state import Straight, apply_straight
from demo.order_flow import write_order_flow
from orderchain.errors import OrderchainError
from sequencer.intake.file import FileIntake, FileOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from demo.options import DemoOptions


FLOW_NAME: Final = "orders.csv"


class Prepared(Struct, frozen=True, kw_only=True):
    """An input that can be read to its end."""

    path: Path
    straight: Straight
    """What its orders come to when they are applied straight."""


class _Stopped(OrderchainError):
    """The demo ends before the input was read."""


def check_input(path: Path) -> None:
    """Read the first row of `path`. Raises InputError: most wrong files show at once."""
    with FileIntake(path, FileOptions()) as intake:
        intake.read(1)


@contextmanager
def preparing(options: DemoOptions, folder: Path) -> Iterator[Future[Prepared]]:
    """Generate and read the input in the background, while the block does something else.

    The future raises InputError, which names the line, when a row cannot be read. Leaving the block
    ends the work, if it is still under way.
    """
    stopped = threading.Event()

    def on_rows(_: int) -> None:
        if stopped.is_set():
            raise _Stopped("stopped")

    with ThreadPoolExecutor(1, thread_name_prefix="demo-input") as executor:
        try:
            yield executor.submit(_prepare, options, folder, on_rows)
        finally:
            stopped.set()


def _prepare(options: DemoOptions, folder: Path, on_rows: Callable[[int], None]) -> Prepared:
    path = options.input
    if path is None:
        path = folder / FLOW_NAME
        with path.open("w", encoding="utf-8", newline="") as file:
            write_order_flow(file, options.seed, options.orders, on_rows)
    path = path.absolute()
    return Prepared(path=path, straight=apply_straight(path, on_rows))
