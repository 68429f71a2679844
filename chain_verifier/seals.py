"""Recomputes every seal of a chain from its rows, and looks for those kept outside."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.config import CONNECTIONS_MAX, FINDINGS_MAX
from chain_verifier.findings import Finding, Findings, Kind, gathered
from chain_verifier.sources.batches import MISFITS_SCHEMA, seal_checker
from chain_verifier.spark_errors import as_broken
from orderchain.seal import genesis_seal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, Row, SparkSession

    from chain_verifier.config import KeptSeal
    from chain_verifier.sources.database import DatabaseTable

_ARROW_ROWS: Final = 1024
"""Rows that cross to Python at once; of the largest payloads they are 256 MB."""

_GENESIS: Final = 0


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
        kept_misfits = misfits.persist()
        try:
            counts = {r["kind"]: r["count"] for r in kept_misfits.groupBy("kind").count().collect()}
            found = [
                _finding(table.name, row)
                for kind in counts
                for row in _first_of(kept_misfits, kind)
            ]
        finally:
            kept_misfits.unpersist()
        ends = [*_genesis(table, chain_id), *_head(table), *_kept(table, kept)]
    more = {Kind(kind): count - min(count, FINDINGS_MAX) for kind, count in counts.items()}
    return gathered([*found, *ends], more)


def _first_of(misfits: DataFrame, kind: str) -> list[Row]:
    return misfits.where(F.col("kind") == kind).orderBy("until_id").limit(FINDINGS_MAX).collect()


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


def _finding(source: str, row: Row) -> Finding:
    fields: dict[str, Any] = row.asDict()
    ends = (fields.pop("first_row_id"), fields.pop("last_row_id"))
    ids = ends if ends[0] is not None else ()
    return Finding(source=source, **(fields | {"kind": Kind(fields["kind"]), "ids": ids}))


def _genesis(table: DatabaseTable, chain_id: int) -> Iterator[Finding]:
    """Hold the first seal against the database's id; behind an archive there is none."""
    seal = table.seal_at(_GENESIS)
    if seal is not None and seal != genesis_seal(UUID(table.head.database_id), chain_id):
        yield _mismatch(table, Kind.SEAL_MISMATCH, _GENESIS)


def _head(table: DatabaseTable) -> Iterator[Finding]:
    if table.seal_at(table.head.last_id) != table.head.seal:
        yield _mismatch(table, Kind.HEAD_SEAL, table.head.last_id)


def _kept(table: DatabaseTable, kept: KeptSeal | None) -> Iterator[Finding]:
    if kept is not None and table.seal_at(kept.id) != kept.seal:
        yield _mismatch(table, Kind.KEPT_SEAL, kept.id)


def _mismatch(table: DatabaseTable, kind: Kind, row_id: int) -> Finding:
    return Finding(kind=kind, source=table.name, id=row_id, until_id=row_id)
