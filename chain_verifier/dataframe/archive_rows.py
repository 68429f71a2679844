"""Rows of an archive, part by part. What they are worth, `archive verify` says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from chain_kernel.errors import InputError
from chain_verifier.archive.manifest import ArchivePart, chain_folder, held_manifest
from chain_verifier.archive.part_files import batches_of
from chain_verifier.bounded_parquet import open_parquet
from chain_verifier.dataframe.columns import batch_facts, rows_of, within

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from chain_verifier.dataframe.options import ChainOptions

_ROWS: Final = 10_000
"""Rows per Arrow batch."""
_EVENT: Final = ("id", "pid", "key", "event_time_ns", "payload")


class PartRange(Struct, frozen=True, tag=True):
    """Rows of one part of an archive: those after `after_id` up to `until_id`."""

    chain_id: int
    part: ArchivePart
    after_id: int
    until_id: int
    rows: int


def part_ranges(options: ChainOptions) -> list[PartRange]:
    """Return what is read, by the manifests. Raises InputError."""
    archive = Path(options.folder)
    chains = options.chains
    if chains is None or options.is_filtered:
        held = _chains_in(archive)
        chains = tuple(number for number in held if chains is None or number in chains)
    return [
        PartRange(
            chain_id,
            part,
            max(options.start, part.after_id),
            min(options.until, part.last_id),
            part.row_count,
        )
        for chain_id in chains
        for part in held_manifest(archive, chain_id).parts
        if part.last_id > options.start and part.first_id <= options.until
    ]


def _chains_in(archive: Path) -> list[int]:
    names = [folder.name.removeprefix("chain-") for folder in archive.glob("chain-*")]
    found = sorted(int(name) for name in names if name.isdecimal())
    if not found:
        raise InputError("archive", str(archive), "a folder that holds archived chains")
    return found


def read_part(archive: Path, asked: PartRange) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range in their order."""
    folder = chain_folder(archive, asked.chain_id)
    batches = list(batches_of(folder, asked.part))
    ends = np.array([batch.last_id for batch in batches], np.int64)
    epochs = np.array([batch.epoch for batch in batches], np.int64)
    with open_parquet(folder / asked.part.rows.name) as file:
        for found in file.iter_batches(_ROWS, columns=list(_EVENT)):
            ids = np.asarray(found.column("id"))
            rows = rows_of(asked.chain_id, found.columns, *batch_facts(ids, ends, epochs))
            yield within(rows, asked.after_id, asked.until_id)
