"""A service's session with its database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from orderchain.clients.database_config import DatabaseConfig
from orderchain.clients.session import Session, SessionConfig
from orderchain.errors import SchemaError
from orderchain.roles import OUTBOX_RELAY
from outbox.durability import BARRIER, keep_durable

if TYPE_CHECKING:
    from collections.abc import Callable

    from orderchain.clients.postgres import Connection

SCHEMA_VERSION: Final = 1


class ServiceSettings(Protocol):
    """What a session must know of the settings of whoever works with it."""

    @property
    def database(self) -> str | DatabaseConfig: ...  # noqa: D102 - as in each of the settings
    @property
    def connect_seconds(self) -> float: ...  # noqa: D102
    @property
    def statement_seconds(self) -> float: ...  # noqa: D102
    @property
    def unsafe_durability(self) -> bool: ...  # noqa: D102


class Tables(Struct, frozen=True):
    """Whose tables a session works on."""

    name: str
    version_statement: str
    role: str
    """The role whose members may work on them."""


OUTBOX_TABLES: Final = Tables("outbox", "SELECT version FROM outbox_version", OUTBOX_RELAY)

PLAN_SETTINGS: Final = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
"""Settings of sessions that run our statements alone. The tables that change are small and change
fast, and statistics of them are always wrong: a plan made when a table was empty would read all of
it for each row. So every plan is the one that goes by the indexes, and is made once."""

SESSION_SETTINGS: Final = PLAN_SETTINGS | {
    # A process that stops in mid transaction must not hold its claims for ever.
    "idle_in_transaction_session_timeout": "60s",
    # What a database or a role has set for others must not end our sessions, nor fail statements
    # that are sound: deadlines are our own.
    "idle_session_timeout": "0",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "default_transaction_isolation": "read committed",
}


class OutboxSession(Session):
    """A session whose commits last, and whose tables are there.

    Its methods raise DurabilityError, too.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        purpose: str,
        woken: Callable[[], None] | None = None,
        tables: Tables = OUTBOX_TABLES,
    ) -> None:
        """`woken` is called when messages may be due, as the tables of the outbox report it."""
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
        """Look at the server's settings once more."""
        await self.run(self._keep_durable)

    async def _check(self, connection: Connection) -> None:
        version = await connection.fetchval(self._tables.version_statement)
        if version != SCHEMA_VERSION:
            name = f"schema version of {self._tables.name}"
            raise SchemaError(name, version, str(SCHEMA_VERSION))
        await self._keep_durable(connection)
        if (woken := self._woken) is not None:
            await connection.add_listener("outbox_ready", lambda *_: woken())
            woken()  # what came while nobody listened

    async def _keep_durable(self, connection: Connection) -> None:
        await keep_durable(connection, unsafe=self._is_unsafe)
