"""Connections to the chain's database for everything except Spark's scans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chain_verifier.config import CONNECT_TIMEOUT_S, READ_TIMEOUT_S
from orderchain.clients.database_config import DatabaseConfig
from orderchain.clients.session import SessionConfig, connected

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from orderchain.clients.postgres import Connection


def session_config(database: str | DatabaseConfig, role: str) -> SessionConfig:
    """Return how a session is held; members of `role` may do what the session is for."""
    return SessionConfig(
        database=DatabaseConfig.of(database),
        application_name="chain_verifier",
        role=role,
        connect_seconds=CONNECT_TIMEOUT_S,
        statement_seconds=READ_TIMEOUT_S,
    )


def connection_to(
    database: str | DatabaseConfig, role: str
) -> AbstractAsyncContextManager[Connection]:
    """Hold one connection for a while. Raises as `orderchain.clients.session.connected`."""
    return connected(session_config(database, role))
