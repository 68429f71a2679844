"""Rows of one source as Spark reads them, in the columns that every check works on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documents use

from chain_verifier.sources.content import CONTENT
from chain_verifier.verification import OpenTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


HAS_NULL: Final = "has_null"
"""True when any column of the row is NULL: hashes leave NULLs out, so they are marked here."""

MALFORMED: Final = "malformed"
"""True for what is no row at all: a line that cannot be read."""

BLOCK: Final = "block"
POSITION: Final = "position"
"""The place of a row in a file: its block, and its position among the rows of that block. Positions
rise by one from row to row of a block; blocks are named by their offset in the file."""


ROWS: Final = "rows_held"
"""Number of rows of a path, which is described by the `pid` of its first row, its `first_id`, and
the `id` of its last row."""


class Table(OpenTable, Protocol):
    """One source, opened: its rows, read again at every use."""

    @property
    def rows(self) -> DataFrame:
        """`CONTENT`, `has_null`, `malformed`, and for a file of lines `block` and `position`."""
        ...


def any_null(names: tuple[str, ...] = CONTENT) -> Column:
    """Return whether one of the columns `names` is NULL."""
    found = F.col(names[0]).isNull()
    for name in names[1:]:
        found = found | F.col(name).isNull()
    return found
