"""Recomputes every seal of a chain from its rows in plain Python: one batch at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chain_verifier.batch_check import BatchCheck
from chain_verifier.findings import Finding, Findings, Kind, counted
from chain_verifier.seal_ends import genesis_of, seal_ends

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chain_verifier.config import KeptSeal
    from chain_verifier.local.database import DatabaseTable


def check_seals(table: DatabaseTable, chain_id: int, kept: KeptSeal | None) -> Findings:
    """Return every batch whose rows do not give its seal, its count, its range or its epoch.

    Reads every column of every page once, in the order of ids. `kept` is a seal that was exported.
    Raises SourceBroken.
    """

    def look() -> Iterator[Finding]:
        checked = BatchCheck(genesis_of(table, chain_id))
        ends = {table.head.last_id, kept.id if kept else None}
        computed: dict[int, list[bytes]] = {}
        for batch in table.sealed():
            for misfit in checked.misfits(batch):
                seals = misfit.pop("computed", [])
                if seals and batch["id"] in ends:
                    computed[batch["id"]] = seals
                yield _finding(table.name, misfit)
        yield from seal_ends(table, chain_id, kept, lambda last_id: computed.get(last_id, ()))

    return counted(look)


def _finding(source: str, misfit: dict[str, Any]) -> Finding:
    fields: dict[str, Any] = misfit | {"kind": Kind(misfit["kind"])}
    fields["ids"] = tuple(misfit.get("ids", ()))
    return Finding(source=source, **fields)
