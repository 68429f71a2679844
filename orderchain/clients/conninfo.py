"""Texts that name a database, as libpq reads them: URLs and keywords, services, environment."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from orderchain.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

_HIDDEN: Final = "***"
_EXPECTED: Final = "a URL like postgresql://user@host:5432/database, or keywords like host=... "
_ENCODED: Final = f"{_EXPECTED}(in a URL, encode / ? # @ : % of a password as %2F and the like)"

_URL: Final = re.compile(
    r"postgres(?:ql)?://(?:(?P<login>[^@/?#]*)@)?(?P<hosts>[^@/?#]*)"
    r"(?:/(?P<dbname>[^@?#]*))?(?:\?(?P<options>[^@#]*))?"
)
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:]*)(?::([0-9]*))?")
_KEYWORD: Final = re.compile(
    r"\s*(?P<name>\w+)\s*=\s*(?:'(?P<quoted>(?:[^'\\]|\\.)*)'|(?P<plain>(?:[^\s'\\]|\\.)*))(?:\s+|$)",
    re.DOTALL,
)

_ENVIRONMENT: Final = {
    "PGHOST": "host",
    "PGPORT": "port",
    "PGDATABASE": "dbname",
    "PGUSER": "user",
    "PGPASSWORD": "password",
    "PGPASSFILE": "passfile",
    "PGSSLMODE": "sslmode",
    "PGSSLROOTCERT": "sslrootcert",
    "PGSSLCRL": "sslcrl",
    "PGSSLCERT": "sslcert",
    "PGSSLKEY": "sslkey",
    "PGSSLNEGOTIATION": "sslnegotiation",
    "PGSSLMINPROTOCOLVERSION": "ssl_min_protocol_version",
    "PGTARGETSESSIONATTRS": "target_session_attrs",
    "PGCONNECT_TIMEOUT": "connect_timeout",
    "PGOPTIONS": "options",
    "PGCHANNELBINDING": "channel_binding",
    "PGREQUIREAUTH": "require_auth",
    "PGGSSENCMODE": "gssencmode",
}

_WITHOUT_EFFECT: Final = {
    "channel_binding": ("disable", "prefer"),
    "gssencmode": ("disable", "prefer"),
    "sslsni": ("1",),
    "client_encoding": ("auto", "utf8", "UTF8", "utf-8", "UTF-8"),
}
"""Options that the drivers lack, with the values that ask nothing of them."""

_ALIASES: Final = {"database": "dbname", "username": "user"}


def parse(text: str) -> dict[str, str]:
    """Return the options of a text by libpq's names; empty ones are left out.

    Raises SettingError, which shows nothing of the text: it is not known where a password ends.
    """
    if text.startswith(("postgresql://", "postgres://")):
        found = _parse_url(text)
    elif "=" in text and "://" not in text:
        found = _parse_keywords(text)
    else:
        raise SettingError("database", _HIDDEN if text else "", _EXPECTED.rstrip())
    return {_ALIASES.get(name, name): value for name, value in found.items() if value}


def completed(given: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Add what `given` leaves out from its service, then from the environment.

    Raises SettingError for a service that is not there, and for an option that asks of the drivers
    what they cannot do.
    """
    whole = dict(given)
    named = {
        name: environ[variable] for variable, name in _ENVIRONMENT.items() if variable in environ
    }
    service = whole.pop("service", "") or environ.get("PGSERVICE", "")
    file = whole.pop("servicefile", "") or environ.get("PGSERVICEFILE", "")
    if service:
        home = Path(environ.get("HOME") or Path.home())
        whole = _service(service, Path(file) if file else home / ".pg_service.conf") | whole
    whole = {name: value for name, value in named.items() if value} | whole
    for name, harmless in _WITHOUT_EFFECT.items():
        value = whole.pop(name, "")
        if value and value not in harmless:
            raise SettingError(name, value, f"{' or '.join(harmless)}: the drivers know no other")
    if whole.pop("require_auth", ""):
        raise SettingError("require_auth", "given", "none: the drivers do not know it")
    return whole


def _parse_url(text: str) -> dict[str, str]:
    match = _URL.fullmatch(text)
    if match is None:
        raise SettingError("database", _HIDDEN, _ENCODED)
    user, _, password = (match["login"] or "").partition(":")
    hosts, ports = _parse_hosts(match["hosts"])
    found = {"user": user, "password": password, "host": hosts, "port": ports}
    found["dbname"] = match["dbname"] or ""
    for option in (match["options"] or "").split("&"):
        name, equals, value = option.partition("=")
        if option and not equals:
            raise SettingError("database", _HIDDEN, _ENCODED)
        found |= {unquote(name): value} if value else {}
    return {name: unquote(value) for name, value in found.items() if value}


def _parse_hosts(text: str) -> tuple[str, str]:
    """Return hosts and ports of a URL, each with commas between; no ports where none is given."""
    matches = [_HOST.fullmatch(each) for each in text.split(",")]
    if not all(matches):
        raise SettingError("database", _HIDDEN, _ENCODED)
    hosts = ",".join(match[1] for match in matches if match)
    ports = [match[2] or "" for match in matches if match]
    return hosts, ",".join(ports) if any(ports) else ""


def _parse_keywords(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    text = text.strip()
    while at < len(text):
        match = _KEYWORD.match(text, at)
        if match is None:
            raise SettingError("database", _HIDDEN, f"{_EXPECTED}(values with spaces in '...')")
        value = match["plain"] if match["quoted"] is None else match["quoted"]
        found[match["name"]] = re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)
        at = match.end()
    return found


def _service(name: str, path: Path) -> dict[str, str]:
    """Return the options of a service. Raises SettingError."""
    services = configparser.ConfigParser(interpolation=None)
    try:
        services.read_string(path.read_text())
        return {_ALIASES.get(key, key): value for key, value in services[name].items() if value}
    except (OSError, UnicodeDecodeError, configparser.Error, KeyError):
        raise SettingError("service", name, f"a service in {path}") from None
