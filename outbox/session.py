"""Sessions of the outbox with PostgreSQL.

A server that runs without `fsync`, `full_page_writes` or `synchronous_commit` may lose what it has
committed. So our sessions refuse such a server, and keep the `synchronous_commit` that they have
found, even if the server's settings are reloaded meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from orderchain.clients.database_config import DatabaseConfig
from orderchain.clients.postgres import DRIVER_ERRORS, sqlstate_of, statement_refusal
from orderchain.clients.session import Connections, Session, SessionConfig, check_durability
from orderchain.errors import ConnectError, RetryError
from orderchain.sql import OUTBOX_CONSUMER, OUTBOX_RELAY, load_sql, require_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from orderchain.clients.postgres import Connection
    from outbox.consumer.config import ConsumerConfig


_SQL: Final = load_sql("outbox", "sql/durability.sql")

BARRIER: Final = _SQL["barrier"]
SYNCHRONOUS: Final = _SQL["synchronous"]


async def keep_durable(connection: Connection, *, unsafe: bool) -> None:
    """Keep `synchronous_commit` as it is; raise DurabilityError if a crash may lose commits."""
    settings = await connection.fetchrow(_SQL["pin"])
    if not unsafe:
        check_durability(settings)


SCHEMA_VERSION: Final = 1


class ServiceSettings(Protocol):
    """The settings that a session needs from its user."""

    @property
    def database(self) -> str | DatabaseConfig: ...  # noqa: D102 - as in each of the settings
    @property
    def connect_seconds(self) -> float: ...  # noqa: D102
    @property
    def statement_seconds(self) -> float: ...  # noqa: D102
    @property
    def unsafe_durability(self) -> bool: ...  # noqa: D102


class Tables(Struct, frozen=True):
    """The tables that a session works on."""

    name: str
    version_statement: str
    role: str
    """The role whose members may work on them."""


OUTBOX_TABLES: Final = Tables(
    "outbox", "SELECT version, upgrade_to FROM outbox_version", OUTBOX_RELAY
)

PLAN_SETTINGS: Final = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
"""Settings of sessions that run only our statements. The tables that change are small and change
fast, and their statistics are always wrong: a plan made for an empty table would read the whole
table per row. So every plan uses the indexes, and is made once."""

SESSION_SETTINGS: Final = PLAN_SETTINGS | {
    # A process that stops in the middle of a transaction must not hold its claims forever.
    "idle_in_transaction_session_timeout": "60s",
    # Settings that a database or a role has for others must not end our sessions, nor fail sound
    # statements: our sessions have their own deadlines.
    "idle_session_timeout": "0",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "default_transaction_isolation": "read committed",
}


class OutboxSession(Session):
    """A session whose commits last, and whose tables exist.

    Its methods raise DurabilityError, too.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        purpose: str,
        woken: Callable[[], None] | None = None,
        tables: Tables = OUTBOX_TABLES,
    ) -> None:
        """`woken` is called when messages may be due, as the outbox's tables report it."""
        config = SessionConfig(
            database=DatabaseConfig.of(settings.database),
            application_name=f"orderchain outbox {purpose}",
            role=tables.role,
            settings=SESSION_SETTINGS,
            pooler="refused",  # settings and what it listens to are the session's own
            watches_standby=True,
            connect_seconds=settings.connect_seconds,
            statement_seconds=settings.statement_seconds,
            call_seconds=settings.statement_seconds,
        )
        super().__init__(config, prepare=self._check)
        self._tables = tables
        self._woken = woken
        self._is_unsafe = settings.unsafe_durability

    async def barrier(self) -> None:
        """Return once what can be read here outlives a failover."""
        await self.fetch(BARRIER)

    async def check_durability(self) -> None:
        """Check the server's settings again."""
        await self.run(self._keep_durable)

    async def _check(self, connection: Connection) -> None:
        row = await connection.fetchrow(self._tables.version_statement)
        require_version(row, SCHEMA_VERSION, self._tables.name)
        await self._keep_durable(connection)
        if (woken := self._woken) is not None:
            await connection.add_listener("outbox_ready", lambda *_: woken())
            woken()  # for what came while nobody listened

    async def _keep_durable(self, connection: Connection) -> None:
        await keep_durable(connection, unsafe=self._is_unsafe)


_TRANSIENT_SQLSTATES: Final = frozenset({
    "40001",  # could not serialize: nobody's fault, a retry may pass
    "40P01",  # deadlock: another transaction went on
    "55P03",  # a lock was not available in time
    "57P01", "57P02", "57P03",  # the server is stopping or starting
    "53300",  # no connection left
})  # fmt: skip


AWAY: Final = (RetryError, ConnectError, *DRIVER_ERRORS)
"""Errors of a database that is away, or in trouble. TimeoutError is an OSError."""


class ConsumerConnections(Connections):
    """Connections of a consumer, whose commits last. Their settings are the handler's own."""

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
        """Raise DurabilityError if the server may lose what this connection has committed."""
        async with asyncio.timeout(self._config.statement_seconds):
            await keep_durable(connection, unsafe=self._is_unsafe)

    def deadline(self) -> asyncio.Timeout:
        """Return the deadline of our own statements, for `async with`."""
        return asyncio.timeout(self._config.statement_seconds)

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
        """Return what to raise after a statement raised `error`; see `statement_refusal`."""
        return statement_refusal(error, self._config.database, self._config.role)


def is_interruption(error: BaseException, connection: Connection | None) -> bool:
    """Return whether work was interrupted from outside, so that the message is not to blame."""
    if sqlstate_of(error) in _TRANSIENT_SQLSTATES:
        return True
    is_driver = isinstance(error, DRIVER_ERRORS)
    return is_driver and connection is not None and connection.is_closed()
