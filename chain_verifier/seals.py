"""Recomputes every seal of a chain from its rows, and looks for those kept outside."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from chain_verifier.config import CONNECTIONS_MAX
from chain_verifier.finding_frame import finding_frame, sampled
from chain_verifier.findings import Findings, gathered, joined
from chain_verifier.seal_ends import seal_ends
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
        misfits = _sealed(spark, table).mapInArrow(seal_checker(chain_id), MISFITS_SCHEMA)
        # Few of a whole chain; what is counted and what is shown comes from one look.
        looked_at = finding_frame(misfits, source=table.name).persist()
        try:
            found = sampled(looked_at)
        finally:
            looked_at.unpersist()
        return joined([found, gathered(seal_ends(table, chain_id, kept))])


def _sealed(spark: SparkSession, table: DatabaseTable) -> DataFrame:
    """Return the rows and the batches behind them, sorted, so that no task has a part of one."""
    connections = min(CONNECTIONS_MAX, spark.sparkContext.defaultParallelism)
    sorted_rows = table.sealed_rows().sortWithinPartitions("id", "is_batch")
    return sorted_rows.coalesce(connections)


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
