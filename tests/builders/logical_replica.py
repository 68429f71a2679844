"""A database that follows another of its server by logical replication (docs/backup.md).

The server has `wal_level = logical`.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER
from tests.deadlines import until
from tests.opened import connected

if TYPE_CHECKING:
    from chain_kernel.clients.postgres import Connection

_PUBLISHED = "CREATE PUBLICATION everything FOR ALL TABLES WITH (publish_via_partition_root = true)"
_FOLLOWED = """
CREATE SUBSCRIPTION {name} CONNECTION '{dsn}' PUBLICATION everything
  WITH (create_slot = false, slot_name = '{name}')
"""
_COPIED = "SELECT count(*) > 0 AND bool_and(srsubstate = 'r') FROM pg_subscription_rel"
_REPLAYED = """
SELECT confirmed_flush_lsn >= $2::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $1
"""
_CUT_OFF = (
    "ALTER SUBSCRIPTION {name} DISABLE",
    "ALTER SUBSCRIPTION {name} SET (slot_name = NONE)",
    "DROP SUBSCRIPTION {name}",
)


class LogicalReplica:
    """The second of two databases of a server; both exist, and the first has our tables."""

    def __init__(self, server: PostgresServer, first: str, second: str) -> None:
        self._server = server
        self._first = first
        self._second = second

    def copy_tables(self) -> None:
        """Make the tables of the first, with the partitions that they have now.

        Statements for what is there already fail, and the others are run.
        """
        program, environment = self._server.installation.program, self._server.client_environment()
        made = subprocess.run(
            [program("pg_dump"), "--schema-only", "--no-publications", self._first],
            env=environment, capture_output=True, check=True,
        )  # fmt: skip
        subprocess.run(
            [program("psql"), "-q", "-X", "-d", self._second],
            env=environment, input=made.stdout, capture_output=True, check=True,
        )  # fmt: skip
        self._server.execute(f"REVOKE CREATE, TEMPORARY ON DATABASE {self._second} FROM PUBLIC")

    async def follow(self) -> None:
        """Replicate; returns once all rows that there were are copied."""
        async with self._opened(self._first) as first, self._opened(self._second) as second:
            await first.execute(_PUBLISHED)
            await first.execute(
                "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", self._second
            )
            dsn = self._server.dsn(SUPERUSER, self._first)
            await second.execute(_FOLLOWED.format(name=self._second, dsn=dsn))
            await _until(second, _COPIED)

    async def cut_off(self) -> None:
        """Let the replica have everything, and end the replication; no one writes meanwhile."""
        await asyncio.to_thread(self.copy_tables)
        async with self._opened(self._first) as first, self._opened(self._second) as second:
            written = await first.fetchval("SELECT pg_current_wal_lsn()::text")
            await _until(first, _REPLAYED, self._second, written)
            for statement in _CUT_OFF:
                await second.execute(statement.format(name=self._second))
            unused = "SELECT NOT active FROM pg_replication_slots WHERE slot_name = $1"
            await _until(first, unused, self._second)
            await first.execute("SELECT pg_drop_replication_slot($1)", self._second)

    @asynccontextmanager
    async def _opened(self, database: str) -> AsyncIterator[Connection]:
        async with connected(self._server.dsn(SUPERUSER, database)) as connection:
            yield connection


async def _until(connection: Connection, query: str, *values: object) -> None:
    await until(lambda: connection.fetchval(query, *values))
