"""Shows the judge of statuses the history of the deliveries of a database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from .statuses import Statuses

if TYPE_CHECKING:
    import asyncpg

SEE: Final = Path(__file__).with_name("seen_deliveries.sql").read_text(encoding="utf-8")
"""Statements that have a database record every change of a delivery."""


async def judge_deliveries(connection: asyncpg.Connection) -> Statuses:
    """Judge what was recorded. Raises Diverged."""
    statuses = Statuses()
    for seen in await connection.fetch("SELECT * FROM judge.seen ORDER BY number"):
        name, status, is_decided = seen["delivery"], seen["status"], seen["is_decided"]
        if seen["is_test"]:
            statuses.by_hand(name, status, bool(is_decided))
        elif seen["what"] == "stored":
            statuses.stored(name, status, is_decided)
        elif seen["what"] == "moved":
            statuses.moved(name, status, is_decided)
        elif seen["what"] == "done":
            statuses.done(name, status)
        if not seen["is_test"] and seen["tries_max"] is not None:
            statuses.tried(name, seen["tries"], seen["tries_max"])
    return statuses
