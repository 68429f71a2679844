"""The wrongs that may be done to a source: a comparison, a sign, a condition of a statement."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from chain_kernel.sql import parse_sql

ROOT = Path(__file__).parents[2]

_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add,
}  # fmt: skip

_CONDITION = re.compile(r"\b(?:AND|WHERE) ([\w.]+ (?:=|>=|<=|<|>) \$\d+)(?!\d|::)")
"""One of several that a statement asks for, by a value."""


class Mutant(NamedTuple):
    """A wrong: in which file, the number of its place there, and what is there."""

    path: str
    number: int
    shown: str

    @property
    def name(self) -> str:
        """What names it as long as its line stays as it is."""
        return f"{self.path}: {self.shown}"


def mutants_of(path: str) -> list[Mutant]:
    """Return all of a file, `.py` or `.sql`."""
    text = (ROOT / path).read_text(encoding="utf-8")
    found = _in_sql(text) if path.endswith(".sql") else _in_python(text)
    return [Mutant(path, number, shown) for number, shown in enumerate(found)]


def mutated(mutant: Mutant) -> ast.Module:
    """Return a module with the wrong in it."""
    tree = ast.parse((ROOT / mutant.path).read_text(encoding="utf-8"))
    node = list(_places(tree))[mutant.number]
    if isinstance(node, ast.Compare):
        node.ops = [_OTHER[type(node.ops[0])]()]  # type: ignore[list-item]
    elif isinstance(node, ast.BoolOp | ast.BinOp):
        node.op = _OTHER[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Constant):
        node.value = not node.value
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.copy_location(ast.Constant(value=True), node.test)
    return ast.fix_missing_locations(tree)


def mutated_statement(mutant: Mutant, statements: dict[str, str]) -> dict[str, str]:
    """Return the statements of a file with the condition of one left out."""
    places = [(name, found) for name, each in statements.items() for found in _conditions(each)]
    name, found = places[mutant.number]
    text = statements[name]
    wrong = f"{text[: found.start(1)]}({found[1]} OR true){text[found.end() :]}"
    return {**statements, name: wrong}


def _in_sql(text: str) -> Iterator[str]:
    for name, statement in parse_sql(text).items():
        yield from (f"{name} without {found[1]}" for found in _conditions(statement))


def _conditions(statement: str) -> list[re.Match[str]]:
    bare = re.sub(r"--.*", lambda comment: " " * len(comment[0]), statement)
    return [
        found
        for found in _CONDITION.finditer(bare)
        if not found[1].startswith(("chain_id", "h.chain_id", "head.chain_id"))
    ]


def _in_python(text: str) -> Iterator[str]:
    lines = text.splitlines()
    for node in _places(ast.parse(text)):
        kind = type(node).__name__
        yield f"{kind} at {node.col_offset} of {lines[node.lineno - 1].strip()}"


def _places(tree: ast.AST) -> Iterator[ast.expr | ast.If]:
    """Yield what can be done wrong; not what is only shown, or checked by types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Compare):
            is_one = len(node.ops) == 1 and type(node.ops[0]) in _OTHER
        elif isinstance(node, ast.BoolOp | ast.BinOp):
            is_one = type(node.op) in _OTHER
        elif isinstance(node, ast.Constant):
            is_one = isinstance(node.value, bool)
        else:
            is_one = isinstance(node, ast.If | ast.IfExp)
        if is_one:
            yield node  # type: ignore[misc]
