"""A consumer's database connections: one for each message or batch that is worked on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from orderchain.clients.database_config import DatabaseConfig
from orderchain.clients.postgres import DRIVER_ERRORS, sqlstate_of, statement_refusal
from orderchain.clients.session import Connections, SessionConfig
from orderchain.roles import OUTBOX_CONSUMER
from outbox.durability import BARRIER, keep_durable

if TYPE_CHECKING:
    from orderchain.clients.postgres import Connection
    from outbox.consumer_config import ConsumerConfig

_TRANSIENT_SQLSTATES: Final = frozenset({
    "40001",  # could not serialize: nobody's fault, the next try may pass
    "40P01",  # deadlock: another transaction went on
    "55P03",  # a lock was not to be had in time
    "57P01", "57P02", "57P03",  # the server is stopping or starting
    "53300",  # no connection left
})  # fmt: skip


class ConsumerConnections(Connections):
    """Connections of a consumer, whose commits last. The settings are the handler's own."""

    def __init__(self, config: ConsumerConfig) -> None:
        session = SessionConfig(
            database=DatabaseConfig.of(config.database),
            application_name=f"orderchain outbox consumer {config.name}",
            role=OUTBOX_CONSUMER,
            pooler="refused",  # what `keep_durable` pins is the session's own
            watches_standby=True,
            connect_seconds=config.connect_seconds,
            statement_seconds=config.statement_seconds,
            close_seconds=config.close_seconds,
        )
        super().__init__(session, prepare=self.check_durability)
        self._is_unsafe = config.unsafe_durability

    async def check_durability(self, connection: Connection) -> None:
        """Raise DurabilityError where the server may lose what this connection has committed."""
        async with asyncio.timeout(self._config.statement_seconds):
            await keep_durable(connection, unsafe=self._is_unsafe)

    async def barrier(self) -> None:
        """Return once what can be read here outlives a failover. Raises what a database raises."""
        connection = await self.take()
        try:
            await connection.execute(BARRIER, timeout=self._config.statement_seconds)
            self.check_commit(connection)
        except BaseException:
            self.drop(connection)
            raise
        self.give_back(connection)

    def refusal(self, error: Exception) -> Exception:
        """Return what to raise where a statement raised `error`; see `statement_refusal`."""
        return statement_refusal(error, self._config.database, self._config.role)


def is_interruption(error: BaseException, connection: Connection | None) -> bool:
    """Say whether work was broken off from outside, so that the message is not to blame."""
    if sqlstate_of(error) in _TRANSIENT_SQLSTATES:
        return True
    is_driver = isinstance(error, DRIVER_ERRORS)
    return is_driver and connection is not None and connection.is_closed()
