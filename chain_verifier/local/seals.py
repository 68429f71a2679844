"""Recomputes every seal of a chain from its rows in plain Python: one batch at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chain_verifier.batch_check import ROW_COLUMNS, BatchCheck
from chain_verifier.findings import Finding, Findings, Kind, counted
from chain_verifier.seal_ends import genesis_of, seal_ends

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chain_verifier.config import KeptSeal
    from chain_verifier.local.database import DatabaseTable
    from chain_verifier.local.table import Row


def check_seals(table: DatabaseTable, chain_id: int, kept: KeptSeal | None) -> Findings:
    """Return every batch whose rows do not give its seal, its count, its range or its epoch.

    Reads every column of every row once, in the order of ids. `kept` is a seal that was exported.
    Raises SourceBroken.
    """

    def look() -> Iterator[Finding]:
        rows = _RowsInOrder(table)
        checked = BatchCheck(chain_id, genesis_of(table, chain_id))
        ends = {table.head.last_id, kept.id if kept else None}
        computed: dict[int, list[bytes]] = {}
        for batch in table.batches():
            held, count = rows.up_to(batch["id"], batch["row_count"])
            columns = {name: [row[at] for row in held] for at, name in enumerate(ROW_COLUMNS)}
            for misfit in checked.misfits(batch, columns, count):
                seals = misfit.pop("computed", [])
                if seals and batch["id"] in ends:
                    computed[batch["id"]] = seals
                yield _finding(table.name, misfit)
        yield from seal_ends(table, chain_id, kept, lambda last_id: computed.get(last_id, ()))

    return counted(look)


class _RowsInOrder:
    """The rows of a table, taken off its beginning batch by batch."""

    def __init__(self, table: DatabaseTable) -> None:
        self._rows = (row for page in table.pages() for row in page)
        self._next: Row | None = next(self._rows, None)

    def up_to(self, last_id: int, wanted: int) -> tuple[list[Row], int]:
        """Take the rows up to `last_id`; return `wanted` of them at the most, and their number.

        Where batches are missing there may be any number of rows.
        """
        held: list[Row] = []
        count = 0
        while self._next is not None and self._next[1] <= last_id:
            if count < wanted:
                held.append(self._next[1:])
            count += 1
            self._next = next(self._rows, None)
        return held, count


def _finding(source: str, misfit: dict[str, Any]) -> Finding:
    fields: dict[str, Any] = misfit | {"kind": Kind(misfit["kind"])}
    fields["ids"] = tuple(misfit.get("ids", ()))
    return Finding(source=source, **fields)
