"""Reads a whole archive of a chain back, and proves it whole from its first row to its last."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from msgspec import Struct

from chain_verifier.archive.manifest import chain_folder, load_manifest
from chain_verifier.archive.part_files import part_fault
from chain_verifier.archive.seal_run import SealRun
from orderchain.errors import InputError
from orderchain.seal import genesis_seal

if TYPE_CHECKING:
    from pathlib import Path


class ArchiveReport(Struct, frozen=True, kw_only=True):
    """What an archive was found to hold."""

    chain_id: int
    database_id: str
    after_id: int
    """The row before the first one."""
    last_id: int
    """The last row that was proven."""
    rows: int
    parts: int
    seal: str
    fault: str | None
    """The first fault; None for a whole archive."""
    seals: dict[int, str | None]
    """The requested seals; None where no batch ends."""


def verify_archive(archive: Path, chain_id: int, *seals_at: int) -> ArchiveReport:
    """Check every file, row, link and seal of the archive, and return what it holds.

    Raises InputError when there is no archive of the chain.
    """
    manifest = load_manifest(archive, chain_id)
    if manifest is None or not manifest.parts:
        raise InputError("archive", str(archive), f"an archive that holds chain {chain_id}")
    first = manifest.parts[0]
    run = SealRun(chain_id, first.after_id, bytes.fromhex(first.seal_before))
    seals = dict.fromkeys(seals_at, b"")
    if first.after_id in seals:
        seals[first.after_id] = run.seal
    fault = None
    if first.after_id == 0 and run.seal != genesis_seal(UUID(manifest.database_id), chain_id):
        fault = "the archive does not begin with the seal of its chain and database"
    rows = parts = 0
    for part in manifest.parts if fault is None else ():
        fault = part_fault(chain_folder(archive, chain_id), part, run, seals)
        if fault is not None:
            break
        rows, parts = rows + part.row_count, parts + 1
    return ArchiveReport(
        chain_id=chain_id,
        database_id=manifest.database_id,
        after_id=first.after_id,
        last_id=run.at_id,
        rows=rows,
        parts=parts,
        seal=run.seal.hex(),
        fault=fault,
        seals={at: seal.hex() or None for at, seal in seals.items()},
    )
