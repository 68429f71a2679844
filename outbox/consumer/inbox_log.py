"""A look into a consumer's inbox from the sender's side, if both can reach one database.

Give it to a relay (`consumer_logs`): a message that is due and found here counts as confirmed, and
is not resent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orderchain.clients.database_config import DatabaseConfig
from orderchain.clients.session import Session, SessionConfig
from orderchain.roles import OUTBOX_OPERATOR
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID


_SQL: Final = load_sql("outbox", "sql/inbox_queries.sql")


class InboxLog:
    """Which messages a consumer has applied. The role `outbox_operator` may read that."""

    def __init__(
        self, database: str | DatabaseConfig, consumer: str, *, seconds: float = 10.0
    ) -> None:
        """`database`: the consumer's. `seconds`: deadline of each call. Raises SettingError."""
        self._consumer = consumer
        self._session = Session(
            SessionConfig(
                database=DatabaseConfig.of(database),
                application_name="orderchain outbox inbox log",
                role=OUTBOX_OPERATOR,
                pooler="read through",
                connect_seconds=seconds,
                statement_seconds=seconds,
            )
        )

    async def applied(self, message_ids: Sequence[UUID]) -> set[UUID]:
        """Return those that the consumer has applied. Raises ConnectError, RetryError."""
        rows = await self._session.fetch(_SQL["applied"], self._consumer, list(message_ids))
        return {row[0] for row in rows}

    async def close(self) -> None:
        """Close; never raises."""
        await self._session.close()
