"""One log record is one line: whatever text of others goes into it is escaped first."""

import ast
import re
from pathlib import Path

import pytest

import outbox

PACKAGE = Path(outbox.__file__).parent
ESCAPING = {"printable", "reason_of", "named_reason", "failure_text", "counted"}
OURS = {
    "each.message_id", "partition.ends_at", "reason", "name", "trouble", "more", "self.failure",
    "self._service", "topic", "at.topic",
}  # fmt: skip
"""Ids, names that were checked to be printable, words of ours, and what was escaped before."""


def calls(path: Path) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "_log"
    ]


def is_escaped(argument: ast.expr) -> bool:
    if isinstance(argument, ast.Call) and isinstance(argument.func, ast.Name):
        return argument.func.id in ESCAPING
    return ast.unparse(argument) in OURS


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_text_that_is_logged_is_escaped(path: Path) -> None:
    for call in calls(path):
        form, *arguments = call.args
        assert isinstance(form, ast.Constant), ast.unparse(call)
        kinds = re.findall(r"%[-+ #0-9.]*([a-zA-Z])", str(form.value))
        assert len(kinds) == len(arguments), ast.unparse(call)
        raw = [each for kind, each in zip(kinds, arguments, strict=True) if kind == "s"]
        assert [ast.unparse(each) for each in raw if not is_escaped(each)] == []


def test_trouble_is_what_was_escaped_before() -> None:
    """The one local name among those above that holds others' text."""
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if any(ast.unparse(each) == "trouble" for call in calls(path) for each in call.args):
            assert re.search(r"trouble = (printable|reason_of)\(", source), path
