"""Each wrong changes one thing, and what shows it names its place."""

import ast

import pytest

from chain_kernel.sql import load_sql

from .mutants import ROOT, mutants_of, mutated, mutated_statement
from .run import TARGETS


@pytest.mark.parametrize("path", [path for path in TARGETS if path.endswith(".py")])
def test_each_wrong_changes_the_module(path: str) -> None:
    whole = ast.dump(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    wrongs = [ast.dump(mutated(mutant)) for mutant in mutants_of(path)]
    assert len(wrongs) > 20
    assert whole not in wrongs


def test_each_condition_of_a_statement_is_left_out_by_one_wrong() -> None:
    whole = dict(load_sql("sequencer", "queries.sql"))
    for mutant in mutants_of("sequencer/queries.sql"):
        wrong = mutated_statement(mutant, whole)
        (changed,) = [name for name in whole if whole[name] != wrong[name]]
        assert mutant.shown.startswith(f"{changed} without ")
        assert wrong[changed].count(" OR true)") == whole[changed].count(" OR true)") + 1
