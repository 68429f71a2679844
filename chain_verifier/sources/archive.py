"""Rows of an archive, part by part. What they are worth, `archive --check` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from chain_kernel.errors import InputError
from chain_verifier.archive.manifest import ArchivePart, chain_folder, held_manifest
from chain_verifier.archive.part_files import batches_of
from chain_verifier.places import place_of
from chain_verifier.sources.bounded_parquet import checked_batches, open_parquet
from chain_verifier.sources.columns import batch_facts, frame_rows, within
from chain_verifier.sources.content import EVENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from chain_verifier.sources.options import ChainOptions


class PartRange(Struct, frozen=True):
    """Rows of one part of an archive: those after `after_id` up to `until_id`."""

    chain_id: int
    part: ArchivePart
    after_id: int
    until_id: int
    rows: int


class ArchiveRows:
    """The rows of an archive, by its manifests. Implements `RangedRows`."""

    def __init__(self, options: ChainOptions) -> None:
        self._options = options
        self._place = place_of("source", options.folder)

    def ranges(self) -> list[PartRange]:
        """Return the parts of which rows are asked for. Raises InputError, SettingError."""
        options = self._options
        return [
            PartRange(
                chain_id,
                part,
                max(options.start, part.after_id),
                min(options.until, part.last_id),
                part.row_count,
            )
            for chain_id in self._chains()
            for part in held_manifest(self._place, chain_id).parts
            if part.last_id > options.start and part.first_id <= options.until
        ]

    def _chains(self) -> Sequence[int]:
        if self._options.chains is not None:
            return self._options.chains
        names = [folder.name.removeprefix("chain-") for folder in self._place.glob("chain-*")]
        found = sorted(int(name) for name in names if name.isascii() and name.isdecimal())
        if not found:
            raise InputError("archive", str(self._place), "a folder that holds archived chains")
        return found

    def read(self, ranges: Sequence[PartRange]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ranges in their order."""
        for asked in ranges:
            folder = chain_folder(self._place, asked.chain_id)
            batches = list(batches_of(folder, asked.part))
            ends = np.array([batch.last_id for batch in batches], np.int64)
            epochs = np.array([batch.epoch for batch in batches], np.int64)
            path = folder / asked.part.rows.name
            with open_parquet(path) as file:
                for found in checked_batches(path, file, EVENT):
                    facts = batch_facts(np.asarray(found.column("id")), ends, epochs)
                    rows = frame_rows(asked.chain_id, found.columns, *facts)
                    yield within(rows, asked.after_id, asked.until_id)
