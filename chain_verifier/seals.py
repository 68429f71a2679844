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

_ARROW_ROWS: Final = 1024
"""Rows that cross to Python at once; of the largest payloads they are 256 MB."""


def check_seals(
    spark: SparkSession, table: DatabaseTable, chain_id: int, kept: KeptSeal | None
) -> Findings:
    """Return every batch whose rows do not give its seal, its count, its range or its epoch.

    Reads every column of every row once; each task sorts the rows of some batches, nothing is
    shuffled. `kept` is a seal that was exported. Raises SourceBroken.
    """
    with as_broken(table.name), _wide_arrow(spark):
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
    """Hold rows against the batches behind them, sorted, so that no task has a part of one."""
    rows, ends = table.sealed_rows()
    connections = min(CONNECTIONS_MAX, spark.sparkContext.defaultParallelism)
    sorted_rows = rows.sortWithinPartitions("id", "is_batch").coalesce(connections)
    checker = seal_checker(chain_id, genesis_of(table, chain_id), frozenset(ends))
    return sorted_rows.mapInArrow(checker, MISFITS_SCHEMA)


@contextmanager
def _wide_arrow(spark: SparkSession) -> Iterator[None]:
    """Let more rows cross to Python at once than records of a topic, which hold many rows each."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    usual = spark.conf.get(name)
    spark.conf.set(name, str(_ARROW_ROWS))
    try:
        yield
    finally:
        spark.conf.set(name, str(usual))
