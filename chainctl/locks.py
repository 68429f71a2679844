"""A statement that waits for a lock is given up after a while, and the lock's holder is named."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from chain_kernel.errors import OrderchainError, RetryError
from chain_kernel.sql import load_sql

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from datetime import datetime

    from chain_kernel.clients.session import SessionConfig
    from chain_kernel.model import ServerIdentity

LOCK_SECONDS: Final = 5.0
"""Longest wait of a statement for a lock; then it is given up, and the holder is named."""

_LOCK_LOOK_SECONDS: Final = 0.5
_HOLDERS_SHOWN: Final = 3
_QUERY_CHARACTERS_MAX: Final = 200

_SQL: Final = load_sql("chainctl", "locks.sql")


@asynccontextmanager
async def naming_lock_holders(
    config: SessionConfig,
    connection: Any,  # noqa: ANN401 - an asyncpg connection
) -> AsyncIterator[None]:
    """Give up a statement of the block that has waited for a lock for LOCK_SECONDS.

    Raises RetryError then, which names the table, who holds the lock, and that session's query.
    """
    # The driver is imported only where a connection is opened.
    from chain_kernel.clients.postgres import server_identity

    found: list[str] = []
    server = await server_identity(connection) if config.database.may_move else None
    backend = connection.get_server_pid(), await connection.fetchval(_SQL["server_started_at"])
    watch = asyncio.create_task(_give_up_lock_wait(config, backend, server, found))
    try:
        yield
    except Exception as error:
        if found:
            raise RetryError(found[0]) from error
        raise
    finally:
        watch.cancel()
        await asyncio.wait([watch])


async def _give_up_lock_wait(
    config: SessionConfig,
    backend: tuple[int, datetime],
    server: ServerIdentity | None,
    found: list[str],
) -> None:
    """Cancel the statement of `backend` once it waits too long, after `found` says for whom.

    It is known by its process and the start of its server: standbys have one identity.

    It looks over a second connection to its `server` while the first one waits: afterwards that
    does not know any more who was in the way. Where it cannot connect, the statement's own deadline
    counts.
    """
    # The driver is imported only where a connection is opened.
    from chain_kernel.clients import session
    from chain_kernel.clients.postgres_errors import SERVER_ERRORS

    with suppress(OrderchainError, *SERVER_ERRORS):
        await asyncio.sleep(LOCK_SECONDS)
        async with session.connected(config, server=server) as connection:
            while not found:
                holders = await connection.fetch(_SQL["lock_holders"], *backend, LOCK_SECONDS)
                if holders:
                    found.append(_lock_text(holders))
                    await connection.execute(_SQL["cancel_statement"], backend[0])
                else:
                    await asyncio.sleep(_LOCK_LOOK_SECONDS)


def _lock_text(holders: Sequence[Mapping[str, Any]]) -> str:
    """Return who holds the lock of `holders`, rows of the statement `lock_holders`."""
    first = holders[0]
    names = "; and by ".join(map(_holder_text, holders[:_HOLDERS_SHOWN]))
    return (
        f"{first['locked']} is locked: after {first['waited_seconds']:.0f} s it was still held by "
        f"{names}. To end it: SELECT pg_terminate_backend({first['pid']})"
    )


def _holder_text(holder: Mapping[str, Any]) -> str:
    if not holder["pid"]:
        return "a prepared transaction (pg_prepared_xacts)"
    who = f"process {holder['pid']} of {holder['login']} ({holder['application'] or 'no name'})"
    if holder["state"] is None:
        return f"{who}, whose query this login may not see (pg_read_all_stats)"
    state = "waits for a lock itself" if holder["is_waiting"] else holder["state"]
    query = " ".join(holder["query"].split())[:_QUERY_CHARACTERS_MAX]
    return f"{who}, {state}, in a transaction of {holder['open_seconds']:.0f} s: {query}"
