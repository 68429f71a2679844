"""A DatabaseConfig as options of PostgreSQL's JDBC driver, as Spark passes them on.

The driver knows nothing of libpq's environment. It gets what the config says instead, so that both
drivers require the same of a server. Imports no driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from msgspec import Struct

from orderchain.clients.database_config import SYSTEM_AUTHORITIES
from orderchain.clients.pem import read_key
from orderchain.errors import SettingError

if TYPE_CHECKING:
    from orderchain.clients.database_config import DatabaseConfig

_SERVER_TYPES: Final = {
    "": "any",
    "any": "any",
    "read-write": "primary",
    "primary": "primary",
    "read-only": "secondary",
    "standby": "secondary",
    "prefer-standby": "preferSecondary",
}
_KEY_SUFFIXES: Final = (".key", ".pem")
"""Suffixes of files that the driver reads as PEM; it treats all others as binary."""
_CONVERT: Final = "(openssl pkcs8 -topk8 -nocrypt -in OLD -out NEW.key)"
_JAVA_AUTHORITIES: Final = "org.postgresql.ssl.DefaultJavaSSLFactory"


class JdbcAddress(Struct, frozen=True, kw_only=True):
    """Where and as whom to connect. `properties` may hold the password: never shown."""

    url: str
    """Hosts, ports and database; no user, no password."""
    properties: Mapping[str, str]

    def __repr__(self) -> str:
        return f"JdbcAddress(url={self.url!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        """As `repr`."""
        return [("url", self.url)]


def jdbc_address(config: DatabaseConfig) -> JdbcAddress:
    """Return the JDBC address of a database, with the same TLS as asyncpg's.

    Files are named, not copied: machines that run parts of a query need them at the same paths.
    Raises SettingError for a Unix socket, and for what this driver cannot do: revocation lists, a
    version of TLS, and keys that are encrypted, not in PKCS#8, or not named `.key` or `.pem`.
    """
    hosts = [(host, port) for host, port in config.addresses if not host.startswith("/")]
    if not hosts or (config.host and len(hosts) < len(config.addresses)):
        raise SettingError("database", config.shown, "a host and a port: JDBC needs TCP")
    names = ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts
    )
    given = {
        "user": config.login,
        # One for all hosts: the first that a passfile has.
        "password": next(filter(None, (config.read_password(*at) for at in hosts)), ""),
        "targetServerType": _SERVER_TYPES[config.target_session_attrs],
        "ApplicationName": config.application_name,
        "options": config.options,
        "connectTimeout": str(config.connect_timeout),
        **_tls(config),
    }
    return JdbcAddress(
        url=f"jdbc:postgresql://{names}/{quote(config.database, safe='')}",
        properties={name: value for name, value in given.items() if value},
    )


def _tls(config: DatabaseConfig) -> dict[str, str]:
    for field in ("sslcrl", "ssl_min_protocol_version"):
        if value := getattr(config, field):
            raise SettingError(field, value, "none: Spark's JDBC driver does not know it")
    options = {"sslmode": config.tls_mode, "sslNegotiation": config.sslnegotiation}
    if config.sslrootcert == SYSTEM_AUTHORITIES:
        options["sslfactory"] = _JAVA_AUTHORITIES
    else:
        options["sslrootcert"] = config.sslrootcert
    if config.sslcert:
        options |= {"sslcert": config.sslcert, "sslkey": config.sslkey}
        options["pemKeyAlgorithm"] = _key_algorithm(config)
    return options


def _key_algorithm(config: DatabaseConfig) -> str:
    """Return the algorithm of the client's key, after checking that the driver can read it."""
    key = read_key("sslkey", config.sslkey)
    if key.is_encrypted or not key.is_as_stored:
        expected = f"for JDBC a key in PKCS#8 without a password {_CONVERT}"
        raise SettingError("sslkey", config.sslkey, expected)
    if not config.sslkey.endswith(_KEY_SUFFIXES):
        raise SettingError("sslkey", config.sslkey, "for JDBC a file named *.key or *.pem")
    return key.algorithm
