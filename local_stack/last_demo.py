"""The last demo on a stack, with what it has left; `chainctl ... --demo` looks at it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from chain_kernel.files import read_bounded

if TYPE_CHECKING:
    from local_stack import LocalStack

FOLDER: Final = "demo"
"""The folder below the stack's where the demos keep their inputs and journals."""

_FILE: Final = "last.json"
_BYTES_MAX: Final = 64 * 1024


class LastDemo(Struct, frozen=True, kw_only=True):
    """The chain of a demo and the journal of its matching service."""

    chain: int
    journal: str

    @property
    def second_journal(self) -> str:
        """The place in which another receiver writes the same chain."""
        return str(Path(self.journal).with_name("journal-again.jsonl"))

    @property
    def sources(self) -> list[str]:
        """Every place that holds the chain, as `chainctl verify --source` names it."""
        return ["database", "topic", f"journal:{self.journal}"]


def last_demo(stack: LocalStack) -> LastDemo | None:
    """Return what the last demo on `stack` has left; None where none has run to its end."""
    try:
        return msgspec.json.decode(
            read_bounded(stack.directory / FOLDER / _FILE, _BYTES_MAX), type=LastDemo
        )
    except (OSError, ValueError):
        return None


def leave_demo(stack: LocalStack, left: LastDemo) -> None:
    """Write down what a demo leaves, whole or not at all: another demo may end meanwhile."""
    path = stack.directory / FOLDER / _FILE
    new = path.with_suffix(f".{os.getpid()}")
    new.write_bytes(msgspec.json.encode(left))
    new.replace(path)
