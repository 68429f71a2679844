"""Names the rows of a file that stand behind a row which comes after them in the chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chain_verifier.findings import Finding, Findings, Kind, counted
from chain_verifier.local.scan import is_placed, looked_at
from chain_verifier.local.spool import SQL, open_spool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chain_verifier.horizon import Horizon
    from chain_verifier.local.table import Table


def rows_out_of_order(table: Table, horizon: Horizon) -> Findings:
    """Return the rows that stand behind a higher id, gathered by that id.

    A row that stands twice is a duplicate; only where it stands first counts here. Runs only where
    the scan found something, since it keeps every id on disk for a while.
    """

    def look() -> Iterator[Finding]:
        with open_spool("firsts", table.name) as spool:
            for pairs in _with_highest_before(table, horizon):
                spool.executemany(SQL["first"], pairs)
            for first_id, last_id, highest, rows in spool.execute(SQL["late"]):
                yield Finding(
                    kind=Kind.OUT_OF_ORDER,
                    source=table.name,
                    id=first_id,
                    until_id=last_id,
                    after_id=highest,
                    count=rows,
                )

    return counted(look)


def _with_highest_before(table: Table, horizon: Horizon) -> Iterator[list[tuple[int, int]]]:
    highest = horizon.start
    for page in table.pages(content=False):
        pairs = []
        for row in looked_at(page, horizon):
            if is_placed(row, horizon):
                pairs.append((row[1], highest))
                highest = max(highest, row[1])
        yield pairs
