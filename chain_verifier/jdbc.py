"""From a libpq URL to JDBC, and from JDBC's errors to ours. No password gets into a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from msgspec import Struct

from chain_verifier.config import CONNECT_TIMEOUT_S, READ_TIMEOUT_S
from orderchain.dsn import mask_dsn
from orderchain.errors import SettingError

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_EXPECTED: Final = "a URL like postgresql://user:password@host:5432/database"

_OPTIONS: Final = {
    "user": "user",
    "password": "password",
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslpassword": "sslpassword",
    "application_name": "ApplicationName",
    "connect_timeout": "connectTimeout",
    "options": "options",
    "target_session_attrs": "targetServerType",
}
"""libpq's names of what the JDBC driver can do too, under its own names."""

_SERVER_TYPES: Final = {
    "any": "any",
    "read-write": "primary",
    "primary": "primary",
    "read-only": "secondary",
    "standby": "secondary",
    "prefer-standby": "preferSecondary",
}


class JdbcAddress(Struct, frozen=True, kw_only=True):
    """Where and as whom to connect. `properties` may hold the password: never shown."""

    url: str
    """Host, port and database; no user, no password."""
    properties: dict[str, str]

    def __repr__(self) -> str:
        return f"JdbcAddress(url={self.url!r})"


def jdbc_address(dsn: str) -> JdbcAddress:
    """Return the JDBC address for a libpq URL.

    What is left out is as in libpq: port 5432, the database named like the user. Raises
    SettingError for what is no such URL, for a Unix socket, and for an option that JDBC lacks.
    """
    parts = _split(dsn)
    user, password = _credentials(parts)
    given = {"user": user, "password": password} | dict(parse_qsl(parts.query))
    hosts = given.pop("host", "") or parts.netloc.rpartition("@")[2] or "localhost"
    if "/" in unquote(hosts):
        raise SettingError("database", mask_dsn(dsn), "a host and a port: JDBC needs TCP")
    if "port" in given:
        hosts = f"{hosts}:{given.pop('port')}"
    database = given.pop("dbname", "") or unquote(parts.path.lstrip("/")) or given["user"]
    return JdbcAddress(
        url=f"jdbc:postgresql://{hosts}/{quote(database, safe='')}",
        properties=_defaults() | _properties(given),
    )


def _split(dsn: str) -> SplitResult:
    try:
        parts = urlsplit(dsn)
    except ValueError:
        raise SettingError("database", mask_dsn(dsn), _EXPECTED) from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise SettingError("database", mask_dsn(dsn), _EXPECTED)
    return parts


def _credentials(parts: SplitResult) -> tuple[str, str]:
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    return unquote(user), unquote(password)


def _defaults() -> dict[str, str]:
    return {
        "driver": "org.postgresql.Driver",
        "ApplicationName": "chain_verifier",
        "connectTimeout": str(CONNECT_TIMEOUT_S),
        "loginTimeout": str(CONNECT_TIMEOUT_S),
        "socketTimeout": str(READ_TIMEOUT_S),
        "tcpKeepAlive": "true",
    }


def _properties(given: dict[str, str]) -> dict[str, str]:
    """Return libpq's options under JDBC's names; empty ones are left out, as in libpq."""
    unknown = sorted(set(given) - set(_OPTIONS))
    if unknown:
        raise SettingError("database option", unknown[0], f"one of {', '.join(sorted(_OPTIONS))}")
    attrs = given.get("target_session_attrs")
    if attrs:
        if attrs not in _SERVER_TYPES:
            raise SettingError("target_session_attrs", attrs, f"one of {', '.join(_SERVER_TYPES)}")
        given = given | {"target_session_attrs": _SERVER_TYPES[attrs]}
    return {_OPTIONS[name]: value for name, value in given.items() if value}
