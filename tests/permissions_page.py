"""Reads the tables of docs/permissions.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_PAGE: Final = Path(__file__).parents[1] / "docs" / "permissions.md"


def table_below(heading: str) -> list[dict[str, str]]:
    """Return the rows of the first table below `heading`, by column title, without backticks.

    A row for several columns of a table is one for each of them.
    """
    text = _PAGE.read_text(encoding="utf-8")
    section = re.split(rf"^## {re.escape(heading)}$", text, flags=re.MULTILINE)[1]
    (first,) = re.findall(r"\A[^|]*((?:^\|.*\n)+)", section, flags=re.MULTILINE)
    lines = first.splitlines()
    cells = [[cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in lines]
    rows = [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]
    return [
        row | ({"column": column} if "column" in row else {})
        for row in rows
        for column in row.get("column", "").split(", ")
    ]
