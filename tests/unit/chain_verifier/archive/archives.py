"""A chain with true seals, and archives of it."""

import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chain_verifier.archive.manifest import Manifest, chain_folder, store_manifest
from chain_verifier.archive.part_files import PartWriter
from chain_verifier.checks.seals import SealedBatch, SealRun
from tests.integration.chain_verifier.seeded_batches import Chain, Committed, sealed_chain

CHAIN_ID = 11
DATABASE_ID = uuid.UUID(int=7)
CHAIN = sealed_chain(random.Random(5), CHAIN_ID, DATABASE_ID)
BATCHES = CHAIN.batches
ROWS = [row for batch in BATCHES for row in batch.rows]
PARTS = (6, 9, 15)
"""How many batches each part of the archive ends behind."""


def as_stored(batch: Committed) -> tuple[SealedBatch, list[Any]]:
    rows = [(row.id, row.pid, row.key, row.event_time_ns, row.payload) for row in batch.rows]
    stored = SealedBatch(
        first_id=batch.first_id,
        last_id=batch.last_id,
        prev_last_id=batch.prev_last_id,
        row_count=len(rows),
        epoch=batch.epoch,
        seal=batch.seal,
        committed_at=batch.committed_at,
    )
    return stored, rows


def write_archive(folder: Path, chain: Chain, ends: Sequence[int], first: int = 0) -> Path:
    """Write batches number `first` up to the last of `ends`, a part up to each of these."""
    begin = chain.batches[first]
    run = SealRun(CHAIN_ID, begin.prev_last_id, begin.seal_before)
    parts = []
    for end in ends:
        writer = PartWriter(chain_folder(folder, CHAIN_ID), CHAIN_ID, run)
        for batch in chain.batches[first:end]:
            stored, rows = as_stored(batch)
            assert run.fault(stored, rows) is None
            writer.add([stored], rows)
        parts.append(writer.end())
        first = end
    database_id = str(chain.database_id)
    store_manifest(folder, Manifest(chain_id=CHAIN_ID, database_id=database_id, parts=(*parts,)))
    return folder
