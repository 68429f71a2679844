"""The schema of the engine's tables: its text, and the version that this code works with."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

from orderchain.errors import SchemaError

SCHEMA_VERSION: Final = 2

_NO_WAY_UP: Final = "there is no way up: apply it to an empty database"
"""What an older version is refused with: none was released, so no migration is owed."""


def require_version(version: int | None, expected: int = SCHEMA_VERSION) -> None:
    """Raise SchemaError unless `version`, which a database says of itself, is the expected one.

    None: it says nothing.
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
