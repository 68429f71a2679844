"""What a commit of the outbox promises, and how that is kept: pinned settings, and barriers.

A server that runs without `fsync`, `full_page_writes` or `synchronous_commit` may lose what it has
committed. So sessions of ours refuse such a server, and keep their own `synchronous_commit` as they
have found it, whatever is reloaded meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orderchain.clients.durability import check_durability
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from orderchain.clients.postgres import Connection

_SQL: Final = load_sql("outbox", "durability.sql")

BARRIER: Final = _SQL["barrier"]
SYNCHRONOUS: Final = _SQL["synchronous"]


async def keep_durable(connection: Connection, *, unsafe: bool) -> None:
    """Keep `synchronous_commit` as it is; raise DurabilityError where a crash may lose commits."""
    settings = await connection.fetchrow(_SQL["pin"])
    if not unsafe:
        check_durability(settings)
