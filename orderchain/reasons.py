"""Why something failed, in words for a log, a message or a column."""

from __future__ import annotations

from orderchain.printable import printable


def reason_of(error: BaseException, limit: int = 500) -> str:
    """Return what `error` says, or the name of its class where it says nothing; always one line.

    A TimeoutError, a ConnectionResetError and many errors of the drivers come without a text, and
    `error or ...` never falls back: an exception is true. Several lines are joined to one.
    """
    return printable(" ".join(str(error).split()) or type(error).__name__, limit)
