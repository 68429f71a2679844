"""The port of the local mode's sources, and the table on disk in which rows are put in order."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from chain_kernel.errors import SourceBroken
from chain_kernel.sql import load_sql
from chain_kernel.text import reason_of
from chain_verifier.verification import OpenTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chain_verifier.sources.content import Row


class LocalTable(OpenTable, Protocol):
    """One source, opened: its rows, read again at every use."""

    is_sorted: bool
    """True if the first look has shown that ids rise from row to row."""

    def pages(self, after_id: int = 0) -> Iterator[Sequence[Row]]:
        """Yield the rows; those up to `after_id` may be left out.

        Raises SourceBroken when the source cannot be read to its end.
        """
        ...

    def notes(self) -> tuple[str, ...]:
        """Return what is no fault, but should be known; complete once the rows were read."""
        ...


SQL: Final = load_sql("chain_verifier.local", "scratch.sql")


@contextmanager
def open_scratch(table: str, reading: str) -> Iterator[sqlite3.Connection]:
    """Open a table of `scratch.sql` in a temporary folder, which is removed at the end.

    `reading` names the source in the SourceBroken that a full disk raises.
    """
    with tempfile.TemporaryDirectory(prefix="chain-verifier-") as folder:
        try:
            with closing(
                sqlite3.connect(Path(folder) / "scratch", isolation_level=None)
            ) as scratch:
                for statement in ("without_journal", "without_sync", table, "one_transaction"):
                    scratch.execute(SQL[statement])
                yield scratch
        except (sqlite3.Error, OSError) as error:
            raise SourceBroken(
                reading, f"rows could not be kept in {folder}: {reason_of(error)}"
            ) from error
