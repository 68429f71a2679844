"""Rows of an archive, part by part. What they are worth, `archive --check` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from chain_kernel.errors import InputError
from chain_verifier.archive.manifest import ArchivePart, chain_folder, held_manifest
from chain_verifier.archive.part_files import batches_of
from chain_verifier.bounded_parquet import open_parquet
from chain_verifier.dataframe.columns import batch_facts, rows_of, within
from chain_verifier.places import place_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from chain_verifier.dataframe.options import ChainOptions
    from chain_verifier.places import Place

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
    """Return what is read, by the manifests. Raises InputError, SettingError."""
    archive = place_of("source", options.folder)
    chains = _chains_in(archive) if options.chains is None else options.chains
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


def _chains_in(archive: Place) -> list[int]:
    names = [folder.name.removeprefix("chain-") for folder in archive.glob("chain-*")]
    found = sorted(int(name) for name in names if name.isascii() and name.isdecimal())
    if not found:
        raise InputError("archive", str(archive), "a folder that holds archived chains")
    return found


def read_part(archive: str, asked: PartRange) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range in their order; `archive` is a path or a URL."""
    folder = chain_folder(place_of("source", archive), asked.chain_id)
    batches = list(batches_of(folder, asked.part))
    ends = np.array([batch.last_id for batch in batches], np.int64)
    epochs = np.array([batch.epoch for batch in batches], np.int64)
    with open_parquet(folder / asked.part.rows.name) as file:
        for found in file.iter_batches(_ROWS, columns=list(_EVENT)):
            ids = np.asarray(found.column("id"))
            rows = rows_of(asked.chain_id, found.columns, *batch_facts(ids, ends, epochs))
            yield within(rows, asked.after_id, asked.until_id)
