"""Does the wrong that `ORDERCHAIN_MUTANT` names, before anything of the engine is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

import chain_kernel.sql

from .mutants import ROOT, Mutant, mutated, mutated_statement

LOADED: list[str] = []
"""What was done: a run in which it never was shows nothing."""


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


def _do(mutant: Mutant) -> None:
    if mutant.path.endswith(".py"):
        sys.meta_path.insert(0, _Wrong(mutant))
        return
    parse = chain_kernel.sql.parse_sql
    whole = parse((ROOT / mutant.path).read_text(encoding="utf-8"))

    def parse_wrongly(text: str) -> Mapping[str, str]:
        statements = parse(text)
        if statements != whole:
            return statements
        LOADED.append(mutant.path)
        return mutated_statement(mutant, dict(statements))

    chain_kernel.sql.parse_sql = parse_wrongly


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that was of no use."""
    if not LOADED:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


_path, _, _number = os.environ["ORDERCHAIN_MUTANT"].rpartition(":")
_do(Mutant(_path, int(_number), ""))
