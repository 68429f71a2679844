"""Shows foreign text on one line: what others wrote must not write lines of ours."""

from __future__ import annotations

from typing import Final

CHARACTERS_MAX: Final = 500
"""Of one shown text: a log record is read by a person."""

_CUT: Final = "…"


def printable(text: object, limit: int = CHARACTERS_MAX) -> str:
    r"""Return `str(text)` with every character that is not printable escaped as `repr` does.

    Newlines become `\n`, the escape character `\x1b`, controls of the writing direction `\u202e`;
    lone surrogates are escaped, too. What is longer than `limit` characters ends with an ellipsis.
    """
    told = str(text)
    cut = told[: limit + 1]  # escapes only make it longer
    shown = cut if cut.isprintable() else "".join(map(_shown, cut))
    return shown if len(shown) <= limit else shown[: limit - len(_CUT)] + _CUT


def _shown(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]
