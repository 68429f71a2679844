"""Looks for two rows under one key in plain Python: keys are sorted in a table on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chain_verifier.findings import Finding, Findings, Kind, collected
from chain_verifier.local.scan import is_placed, looked_at
from chain_verifier.local.spool import SQL, open_spool
from orderchain.model import split_client_key

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from chain_verifier.checks.bucket import Horizon
    from chain_verifier.local.table import LocalTable


def repeated_keys(table: LocalTable, horizon: Horizon, window_rows: int) -> Findings:
    """Return the rows whose key an earlier row has, each with the nearest such row.

    A free-form key may repeat once `window_rows` rows lie between; a client's number never.
    Raises SourceBroken.
    """

    def look() -> Iterator[Finding]:
        with open_spool("keys", table.name) as spool:
            _keep(spool, table, horizon)
            spool.execute(SQL["repeats"])
            # Ids skip numbers, so few rows may lie between two ids that are far apart.
            (is_far,) = spool.execute(SQL["is_far"], (window_rows,)).fetchone()
            spool.execute(SQL["places"])
            if is_far:
                spool.execute(SQL["fill_places"])
            for before_id, row_id, key, rows in spool.execute(SQL["repeated"]):
                text = key.decode()
                near = row_id - before_id if rows is None else rows
                if near <= window_rows or split_client_key(text) is not None:
                    yield Finding(
                        kind=Kind.REPEATED_KEY,
                        source=table.name,
                        id=row_id,
                        ids=(before_id, row_id),
                        key=text,
                    )

    return collected(look)


def _keep(spool: sqlite3.Connection, table: LocalTable, horizon: Horizon) -> None:
    ids = (horizon.start + 1, 2**63) if horizon.start else None
    for page in table.pages(ids):
        rows = (row for row in looked_at(page, horizon) if is_placed(row, horizon))
        # As bytes: for some functions of SQLite, a text ends at a NUL.
        values = ((row[1], None if row[3] is None else row[3].encode()) for row in rows)
        spool.executemany(SQL["keep_key"], values)
