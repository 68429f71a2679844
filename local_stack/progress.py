"""How the stack tells its caller what it is doing: one line of text at a time."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]
"""Takes one line, without a newline. Called from the thread that called the stack."""


def silent(line: str) -> None:
    """Tell nobody."""
