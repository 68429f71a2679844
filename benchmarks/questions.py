"""The questions by name, in the order in which they are asked."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from benchmarks.question import Question

NAMES = (
    "comparison",
    "batch_size",
    "switches",
    "cpu",
    "open_load",
    "checkpoint",
    "scale",
    "verifier",
)

QUICK = ("comparison", "batch_size", "switches", "open_load")
"""Those that a quick run asks."""


def known_names() -> tuple[str, ...]:
    """Return the names of all questions, those of programs of their own among them."""
    from benchmarks.programs import PROGRAMS

    return (*NAMES, *PROGRAMS)


def question_of(name: str) -> Question:
    """Return the module that asks `name`."""
    return cast("Question", import_module(f"benchmarks.{name}"))
