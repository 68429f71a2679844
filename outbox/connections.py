"""A consumer's database connections: one for each message or batch that is worked on."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from orderchain.refusals import connect_refusal, sqlstate_of
from outbox.durability import BARRIER, PIN, check_durability, listen_for_cut_waits
from outbox.errors import CutWait

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from outbox.consumer_config import ConsumerConfig

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
    Record: TypeAlias = asyncpg.Record

DRIVER_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # What the driver raises when the server ended the session between two of our statements.
    asyncpg.InternalClientError,
)

_TRANSIENT_SQLSTATES: Final = frozenset({
    "40001",  # could not serialize: nobody's fault, the next try may pass
    "40P01",  # deadlock: another transaction went on
    "55P03",  # a lock was not to be had in time
    "57P01", "57P02", "57P03",  # the server is stopping or starting
    "53300",  # no connection left
})  # fmt: skip


class TellingConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg is untyped
    """A connection whose commit fails where the server has rolled back instead.

    That is what the server does with a transaction that an error has broken, and asyncpg passes
    over the word in which it says so. A handler may have hidden that error.
    """

    async def execute(
        self,
        query: str,
        *args: Any,  # noqa: ANN401 - as asyncpg has it
        timeout: float | None = None,
    ) -> str:
        """See asyncpg. Raises InFailedSQLTransactionError for a commit that was none."""
        status: str = await super().execute(query, *args, timeout=timeout)
        if status == "ROLLBACK" and query.startswith("COMMIT"):
            raise rolled_back()
        return status


def rolled_back() -> asyncpg.PostgresError:
    """Return what a commit raises that was none."""
    return asyncpg.InFailedSQLTransactionError(
        "a statement has failed and its error was hidden: the transaction is rolled back"
    )


class Connections:
    """Connections that are used in turn; a broken one is thrown away.

    Not asyncpg's own pool: that one resets a connection at each return, which is a round trip a
    message.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self._free: list[Connection] = []
        self._cut: set[Connection] = set()
        """Those whose last wait for a synchronous standby was cut off."""

    async def take(self) -> Connection:
        """Return a connection. Raises ConnectError, RetryError, DurabilityError."""
        while self._free:
            connection = self._free.pop()
            if not connection.is_closed():
                return connection
        try:
            connection = await asyncpg.connect(
                self._config.database,
                timeout=self._config.connect_seconds,
                connection_class=TellingConnection,
            )
        except (OSError, ValueError, *DRIVER_ERRORS) as error:
            raise connect_refusal(error, self._config.database) from error
        try:
            await self.check_durability(connection)
            listen_for_cut_waits(connection, lambda: self._cut.add(connection))
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def check_durability(self, connection: Connection) -> None:
        """Raise DurabilityError where the server may lose what this connection has committed."""
        settings = await connection.fetchrow(PIN, timeout=self._config.statement_seconds)
        check_durability(settings, unsafe=self._config.unsafe_durability)

    def check_commit(self, connection: Connection) -> None:
        """Raise CutWait when the commit just made may not outlive a failover."""
        if connection in self._cut:
            self._cut.discard(connection)
            raise CutWait

    async def barrier(self) -> None:
        """Return once what can be read here outlives a failover. Raises what a database raises."""
        connection = await self.take()
        try:
            await connection.execute(BARRIER, timeout=self._config.statement_seconds)
            self.check_commit(connection)
        except BaseException:
            connection.terminate()
            raise
        self.give_back(connection)

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next one. What still has a transaction open is ended."""
        if connection.is_closed() or connection.is_in_transaction() or connection in self._cut:
            self.drop(connection)
        else:
            self._free.append(connection)

    def drop(self, connection: Connection) -> None:
        """Close a connection at once. What a failed statement leaves on the wire is not read."""
        self._cut.discard(connection)
        connection.terminate()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection with a transaction that commits at the end of the block."""
        connection = await self.take()
        seconds = self._config.statement_seconds
        transaction = connection.transaction(isolation="read_committed")
        try:
            async with asyncio.timeout(seconds):
                await transaction.start()
            yield connection
            async with asyncio.timeout(seconds):
                await transaction.commit()
            self.check_commit(connection)
        except BaseException:
            self.drop(connection)
            raise
        self.give_back(connection)

    async def close(self) -> None:
        """Close those that are not in use; never raises."""
        free, self._free = self._free, []
        for connection in free:
            with suppress(OSError, *DRIVER_ERRORS):
                await connection.close(timeout=self._config.close_seconds)


def is_interruption(error: BaseException, connection: Connection | None) -> bool:
    """Say whether work was broken off from outside, so that the message is not to blame."""
    if sqlstate_of(error) in _TRANSIENT_SQLSTATES:
        return True
    is_driver = isinstance(error, (OSError, *DRIVER_ERRORS))
    return is_driver and connection is not None and connection.is_closed()
