"""Prices and quantities as they stand in an input: text."""

from __future__ import annotations

from chainctl.demo.book import AMOUNT_MAX


def amount_of(text: str) -> int:
    """Return the whole number above 0 that `text` is; 0 when it is none, or too large."""
    try:
        value = int(text)
    except ValueError:
        return 0
    return value if 0 < value <= AMOUNT_MAX else 0
