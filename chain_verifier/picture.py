"""What is drawn of a chain: its batches over time, its epochs, and the gaps that were filled."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

TILES_MAX = 300
"""Most points of a picture: about one for three pixels of its width, however long the chain."""

GAPS_MAX = 200
"""Most gaps drawn, the latest ones."""


class Tile(Struct, frozen=True, kw_only=True):
    """Neighbouring batches of one epoch, drawn as one point."""

    first_id: int
    last_id: int
    began_at: datetime
    """When the first of them was committed."""
    ended_at: datetime
    """When the last of them was."""
    batches: int
    rows: int
    rows_max: int
    """Rows of the largest of them."""
    epoch: int


class FilledGap(Struct, frozen=True, kw_only=True):
    """What one receiver read from the database, since it did not come by Kafka."""

    receiver: str
    after_id: int
    until_id: int
    cause: str
    outcome: str
    found_at: datetime


class Picture(Struct, frozen=True, kw_only=True):
    """One chain as its database tells it."""

    tiles: tuple[Tile, ...] = ()
    """In the order of ids."""
    gaps: tuple[FilledGap, ...] = ()
