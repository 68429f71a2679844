"""The schema of the engine's tables: its text, and the version that this code works with."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

SCHEMA_VERSION: Final = 2


def schema_sql() -> str:
    """Return the text of `schema.sql`, from the wheel or from a checkout."""
    packaged = files("orderchain") / "schema.sql"
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (Path(__file__).parent.parent / "schema.sql").read_text(encoding="utf-8")
