"""How Spark reaches a chain's database: the same server as asyncpg, and with deadlines."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from chain_verifier.config import CONNECT_TIMEOUT_S, READ_TIMEOUT_S
from orderchain.clients.database_config import DatabaseConfig, warn_of_exposure
from orderchain.clients.jdbc import JdbcAddress, jdbc_address

_DEFAULTS: Final = {
    "driver": "org.postgresql.Driver",
    "ApplicationName": "chain_verifier",
    "connectTimeout": str(CONNECT_TIMEOUT_S),
    "loginTimeout": str(CONNECT_TIMEOUT_S),
    "socketTimeout": str(READ_TIMEOUT_S),
    "tcpKeepAlive": "true",
}


def chain_address(database: str | DatabaseConfig) -> JdbcAddress:
    """Return the JDBC address of a chain's database.

    Raises SettingError for what JDBC cannot do. A host where another one may pose as the server is
    warned of, as asyncpg's is.
    """
    config = DatabaseConfig.of(database)
    warn_of_exposure(config)
    address = jdbc_address(config)
    return replace(address, properties={**_DEFAULTS, **address.properties})
