"""Sessions of the outbox with PostgreSQL.

A server that runs without `fsync`, `full_page_writes` or `synchronous_commit` may lose what it has
committed. So our sessions refuse such a server, and keep the `synchronous_commit` that they have
found, even if the server's settings are reloaded meanwhile.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.session import (
    Session,
    SessionConfig,
    check_durability,
    check_server,
)
from chain_kernel.model import ServerIdentity
from chain_kernel.sql import load_sql, require_version, tables_of
from outbox.roles import OUTBOX_RELAY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from chain_kernel.clients.postgres import Connection
    from outbox.callback.config import CallbackConfig
    from outbox.sender.config import KeepConfig, RelayConfig


_SQL: Final = load_sql("outbox", "sql/durability.sql")

BARRIER: Final = _SQL["barrier"]
WHOLE_BARRIER: Final = f"{_SQL['begin_barrier']};\n{BARRIER};\nCOMMIT"
"""In one message, so that a pooler keeps it at one server, whatever the session's settings are."""
SYNCHRONOUS: Final = _SQL["synchronous"]


async def keep_durable(connection: Connection, *, unsafe: bool) -> None:
    """Keep `synchronous_commit` as it is; raise DurabilityError if a crash may lose commits."""
    settings = await connection.fetchrow(_SQL["pin"])
    if not unsafe:
        check_durability(settings)


def named_server(system_identifier: str, timeline: str | None) -> ServerIdentity:
    """Return which server a statement on a caller's connection has named, in texts."""
    return ServerIdentity(int(system_identifier), int(timeline or 0))


def columns(rows: Collection[object], *fields: str) -> list[list[Any]]:
    """Return fields of `rows`, a list for each: statements take many rows as arrays."""
    return [list(map(attrgetter(field), rows)) for field in fields]


SCHEMA_VERSION: Final = 1


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
    "enable_bitmapscan": "off",
}
"""Settings of sessions that run only our statements. The tables that change are small and change
fast, and their statistics are always wrong: a plan made for an empty table would read the whole
table per row. So every plan uses the indexes, and is made once. What is due comes in the
order of its index, as far as a limit goes: a bitmap would be read whole, and sorted."""

SESSION_SETTINGS: Final = PLAN_SETTINGS | {
    # A process that stops in the middle of a transaction must not hold its claims forever.
    "idle_in_transaction_session_timeout": "60s",
    "default_transaction_read_only": "off",
}


@lru_cache
def tables_of_part(part: str) -> tuple[str, ...]:
    """Return the tables of a part of the schema: `outbox`, `inbox` or `callback`."""
    text = (files("outbox") / f"sql/{part}.sql").read_text(encoding="utf-8")
    return (f"{part}_version", *tables_of(text))


class OutboxSession(Session):
    """A session whose commits last, and whose tables exist.

    Its methods raise DurabilityError, too.
    """

    def __init__(
        self,
        settings: RelayConfig | KeepConfig | CallbackConfig,
        purpose: str,
        woken: Callable[[], None] | None = None,
        tables: Tables = OUTBOX_TABLES,
    ) -> None:
        """`woken` is called when messages may be due, as the outbox's tables report it."""
        config = SessionConfig(
            database=DatabaseConfig.of(settings.database),
            application_name=f"orderchain outbox {purpose}",
            role=tables.role,
            tables=tables_of_part(tables.name),
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

    async def barrier(self, read_on: Connection | None) -> None:
        """Return once what was read on a connection outlives a failover.

        Raises RetryError where another host has become the primary since: it may lack that.
        """
        await self.fetch(BARRIER)
        if read_on is not None:
            check_server(read_on)

    async def check_durability(self) -> None:
        """Check the server's settings again."""
        await self.run(self._keep_durable)

    async def _check(self, connection: Connection) -> None:
        row = await connection.fetchrow(self._tables.version_statement)
        require_version(row, SCHEMA_VERSION, self._tables.name)
        await self._keep_durable(connection)
        if (woken := self._woken) is not None:
            await connection.add_listener("outbox_ready", lambda *_: woken())
            woken()  # for what came while it did not listen

    async def _keep_durable(self, connection: Connection) -> None:
        await keep_durable(connection, unsafe=self._is_unsafe)
