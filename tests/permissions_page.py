"""Reads the tables of docs/permissions.md."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

_PAGE = Path(__file__).parents[1] / "docs" / "permissions.md"


def table_below(heading: str) -> list[dict[str, str]]:
    """Return the rows of the first table below `heading`, by column title, without backticks."""
    text = _PAGE.read_text(encoding="utf-8")
    section = re.split(rf"^## {re.escape(heading)}$", text, flags=re.MULTILINE)[1]
    (first,) = re.findall(r"\A[^|]*((?:^\|.*\n)+)", section, flags=re.MULTILINE)
    lines = first.splitlines()
    cells = [[cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def rights_below(
    heading: str, roles: Sequence[str], columns: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], dict[str, str]]:
    """Return what each role may do with each column, by table and column.

    `columns` are those of the server: `*` stands for those that no row of the table names.
    """
    rest: dict[str, set[str]] = defaultdict(set)
    for table, column in columns:
        rest[table].add(column)
    written: dict[tuple[str, str], dict[str, str]] = {}
    # The row of the rest comes last, where all others have named theirs.
    for row in sorted(table_below(heading), key=lambda row: row["columns"] == "*"):
        table, named = row["table"], set(row["columns"].split(", "))
        for column in rest[table] if named == {"*"} else named:
            written[table, column] = {role: row[role].replace("-", "") for role in roles}
        rest[table] = set() if named == {"*"} else rest[table] - named
    return written
