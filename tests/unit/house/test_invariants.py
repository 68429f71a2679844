"""Every invariant of `docs/invariants.md` has a test that is marked with its name."""

from __future__ import annotations

import ast
import re

from tests.sources import ROOT, modules


def marked() -> set[str]:
    """Return the names that marks of tests have."""
    return {
        ast.literal_eval(name)
        for module in modules("tests")
        if "mark.invariant" in module.text
        for node in ast.walk(module.tree)
        for mark in getattr(node, "decorator_list", ())
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.invariant"
        for name in mark.args
    }


def test_each_invariant_of_the_design_has_a_test_and_each_mark_names_one() -> None:
    text = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")
    stated = re.findall(r"^\| \*\*([SL]\d+)\*\* \|", text, flags=re.MULTILINE)
    assert stated == [f"S{n}" for n in range(1, 14)] + [f"L{n}" for n in range(1, 8)]
    assert marked() == set(stated)
