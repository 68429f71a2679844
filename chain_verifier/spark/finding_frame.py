"""Findings as a frame of Spark: one row each, however many; the driver takes a sample of them.

The executors write all of them to files: Parquet and JSON, one folder each.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from chain_kernel.errors import InputError, RetryError
from chain_verifier.checks.neighbours import ALIKE, ORDER, ranged
from chain_verifier.config import FINDINGS_MAX, inside, literal_path
from chain_verifier.findings import (
    CHAIN,
    FINDING_TYPES,
    KINDS_OF_BATCHES,
    KINDS_OF_ROWS,
    Finding,
    Findings,
    Kind,
    finding_columns,
)
from chain_verifier.spark.errors import SPARK_ERRORS, spark_reason

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


_IN_ORDER: Final = ("id", "pid", "after_id")

_PART_BITS: Final = 20
"""Neighbours are first looked for among 2^20 ids at a time, by as many tasks as there are."""


def finding_frame(rows: DataFrame, **fields: str | int) -> DataFrame:
    """Return `rows` as findings: `fields` are the same for all; columns of the same names fill the
    other fields.
    """
    columns = []
    for name, kind in FINDING_TYPES.items():
        if name in fields:
            column = F.lit(fields[name])
        elif name in rows.columns:
            column = F.col(name)
        else:
            column = F.lit(None)
        columns.append(column.cast(kind).alias(name))
    return rows.select(*columns)


def sampled(frame: DataFrame) -> Findings:
    """Return the findings of `frame`: all are counted, the first few of each kind are kept.

    The driver sees no more than that, however many findings there are.
    """
    return _sampled(frame, frame.withColumns({"last_id": F.lit(None), "rows": F.lit(1)}))


def sampled_rows(frame: DataFrame) -> Findings:
    """Return the findings of rows or batches of `frame` in this way, those of neighbours as one.

    `chain_verifier.checks.neighbours` says which are; each such finding has its pid for that.
    """
    found = frame.persist()
    ranges = _in_ranges(found).persist()
    try:
        return Findings() if found.isEmpty() else _sampled(frame, ranges)
    finally:
        ranges.unpersist()
        found.unpersist()


def _sampled(frame: DataFrame, ranges: DataFrame) -> Findings:
    counted = ranges.groupBy("kind").agg(
        F.count(F.lit(1)).alias("findings"), F.sum("rows").alias("rows")
    )
    found = {Kind(row["kind"]): row for row in counted.collect()}
    kept = [
        finding_of(row)
        for kind in sorted(found)
        for row in ranges.where(F.col("kind") == kind.value)
        .orderBy(*_IN_ORDER)
        .limit(FINDINGS_MAX)
        .collect()
    ]
    return Findings(
        kept=tuple(kept),
        counts={kind.value: row["findings"] for kind, row in found.items()},
        row_counts={kind.value: row["rows"] for kind, row in found.items()},
        wholes=(frame,) if kept else (),
    )


def _in_ranges(frame: DataFrame) -> DataFrame:
    """Return the findings with `last_id`, and `rows` or batches: first of parts, then of all.

    A window over all findings of a kind would be one task; over the ranges within parts it is, and
    those are few where there are many neighbours.
    """
    part = F.shiftright("id", _PART_BITS)
    last_id = F.when(_is_one_of(KINDS_OF_BATCHES), F.col("until_id")).otherwise(F.col("id"))
    single = frame.withColumns({"last_id": last_id, "rows": F.lit(1), "part": part})
    return _joined(_joined(single, "kind", "part"), "kind").drop("part")


def _is_one_of(kinds: frozenset[Kind]) -> Column:
    return F.col("kind").isin(sorted(kinds))


def _joined(ranges: DataFrame, *apart: str) -> DataFrame:
    """Return neighbouring ranges as one, within groups that are equal in the columns `apart`."""
    in_order = Window.partitionBy(*apart).orderBy(*ORDER)
    is_partly_there = (F.col("kind") == Kind.BATCH_COUNT.value) & (F.col("count") != 0)
    follows = _is_one_of(KINDS_OF_ROWS | KINDS_OF_BATCHES) & ~is_partly_there
    follows = follows & (F.col("pid") == F.lag("last_id").over(in_order))
    for name in ALIKE:
        is_alike = F.col(name).eqNullSafe(F.lag(name).over(in_order))
        is_end = _is_one_of(KINDS_OF_BATCHES) & F.lit(name == "until_id")
        follows = follows & (is_alike | is_end)
    begins = F.when(follows, F.lit(0)).otherwise(F.lit(1))
    numbered = ranges.withColumn("begins", begins).withColumn(
        "number", F.sum("begins").over(in_order.rowsBetween(Window.unboundedPreceding, 0))
    )
    first = F.min(F.struct("id", "pid"))
    other = {"id", "pid", "last_id", "rows", "expected_count", *apart}
    same = [name for name in ranges.columns if name not in other]
    joined = numbered.groupBy(*apart, "number").agg(
        first["id"].alias("id"),
        first["pid"].alias("pid"),
        F.max("last_id").alias("last_id"),
        F.sum("rows").alias("rows"),
        F.sum("expected_count").alias("expected_count"),
        *(F.first(name).alias(name) for name in same),
    )
    return joined.drop("number")


def finding_of(row: Row) -> Finding:
    """Return one finding of a frame, of a row or batch or of a range of neighbours."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in row.asDict().items()
        if value is not None and name in FINDING_TYPES
    }
    return ranged(Finding(**(fields | {"kind": Kind(row["kind"])})), row["last_id"], row["rows"])


PARQUET: Final = "findings.parquet"
JSON: Final = "findings.json"


def write_findings(spark: SparkSession, chain_id: int, findings: Findings, folder: str) -> None:
    """Add all `findings` of a chain to `folder`, a path or a URL; frames are evaluated once more.

    What was written is read back and counted: executors that do not share the folder each write to
    their own, and Spark reports success. Raises RetryError when not all findings are there: then
    the folder is of no use.
    """
    frame = _frame_of(spark, findings).withColumn(CHAIN, F.lit(chain_id)).persist()
    try:
        frame.write.mode("append").parquet(inside(folder, PARQUET))
        frame.write.mode("append").json(inside(folder, JSON))
        found = min(_written(spark, chain_id, folder, name) for name in (PARQUET, JSON))
    except SPARK_ERRORS as error:
        reason = spark_reason(error)
        raise RetryError(f"findings could not be written to {folder}: {reason}") from error
    finally:
        frame.unpersist()
    if found != findings.total_by_row:
        raise RetryError(
            f"findings could not be written to {folder}: {found} of {findings.total_by_row} are "
            "there (every executor must write to the same place)"
        )


def require_free(spark: SparkSession, folder: str) -> None:
    """Raise InputError unless Spark finds nothing at `folder`, and knows how to write there."""
    listed = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        is_free = listed.load(literal_path(folder)).select("path").isEmpty()
    except SPARK_ERRORS as error:
        if isinstance(error, PySparkException) and error.getCondition() == "PATH_NOT_FOUND":
            return
        expected = f"a place that Spark can write to ({spark_reason(error)})"
        raise InputError("findings", folder, expected) from error
    if not is_free:
        raise InputError("findings", folder, "an empty folder, or one that does not exist")


def _written(spark: SparkSession, chain_id: int, folder: str, name: str) -> int:
    """Return how many findings of the chain can be read back."""
    reader = spark.read.schema(f"{CHAIN} int")
    path = literal_path(inside(folder, name))
    rows = reader.parquet(path) if name == PARQUET else reader.json(path)
    return rows.where(F.col(CHAIN) == chain_id).count()


def _frame_of(spark: SparkSession, findings: Findings) -> DataFrame:
    frames = [whole for whole in findings.wholes if isinstance(whole, DataFrame)]
    listed = [one for whole in findings.wholes if isinstance(whole, tuple) for one in whole]
    schema = ", ".join(f"`{name}` {kind}" for name, kind in FINDING_TYPES.items())
    if listed or not frames:
        frames.append(
            spark.createDataFrame([tuple(finding_columns(one).values()) for one in listed], schema)
        )
    return reduce(DataFrame.unionByName, frames)
