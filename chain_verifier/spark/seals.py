"""Recomputes the seals of a stored chain from its rows, in Spark's Python workers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.checks.neighbours import gathered
from chain_verifier.checks.seals import BatchCheck, genesis_of, seal_ends
from chain_verifier.findings import Findings, joined_findings
from chain_verifier.spark.errors import as_broken
from chain_verifier.spark.finding_frame import finding_frame, sampled_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow as pa

    from chain_verifier.config import KeptSeal
    from chain_verifier.spark.database import DatabaseTable
    from chain_verifier.spark.statements import Decode, Pieces


MISFITS_SCHEMA: Final = (
    "kind string, id bigint, until_id bigint, pid bigint, ids array<bigint>, count bigint, "
    "expected_count bigint, epoch bigint, expected_epoch bigint, computed array<binary>"
)
"""One row for each thing that is wrong with a batch; `computed` are the seals that its rows gave,
if they did not give the stored one.
"""

_MISFIT_COLUMNS: Final = tuple(column.split()[0] for column in MISFITS_SCHEMA.split(", "))


def seal_checker(genesis: bytes, repeating: Collection[int]) -> Decode:
    """Return what takes batches sorted by id, each with what is stored of it, and yields one row
    per misfit: rows that give another seal than the stored one, a batch with another number of
    rows or another range than it states, an epoch that decreases.

    Parts that are `repeating` begin with the last batch of the part before, so that the batches
    after it are judged by it: it is reported once, in the part before.
    """

    def check(pieces: Pieces) -> Iterator[pa.RecordBatch]:
        checked = BatchCheck(genesis)
        part = -1
        for number, batches in pieces:
            misfits: list[dict[str, object]] = []
            for batch in batches:
                is_repeated = number != part and number in repeating
                part = number
                found = checked.misfits(batch)
                misfits += [] if is_repeated else found
            yield _arrow(misfits)

    return check


def _arrow(misfits: list[dict[str, object]]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = {"kind": pa.string(), "ids": pa.list_(pa.int64()), "computed": pa.list_(pa.binary())}
    schema = pa.schema([(name, kinds.get(name, pa.int64())) for name in _MISFIT_COLUMNS])
    full = [{name: misfit.get(name) for name in _MISFIT_COLUMNS} for misfit in misfits]
    return pa.RecordBatch.from_pylist(full, schema=schema)


def check_seals(table: DatabaseTable, chain_id: int, kept: Sequence[KeptSeal]) -> Findings:
    """Return every batch whose rows do not give its seal, its count, its range or its epoch.

    Reads every column of every page once, as the seals cover them; nothing is unpacked, sorted or
    shuffled. `kept` are seals that were exported. Raises SourceBroken.
    """
    with as_broken(table.name):
        # Few for a whole chain; what is counted and what is shown comes from one look.
        checker = partial(seal_checker, genesis_of(table, chain_id))
        misfits = table.sealed(checker, MISFITS_SCHEMA).persist()

        def computed(last_id: int) -> list[bytes]:
            of_batch = (F.col("until_id") == last_id) & F.col("computed").isNotNull()
            seals = misfits.where(of_batch).select(F.explode("computed")).collect()
            return [bytes(seal) for (seal,) in seals]

        try:
            found = sampled_rows(finding_frame(misfits, source=table.name))
            ends = gathered(seal_ends(table, chain_id, kept, computed))
        finally:
            misfits.unpersist()
        return joined_findings([found, ends])
