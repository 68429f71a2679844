"""Statements in files, by name, and the schema that they expect.

Loads named SQL blocks from `.sql` files.

A block begins with a line `-- name: purpose` and runs to the next such line. Values are passed as
`$n` only; nothing is ever formatted into a statement.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from orderchain.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping


_BLOCK: Final = re.compile(r"^-- (?P<name>[a-z][a-z0-9_]*): (?P<purpose>.+)$", re.MULTILINE)


def load_sql(package: str, file_name: str) -> Mapping[str, str]:
    """Return the statements of `file_name` inside `package`, by name.

    Raises ValueError when a name is repeated, a block is empty, or the file has none.
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
            raise ValueError(f"SQL block {name!r} is there twice or is empty")
        statements[name] = statement
    return MappingProxyType(statements)


SCHEMA_VERSION: Final = 2

_NO_WAY_UP: Final = "there is no way up: apply it to an empty database"
"""Why an older version is refused: none was released, so no migration is needed."""


def require_version(version: int | None, expected: int = SCHEMA_VERSION) -> None:
    """Raise SchemaError unless `version`, which a database reports, is the expected one.

    None: it reports no version.
    """
    if version == expected:
        return
    hint = ""
    if version is not None:
        hint = "; use a newer orderchain" if version > expected else f"; {_NO_WAY_UP}"
    raise SchemaError("schema version", version, f"{expected}{hint}")


def schema_sql() -> str:
    """Return the text of `schema.sql`, from the wheel or from a checkout."""
    packaged = files("orderchain") / "schema.sql"
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (Path(__file__).parent.parent / "schema.sql").read_text(encoding="utf-8")
