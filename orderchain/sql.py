"""Loads named SQL blocks from `.sql` files.

A block begins with a line `-- name: purpose` and runs to the next such line. Values travel as `$n`
only; nothing is ever formatted into a statement.
"""

from __future__ import annotations

import re
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_BLOCK: Final = re.compile(r"^-- (?P<name>[a-z][a-z0-9_]*): (?P<purpose>.+)$", re.MULTILINE)


def load_sql(package: str, file_name: str) -> Mapping[str, str]:
    """Return the statements of `file_name` inside `package`, by name.

    Raises ValueError when a name stands twice, a block is empty, or the file has none.
    """
    return parse_sql((files(package) / file_name).read_text(encoding="utf-8"))


def parse_sql(text: str) -> Mapping[str, str]:
    """Return the named blocks of `text`; see `load_sql`."""
    statements: dict[str, str] = {}
    blocks = list(_BLOCK.finditer(text))
    if not blocks:
        raise ValueError("no named SQL block found")
    ends = [block.start() for block in blocks[1:]] + [len(text)]
    for block, end in zip(blocks, ends, strict=True):
        name, statement = block["name"], text[block.end() : end].strip().rstrip(";")
        if name in statements or not statement:
            raise ValueError(f"SQL block {name!r} stands twice or is empty")
        statements[name] = statement
    return MappingProxyType(statements)
