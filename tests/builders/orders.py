"""Makes orders."""

from hashlib import shake_128
from pathlib import Path

from sequencer.order import Order


def make_orders(count: int, *, prefix: str = "k", start: int = 0, size: int = 20) -> list[Order]:
    """Return orders with keys of `prefix` and a number, whose payloads do not compress.

    A key always has the same payload of `size`, so that it may be submitted twice.
    """
    keys = [f"{prefix}{number}" for number in range(start, start + count)]
    return [Order(key, shake_128(key.encode()).digest(size)) for key in keys]


def order_file(path: Path, rows: int) -> Path:
    """Write a CSV of so many orders, numbered from 1 in its one column; returns its path."""
    path.write_text("n\n" + "".join(f"{number}\n" for number in range(1, rows + 1)))
    return path
