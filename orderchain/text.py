"""Our text with foreign text in it: in a log, in an error's message, on a terminal.

Others write the names of topics and owners, keys, headers, the answers of HTTP endpoints and the
messages of a server. A line feed in one of them would begin a new line in our log, which then seems
to be ours; an escape sequence would clear a terminal, and a mark that changes the direction of
writing would show another text than there is.
"""

from __future__ import annotations

import sys
from typing import Final

NO_LIMIT: Final = sys.maxsize
"""For text that must be shown whole, such as data that was asked for."""

_ELLIPSIS: Final = "..."


def printable(text: object, limit: int = 500) -> str:
    """Return `str(text)` on one line: what is not printable is escaped, as `repr` escapes it.

    It has at most `limit` characters; the last three are dots where something was cut off. A text
    that was escaped before stays as it is, so escaping twice does no harm.
    """
    plain = str(text)
    if len(plain) <= limit and plain.isprintable():
        return plain
    pieces = [_escaped(character) for character in plain[: limit + 1]]
    escaped = "".join(pieces)
    if len(escaped) <= limit:
        return escaped
    size = len(escaped)
    while pieces and size > limit - len(_ELLIPSIS):
        size -= len(pieces.pop())  # whole escapes: half of one would be another text
    return "".join(pieces) + _ELLIPSIS


def _escaped(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return `1 row`, `2,500 rows` or `2 batches`; `plural` is for an irregular one."""
    regular = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural or regular}"


def reason_of(error: BaseException, limit: int = 500) -> str:
    """Return the text of `error`, or the name of its class if it has none; always one line.

    A TimeoutError, a ConnectionResetError and many errors of the drivers have no text, and
    `error or ...` never falls back: an exception is true. Several lines are joined to one.
    """
    return printable(" ".join(str(error).split()) or type(error).__name__, limit)


def reason_in_chain(chain_id: int, error: BaseException) -> str:
    """Return the reason for a line that begins with the name of the chain.

    Many errors begin with it, too, since they are also read alone.
    """
    return reason_of(error).removeprefix(f"chain {chain_id}: ")


def silent(line: str) -> None:
    """Drop the line: the progress of a caller that does not watch."""
