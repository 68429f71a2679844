"""Addresses that carry secrets, and how to show them."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

_HIDDEN: Final = "***"
_SECRET_OPTIONS: Final = frozenset({"password", "sslpassword", "passfile"})
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:@]*)(:[0-9]{0,5})?")


def mask_dsn(dsn: str) -> str:
    """Return `dsn` with its password replaced; what is no URL is hidden whole."""
    parts = _safe_parts(dsn)
    if parts is None:
        return _HIDDEN
    user_info, at, hosts = parts.netloc.rpartition("@")
    user, colon, _ = user_info.partition(":")
    netloc = f"{user}{colon and ':' + _HIDDEN}{at}{hosts}"
    options = urlencode(_masked_options(parts.query), safe="*")
    return urlunsplit((parts.scheme, netloc, parts.path, options, ""))


def _safe_parts(dsn: str) -> SplitResult | None:
    """Return the parts of `dsn`, or None if a piece of a password may stand in the wrong one.

    A bare `/`, `?` or `#` in a password ends the host part too early: then an `@` stands behind it,
    or the password's beginning where the port should be.
    """
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return None
    hosts = parts.netloc.rpartition("@")[2].split(",")
    behind = f"{parts.path}?{parts.query}#{parts.fragment}"
    is_plain = "@" not in behind and "password=" not in parts.path.lower()
    is_url = bool(parts.scheme and parts.netloc) and all(map(_HOST.fullmatch, hosts))
    return parts if is_url and is_plain else None


def _masked_options(query: str) -> list[tuple[str, str]]:
    """Return the options up to the first secret one: a bare `&` in it would begin another."""
    shown = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name.lower() in _SECRET_OPTIONS or "password" in f"{name}={value}".lower():
            shown.append((name if name.lower() in _SECRET_OPTIONS else _HIDDEN, _HIDDEN))
            break
        shown.append((name, value))
    return shown
