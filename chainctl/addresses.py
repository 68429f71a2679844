"""Addresses of databases, as settings give them: checked, shown, and searched for passwords."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from orderchain.clients.conninfo import parse
from orderchain.dsn import mask_dsn
from orderchain.errors import SettingError

_SECRETS: Final = ("password", "sslpassword")
_WRITTEN: Final = re.compile(r"://[^:@/?#]*:([^@/?#]+)@|password=([^&#\s]+)")
"""A password as a URL has it."""


def checked_dsn(name: str, value: str, ways: str) -> str:
    """Return `value` when it is a libpq URL, or libpq's keywords, that can be used.

    `ways` tells how it can be set. Raises SettingError, which shows no password.
    """
    from orderchain.clients.database_config import DatabaseConfig

    if not value:
        raise SettingError(name, value, f"a PostgreSQL URL, by {ways}")
    try:
        DatabaseConfig.of(value)
    except SettingError as error:
        field = name if error.field == "database" else f"{error.field} of {name}"
        raise SettingError(field, error.value, error.expected) from None
    return value


def shown_dsn(dsn: str) -> str:
    """Return what may be shown of a text that names a database."""
    if "://" in dsn:
        return mask_dsn(dsn)
    shown = {name: "***" if name in _SECRETS else value for name, value in _parsed(dsn).items()}
    return " ".join(f"{name}={value}" for name, value in shown.items()) or mask_dsn(dsn)


def passwords(dsn: str) -> set[str]:
    """Return the passwords of a text as they stand there and as they are meant."""
    found = {option: value for option, value in _parsed(dsn).items() if option in _SECRETS}
    written = {form for match in _WRITTEN.finditer(dsn) for form in match.groups() if form}
    return set(found.values()) | written | set(map(unquote, written))


def _parsed(dsn: str) -> dict[str, str]:
    try:
        return parse(dsn)
    except SettingError:
        return {}
