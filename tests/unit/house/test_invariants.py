"""Every invariant of `docs/invariants.md` has a test that is marked with its name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def marked() -> dict[str, list[str]]:
    """Return the tests that hold each invariant."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == (
                    "pytest.mark.invariant"
                ):
                    for name in map(ast.literal_eval, decorator.args):
                        found.setdefault(name, []).append(f"{path.name}::{node.name}")
    return found


def stated() -> list[str]:
    text = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")
    return re.findall(r"^\| \*\*([SL]\d+)\*\* \|", text, flags=re.MULTILINE)


def test_invariants_are_those_of_the_design() -> None:
    assert stated() == [f"S{n}" for n in range(1, 14)] + [f"L{n}" for n in range(1, 8)]


def test_each_invariant_has_a_test_and_each_mark_names_one() -> None:
    tests = marked()
    assert sorted(set(stated()) - tests.keys()) == [], "invariants without a test"
    assert sorted(tests.keys() - set(stated())) == [], "marks of no invariant"
