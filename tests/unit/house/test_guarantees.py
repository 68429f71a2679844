"""Every guarantee of `docs/guarantees.md` has a test that is marked with its number."""

import ast
import re

from tests.sources import ROOT, modules


def marked() -> set[str]:
    """Return the names that marks of tests have."""
    return {
        ast.literal_eval(name)
        for module in modules("tests")
        if "mark.guarantee" in module.text
        for node in ast.walk(module.tree)
        for mark in getattr(node, "decorator_list", ())
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.guarantee"
        for name in mark.args
    }


def test_each_guarantee_has_a_test_and_each_mark_names_one() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    stated = re.findall(r"^\| \*\*(G\d+)\*\* \|", text, flags=re.MULTILINE)
    assert stated == [f"G{n}" for n in range(1, 21)]
    assert marked() == set(stated)
