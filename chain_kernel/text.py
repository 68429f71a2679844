"""Our text with foreign text in it: in a log, in an error's message, on a terminal.

Others write the names of topics and owners, keys, headers, the answers of HTTP endpoints and the
messages of a server. A line feed in one of them would begin a new line in our log, which then seems
to be ours; an escape sequence would clear a terminal, and a mark that changes the direction of
writing would show another text than there is.
"""

from __future__ import annotations

import re
import shlex
import sys
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from logging import Logger

NO_LIMIT: Final = sys.maxsize
"""For text that must be shown whole, such as data that was asked for."""

SUMMED_SECONDS: Final = 30.0
"""Time between two lines about the same thing, where each record could cause one."""

_ELLIPSIS: Final = "..."


def printable(text: object, limit: int = 500) -> str:
    """Return `str(text)` on one line: what is not printable is escaped, as `repr` escapes it.

    It has at most `limit` characters; the last three are dots where something was cut off. A text
    that was escaped before stays as it is, so escaping twice does no harm.
    """
    plain = text_of(text)
    if len(plain) <= limit and plain.isprintable():
        return plain
    pieces = [
        character if character.isprintable() else repr(character)[1:-1]
        for character in plain[: limit + 1]
    ]
    escaped = "".join(pieces)
    if len(escaped) <= limit:
        return escaped
    size = len(escaped)
    while pieces and size > limit - len(_ELLIPSIS):
        size -= len(pieces.pop())  # whole escapes: half of one would be another text
    return "".join(pieces) + _ELLIPSIS


def text_of(foreign: object) -> str:
    """Return `str(foreign)`, also where an error of others raises as it is asked for its text."""
    try:
        return str(foreign)
    except Exception as failed:  # noqa: BLE001 - whatever it is, it must not hide what happened
        return f"no text: {type(failed).__name__} in its __str__"


def named_reason(error: BaseException | None) -> str:
    """Return the class and the text of an error, on one line; "none" for None."""
    if error is None:
        return "none"
    name, reason = type(error).__name__, reason_of(error)
    return name if reason == name else f"{name}: {reason}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return `1 row`, `2,500 rows` or `2 batches`; `plural` is for an irregular one."""
    regular = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural or regular}"


def not_installed(package: str, extra: str) -> str:
    """Return that `package` is missing, and the command that installs it into this interpreter.

    pip takes orderchain itself as it is installed here, so the name need not be on an index; and
    a `pip` of another interpreter would look for it there.
    """
    command = f"{shlex.quote(sys.executable or 'python3')} -m pip install 'orderchain[{extra}]'"
    return f"{package} is not installed, which is in the extra {extra}: {command}"


def reason_of(error: BaseException) -> str:
    """Return the text of `error`, or the name of its class if it has none; always one line.

    A TimeoutError, a ConnectionResetError and many errors of the drivers have no text, and
    `error or ...` never falls back: an exception is true. Several lines are joined to one. What
    only names the inside of the PostgreSQL driver is said in words.
    """
    text = " ".join(text_of(error).split()) or type(error).__name__
    if type(error).__module__.startswith("asyncpg.") and _DRIVER_INSIDE.search(text):
        return "the connection to the database broke"
    return printable(text)


_DRIVER_INSIDE: Final = re.compile(
    r"cannot switch to state|protocol state|cannot call \w+\.|connection is closed"
)
"""Refusals of asyncpg on a connection that has broken: of its own states and methods."""


def reason_in_chain(chain_id: int, error: BaseException) -> str:
    """Return the reason for a line that begins with the name of the chain.

    Many errors begin with it, too, since they are also read alone.
    """
    return reason_of(error).removeprefix(f"chain {chain_id}: ")


def silent(line: str) -> None:
    """Drop the line: the progress of a caller that does not watch."""


class SummedLog:
    """Logs what may come again and again: the first at once, then a sum per kind and interval.

    A sender whose records are all refused would else write as many lines as it sends records, and
    a database that is away a line per try.
    """

    def __init__(self, log: Logger, level: int, seconds: float = SUMMED_SECONDS) -> None:
        """`seconds` pass between two lines of one kind."""
        self._log = log
        self._level = level
        self._seconds = seconds
        self._kinds: dict[str, _Unlogged] = {}
        self._due_at = inf  # the earliest of the kinds'

    def add(self, kind: str, count: int, line: Callable[[int], str]) -> None:
        """Add `count` to what is logged as `line(sum)`; the newest line of a kind is used.

        There must be few kinds: no text of a record may be a part of one.
        """
        now = monotonic()
        known = self._kinds.get(kind)
        self._kinds[kind] = _Unlogged(
            line, count + (known.times if known else 0), known.due_at if known else now
        )
        if known is None or now >= self._due_at:
            self._write(now)

    def repeat(self, line: str) -> None:
        """Log why a try has failed; the same line again is counted."""
        self.add(line, 1, lambda count: line if count == 1 else f"{line} ({count:,} times)")

    def log(self) -> None:
        """Log what was added and not logged yet: once it is over, or what adds ends."""
        if self._kinds:
            self._write(inf)
            self._kinds.clear()

    def _write(self, now: float) -> None:
        for kind, unlogged in list(self._kinds.items()):
            if unlogged.due_at > now:
                continue
            del self._kinds[kind]
            if unlogged.times:
                self._log.log(self._level, "%s", unlogged.line(unlogged.times))
                self._kinds[kind] = _Unlogged(unlogged.line, 0, now + self._seconds)
        self._due_at = min((each.due_at for each in self._kinds.values()), default=inf)


class _Unlogged(NamedTuple):
    """One kind of line: how often it came since the last one, how to say it, and when to."""

    line: Callable[[int], str]
    times: int
    due_at: float
