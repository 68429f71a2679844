"""A look into a consumer's inbox from the sender's side, where both may reach one database.

Give it to a relay (`consumer_logs`): a message that is due and found here counts as confirmed, and
is not sent again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import asyncpg

from orderchain.refusals import connect_refusal, statement_refusal
from orderchain.roles import OUTBOX_OPERATOR
from orderchain.sql import load_sql
from outbox.connections import DRIVER_ERRORS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from outbox.connections import Connection

_SQL: Final = load_sql("outbox", "inbox_queries.sql")


class InboxLog:
    """Which messages a consumer has applied. The role `outbox_operator` may read that."""

    def __init__(self, database: str, consumer: str, *, seconds: float = 10.0) -> None:
        """`database`: a libpq URL of the consumer's database. `seconds`: deadline of each call."""
        self._database = database
        self._consumer = consumer
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._connection: Connection | None = None

    async def applied(self, message_ids: Sequence[UUID]) -> set[UUID]:
        """Return those that the consumer has applied. Raises ConnectError, RetryError."""
        async with self._turn:
            connection = self._connection
            if connection is None or connection.is_closed():
                connection = self._connection = await self._connect()
            try:
                rows = await connection.fetch(
                    _SQL["applied"], self._consumer, list(message_ids), timeout=self._seconds
                )
            except BaseException as error:
                connection.terminate()
                if isinstance(error, Exception):
                    raise statement_refusal(
                        error,
                        self._database,
                        driver_errors=DRIVER_ERRORS,
                        deadline_seconds=self._seconds,
                        role=OUTBOX_OPERATOR,
                    ) from error
                raise
        return {row[0] for row in rows}

    async def close(self) -> None:
        """Close; never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _connect(self) -> Connection:
        try:
            return await asyncpg.connect(self._database, timeout=self._seconds)
        except (OSError, ValueError, *DRIVER_ERRORS) as error:
            raise connect_refusal(error, self._database) from error
