"""Addresses and places as they may be shown: judged by their parts, so that no odd one is shown."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

_HIDDEN: Final = "***"
_SECRET_OPTIONS: Final = frozenset({"password", "sslpassword", "passfile"})
_USER: Final = re.compile(r"[\w.%+~-]*")
_COLON: Final = re.compile(":|%3a", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}:/[^\s\"'<>]*")
_AFTER: Final = ".,;:!)]}"
"""The marks that may follow an address in a sentence."""
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:@]*)(:[0-9]{0,5})?")


def mask_addresses(text: str) -> str:
    """Return a text of many words with each address in it masked.

    Where an address has a password that may go on after a blank, all is hidden up to the last `@`
    of the line, or of a text in JSON.
    """
    return "".join(map(_mask_addresses, re.split(r"([\"\n])", text)))


def _mask_addresses(text: str) -> str:
    shown, end, last_at = [], 0, text.rfind("@")
    while found := _ADDRESS.search(text, end):
        word = found[0].rstrip(_AFTER)
        mask = masked(word)
        shown.append(text[end : found.start()])
        end = found.start() + len(word)
        if end < last_at and mask != word and _COLON.search(word.partition(":/")[2]):
            mask, end = _HIDDEN, last_at
        shown.append(mask)
    return "".join([*shown, text[end:]])


def written_passwords(text: str) -> set[str]:
    """Return what may be a password in a text that may be an address, as it is written there."""
    login = text.partition("://")[2].rpartition("@")[0] or text.rpartition("@")[0]
    options = [each.partition("=") for each in re.split("[?&#\\s]", text)]
    found = {value for name, _, value in options if "password" in name.lower()}
    return (found | {*_COLON.split(login, maxsplit=1)[1:]}) - {""}


def masked(text: str) -> str:
    """Return a text that may be an address, or several, without its password, and without the
    options and the fragment of a URL that is no database's: some of them are keys.
    """
    if "://" in text and not text.startswith("postgres"):
        place, *rest = re.split("([?#])", text, maxsplit=1)
        if rest and "@" in rest[1] and _COLON.search(place.partition("://")[2]):
            return _HIDDEN  # a password that holds the mark
        return mask_dsn(place) + (f"{rest[0]}{_HIDDEN}" if rest else "")
    if "://" in text:
        return mask_dsn(text)
    login, at, hosts = text.rpartition("@")
    is_path = text.startswith(("/", ".", "~"))  # which may hold both
    return f"{_HIDDEN}@{hosts}" if at and ":" in login and not is_path else text


def mask_dsn(dsn: str) -> str:
    """Return `dsn` with its password replaced; a text that is no URL is hidden completely.

    A URL that can hold no password is returned as it is, odd ones included.
    """
    if _is_without_password(dsn):
        return dsn
    parts = _safe_parts(dsn)
    if parts is None:
        return _HIDDEN
    user_info, at, hosts = parts.netloc.rpartition("@")
    user, *password = _COLON.split(user_info, maxsplit=1)
    netloc = f"{user}{':' + _HIDDEN if password else ''}{at}{hosts}"
    options = urlencode(_masked_options(parts.query), safe="*")
    return urlunsplit((parts.scheme, netloc, parts.path, options, ""))


def _is_without_password(dsn: str) -> bool:
    """Return whether `dsn` is a URL that has no place for a password."""
    mark, place = dsn.partition("://")[1:]
    if not mark or not dsn.isprintable() or "pass" in unquote(dsn).lower():
        return False
    options = place.partition("?")[2]
    if options and not all("=" in option for option in options.split("&")):
        return False
    login, at, _ = place.rpartition("@")
    if _COLON.search(login):
        return False
    hosts = re.split("[/?#]", place, maxsplit=1)[0]
    # Without an `@`, what follows a colon may be a password whose host was forgotten.
    hosts = unquote(hosts)
    return bool(_USER.fullmatch(login)) if at else all(map(_HOST.fullmatch, hosts.split(",")))


def _safe_parts(dsn: str) -> SplitResult | None:
    """Return the parts of `dsn`, or None if a piece of a password may be in the wrong one.

    A bare `/`, `?` or `#` in a password ends the host part too early: then an `@` comes after it,
    or the password's beginning is where the port should be.
    """
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return None
    user_info, _, hosts = parts.netloc.rpartition("@")
    around = f"{user_info.partition(':')[0]}{parts.path}?{parts.query}#{parts.fragment}"
    is_plain = "@" not in around and "password=" not in parts.path.lower()
    is_url = bool(parts.scheme and parts.netloc) and all(map(_HOST.fullmatch, hosts.split(",")))
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
