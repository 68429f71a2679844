"""A table on disk for what is sorted or compared, so that memory stays constant for any amount."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orderchain.errors import SourceBroken
from orderchain.sql import load_sql
from orderchain.text import reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SQL: Final = load_sql("chain_verifier.local", "spool.sql")


@contextmanager
def open_spool(table: str, reading: str) -> Iterator[sqlite3.Connection]:
    """Open a table of `spool.sql` in a temporary folder, which is removed at the end.

    `reading` names the source in the SourceBroken that a full disk raises.
    """
    with tempfile.TemporaryDirectory(prefix="chain-verifier-") as folder:
        try:
            with closing(sqlite3.connect(Path(folder) / "spool", isolation_level=None)) as spool:
                for statement in ("without_journal", "without_sync", table, "one_transaction"):
                    spool.execute(SQL[statement])
                yield spool
        except (sqlite3.Error, OSError) as error:
            raise SourceBroken(
                reading, f"rows could not be kept in {folder}: {reason_of(error)}"
            ) from error
