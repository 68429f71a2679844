"""Errors of the local stack, sorted by what the caller does next.

    StackError
    ├── SetupNeeded      install something, then retry
    ├── FolderUnusable   choose another folder
    ├── StackMissing     bring the stack up first
    ├── FetchFailed      look at the network, then retry
    ├── StatementFailed  psql refused a statement
    └── ServerFailed     a server did not start or stop; carries the end of its log

Each message is one line, ready to be shown as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class StackError(Exception):
    """The local stack cannot do what was asked."""


class SetupNeeded(StackError):
    """A program that the stack needs is not installed; the message says which and how to get it."""


class FolderUnusable(StackError):
    """A folder belongs to somebody else, is held by another process, or cannot be reached."""


class StackMissing(StackError):
    """There is no stack in this folder yet."""


class FetchFailed(StackError):
    """The jars could not be fetched; nothing incomplete is left."""


class StatementFailed(StackError):
    """PostgreSQL refused a statement of the set-up, or could not be reached."""


class ServerFailed(StackError):
    """A server did not start, or did not stop.

    Attributes:
        log_path: the server's whole log.
        log_tail: its last lines, may be empty.
    """

    def __init__(self, message: str, *, log_path: Path, log_tail: str) -> None:
        super().__init__(message)
        self.log_path = log_path
        self.log_tail = log_tail
