"""Recomputes every seal of a chain from its rows, and looks for those kept outside."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.config import CONNECTIONS_MAX
from chain_verifier.finding_frame import finding_frame, sampled
from chain_verifier.findings import Findings, gathered, joined
from chain_verifier.seal_ends import genesis_of, seal_ends
from chain_verifier.sources.batches import MISFITS_SCHEMA, seal_checker
from chain_verifier.spark_errors import as_broken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from chain_verifier.config import KeptSeal
    from chain_verifier.sources.database import DatabaseTable

_ARROW_ROWS: Final = 10_000
"""Rows of usual batches that cross to Python at once: some megabytes."""

_ARROW_BATCHES: Final = 256
"""Most batches that cross at once: where they are of uneven sizes, 256 of the largest usual ones
(5,000 rows) are 150 MB."""


def check_seals(
    spark: SparkSession, table: DatabaseTable, chain_id: int, kept: KeptSeal | None
) -> Findings:
    """Return every batch whose rows do not give its seal, its count, its range or its epoch.

    Reads every column of every page once, as the seals cover them; nothing is taken apart, sorted
    or shuffled. `kept` is a seal that was exported. Raises SourceBroken.
    """
    with as_broken(table.name), _arrow_records(spark, _records_at_once(table)):
        # Few of a whole chain; what is counted and what is shown comes from one look.
        misfits = _misfits(spark, table, chain_id).persist()

        def computed(last_id: int) -> list[bytes]:
            of_batch = (F.col("until_id") == last_id) & F.col("computed").isNotNull()
            seals = misfits.where(of_batch).select(F.explode("computed")).collect()
            return [bytes(seal) for (seal,) in seals]

        try:
            found = sampled(finding_frame(misfits, source=table.name))
            ends = gathered(seal_ends(table, chain_id, kept, computed))
        finally:
            misfits.unpersist()
        return joined([found, ends])


def _misfits(spark: SparkSession, table: DatabaseTable, chain_id: int) -> DataFrame:
    """Hold batches against what is stored of them."""
    batches, ends = table.sealed()
    connections = min(CONNECTIONS_MAX, spark.sparkContext.defaultParallelism)
    checker = seal_checker(genesis_of(table, chain_id), frozenset(ends))
    return batches.coalesce(connections).mapInArrow(checker, MISFITS_SCHEMA)


def _records_at_once(table: DatabaseTable) -> int:
    rows_per_batch = table.head.rows_counted // max(1, table.head.batches_counted)
    return min(_ARROW_BATCHES, _ARROW_ROWS // max(1, rows_per_batch) + 1)


@contextmanager
def _arrow_records(spark: SparkSession, count: int) -> Iterator[None]:
    """Let `count` records cross to Python at once, which may be many more than of a topic."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    usual = spark.conf.get(name)
    spark.conf.set(name, str(count))
    try:
        yield
    finally:
        spark.conf.set(name, str(usual))
