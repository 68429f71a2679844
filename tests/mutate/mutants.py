"""The wrongs that may be done to a source: a comparison, a sign, a condition of a statement."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add,
}  # fmt: skip

_SILENT = re.compile(r"--.*|'[^']*'")
"""What is no condition, whatever is in it: comments and texts."""
_NAMES = re.compile(r"^(?:-- (\w+): |CREATE FUNCTION (\w+))", re.MULTILINE)
_BODY = re.compile(r"AS \$\$\n(.*?)^\$\$", re.MULTILINE | re.DOTALL)
_BEGINS = re.compile(r"\b(?P<of>WHERE|AND|ON|(?<!END )IF|ELSIF)\b(?!\s+(?:CONFLICT|CASE)\b)\s+")
_BETWEEN = re.compile(r"\bBETWEEN\b(?:(?!\b(?:AND|OR|THEN)\b)[^()]|\([^()]*\))*$")
_ENDS = re.compile(
    r"[();]|\b(?:AND|OR|INTO|WHERE|GROUP|ORDER|LIMIT|FETCH|RETURNING|UNION|(?:LEFT |CROSS )?JOIN"
    r"|LOOP|(?<!DISTINCT )FROM|FOR|ON|WINDOW|THEN|OFFSET|END)\b|\Z"
)


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
    found = list(_in_sql(text) if path.endswith(".sql") else _in_python(text))
    return [
        Mutant(
            path,
            number,
            shown if (of_it := found[:number].count(shown)) == 0 else f"{shown} #{of_it + 1}",
        )
        for number, shown in enumerate(found)
    ]


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


def mutated_text(mutant: Mutant) -> str:
    """Return the text of a file of statements, or functions, with a condition of one left out."""
    text = (ROOT / mutant.path).read_text(encoding="utf-8")
    begin, end, wrong = list(_conditions(text))[mutant.number]
    return f"{text[:begin]}({text[begin:end]} {wrong}){text[end:]}"


def _in_sql(text: str) -> Iterator[str]:
    names = list(_NAMES.finditer(text))
    for begin, end, _ in _conditions(text):
        name = [found for found in names if found.start() < begin][-1]
        yield f"{name[1] or name[2]} without {' '.join(text[begin:end].split())}"


def _conditions(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield where each begins and ends, and what undoes it."""
    bare = _SILENT.sub(_silenced, text)
    for first, last in _bodies(text):
        for found in _BEGINS.finditer(bare, first, last):
            if not _BETWEEN.search(bare, first, found.start()):
                end = _end(bare[:last], found.end())
                wrong = "AND false" if found["of"].endswith("IF") else "OR true"
                yield found.end(), found.end() + len(bare[found.end() : end].rstrip()), wrong


def _bodies(text: str) -> list[tuple[int, int]]:
    """Return where each statement is; of a schema, the body of each function."""
    if "CREATE TABLE" in text:
        return [body.span(1) for body in _BODY.finditer(text)]
    ends = [found.start() for found in _NAMES.finditer(text)]
    return list(pairwise([*ends, len(text)]))


def _silenced(found: re.Match[str]) -> str:
    return (" " if found[0].startswith("--") else "_") * len(found[0])


def _end(bare: str, begin: int) -> int:
    depth, is_between = 0, False
    for found in _ENDS.finditer(bare, begin):
        if found[0] == "(":
            depth += 1
        elif found[0] == ")" and depth:
            depth -= 1
        elif depth == 0:
            if found[0] != "AND" or is_between or "BETWEEN" not in bare[begin : found.start()]:
                return found.start()
            is_between = True
    raise AssertionError("a condition has an end")


def _in_python(text: str) -> Iterator[str]:
    lines = text.splitlines()
    for node in _places(ast.parse(text)):
        kind = type(node).__name__
        yield f"{kind} at {node.col_offset} of {lines[node.lineno - 1].strip()}"


def _places(tree: ast.AST) -> Iterator[ast.expr | ast.If]:
    """Yield what can be done wrong; not what is only shown, or checked by types."""
    typed = {
        id(part)
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef)
        for given in (*each.decorator_list, *each.keywords)
        for part in ast.walk(given)
    }
    for node in ast.walk(tree):
        is_typed = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if is_typed or id(node) in typed:
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
