"""Numbers of things, as people read them."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return `1 row`, `2,500 rows` or `2 batches`; `plural` where it is not made so."""
    regular = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural or regular}"
