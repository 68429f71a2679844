"""Does a wrong: puts it in the place of the source, before anything has read that."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from .mutants import ROOT, Mutant, mutated, mutated_text

LOADED: list[str] = []
"""What was read instead: a run in which nothing was shows nothing."""


class _Wrong(MetaPathFinder, Loader):
    """Finds one module with a wrong in it."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._module = mutant.path.removesuffix(".py").replace("/", ".")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != self._module:
            return None
        return ModuleSpec(fullname, self, origin=str(ROOT / self._mutant.path))

    def exec_module(self, module: ModuleType) -> None:
        LOADED.append(module.__name__)
        path = str(ROOT / self._mutant.path)
        exec(compile(mutated(self._mutant), path, "exec"), module.__dict__)  # noqa: S102


def do(mutant: Mutant) -> None:
    """Let this process read a source with a wrong in it."""
    if mutant.path.endswith(".py"):
        sys.meta_path.insert(0, _Wrong(mutant))
        return
    path, wrong, read = ROOT / mutant.path, mutated_text(mutant), Path.read_text

    def read_wrongly(self: Path, *given: Any, **named: Any) -> str:
        if self.name != path.name or self.resolve() != path:
            return read(self, *given, **named)
        LOADED.append(mutant.path)
        return wrong

    Path.read_text = read_wrongly  # type: ignore[method-assign]
