"""Addresses of servers, as settings give them: checked, and searched for passwords."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from orderchain.dsn import mask_dsn
from orderchain.errors import SettingError

_SCHEMES: Final = ("postgresql", "postgres")


def checked_dsn(name: str, value: str, ways: str) -> str:
    """Return `value` when it is a libpq URL that says where to connect to.

    `ways` tells how it can be set. Raises SettingError, which shows no password.
    """
    if not value:
        raise SettingError(name, value, f"a PostgreSQL URL, by {ways}")
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        parts, port = None, None
    if (
        parts is None
        or parts.scheme not in _SCHEMES
        or not (parts.hostname or parse_qs(parts.query).get("host"))
        or port == 0
    ):
        expected = "a URL postgresql://user@host:port/name"
        raise SettingError(name, mask_dsn(value), expected)
    return value


def passwords(dsn: str) -> set[str]:
    """Return the password of a URL as it stands there and as it is meant; empty without one."""
    try:
        parts = urlsplit(dsn)
        told = [parts.password or "", *parse_qs(parts.query).get("password", [])]
    except ValueError:
        return set()
    return {form for secret in told for form in (secret, unquote(secret)) if form}
