"""Addresses that carry secrets, and how to show them."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

_HIDDEN: Final = "***"
_SECRET_OPTIONS: Final = frozenset({"password", "sslpassword", "passfile"})


def mask_dsn(dsn: str) -> str:
    """Return `dsn` with its password replaced; what is no URL is hidden whole."""
    try:
        parts = urlsplit(dsn)
        if not parts.scheme or not parts.netloc:
            return _HIDDEN
        user_info, at, address = parts.netloc.rpartition("@")
        user, colon, _ = user_info.partition(":")
        options = [
            (name, _HIDDEN if name.lower() in _SECRET_OPTIONS else value)
            for name, value in parse_qsl(parts.query, keep_blank_values=True)
        ]
    except ValueError:
        return _HIDDEN
    netloc = f"{user}{colon and ':' + _HIDDEN}{at}{address}"
    return urlunsplit((parts.scheme, netloc, parts.path, urlencode(options, safe="*"), ""))
