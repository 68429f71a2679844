"""Shows the judge of statuses the history of the deliveries of a database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from .statuses import Statuses

if TYPE_CHECKING:
    import asyncpg

SEE: Final = Path(__file__).with_name("seen_deliveries.sql").read_text(encoding="utf-8")
"""Statements that have a database record every change of a delivery."""

_STAND = """
    SELECT message_id || ' ' || consumer AS delivery, status, is_decided FROM outbox_pending
"""
_ENDED = """
    SELECT message_id || ' ' || consumer AS delivery, status FROM outbox_done
"""


async def judge_deliveries(connection: asyncpg.Connection) -> Statuses:
    """Judge what was recorded, and what is left of it. Raises Diverged."""
    statuses = Statuses()
    for seen in await connection.fetch("SELECT * FROM judge.seen ORDER BY number"):
        name, status, is_decided = seen["delivery"], seen["status"], seen["is_decided"]
        if seen["is_test"]:
            statuses.by_hand(seen["what"], name, status, is_decided)
        elif seen["what"] in ("stored", "moved"):
            getattr(statuses, seen["what"])(name, status, is_decided)
        elif seen["what"] in ("done", "acted"):
            getattr(statuses, seen["what"])(name, status)
        if not seen["is_test"] and seen["tries_max"] is not None:
            statuses.tried(name, seen["tries"], seen["tries_max"])
    stand = await connection.fetch(_STAND)
    ended = await connection.fetch(_ENDED)
    messages = await connection.fetch("SELECT message_id::text FROM outbox_message")
    statuses.over(
        {row["delivery"]: (row["status"], row["is_decided"]) for row in stand},
        {row["delivery"]: row["status"] for row in ended},
        {row["message_id"] for row in messages},
    )
    return statuses
