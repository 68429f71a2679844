"""Numbers of things, as people read them."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return `1 row` or `2,500 rows`; `plural` where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
