"""Foreign text on a line of ours: in a log, in an error's message, on a terminal.

Names of topics and owners, keys, headers, answers of HTTP endpoints and the words of a server are
written by others. A line feed in one of them would begin a line of its own in our log, which then
seems to be ours; an escape sequence would clear a terminal, and a mark that turns the direction of
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

    At most `limit` characters, the last three of which are dots where something was cut off. A text
    that was escaped before stays as it is, so to escape twice does no harm.
    """
    told = str(text)
    if len(told) <= limit and told.isprintable():
        return told
    pieces = [_escaped(character) for character in told[: limit + 1]]
    escaped = "".join(pieces)
    if len(escaped) <= limit:
        return escaped
    size = len(escaped)
    while pieces and size > limit - len(_ELLIPSIS):
        size -= len(pieces.pop())  # whole escapes: half of one would be another text
    return "".join(pieces) + _ELLIPSIS


def _escaped(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]
