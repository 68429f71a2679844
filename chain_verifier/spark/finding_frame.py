"""Findings as a frame of Spark: one row each, however many; the driver takes a sample of them.

The executors write all of them to files: Parquet and JSON, one folder each.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.config import FINDINGS_MAX, inside, literal_path
from chain_verifier.findings import Finding, Findings, Kind
from chain_verifier.spark.errors import reason_of
from orderchain.errors import InputError, RetryError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Row, SparkSession


FINDING_TYPES: Final = {
    "kind": "string",
    "source": "string",
    "id": "bigint",
    "pid": "bigint",
    "ids": "array<bigint>",
    "after_id": "bigint",
    "until_id": "bigint",
    "count": "bigint",
    "expected_count": "bigint",
    "columns": "array<string>",
    "against": "string",
    "chain_id": "bigint",
    "epoch": "bigint",
    "expected_epoch": "bigint",
    "key": "string",
    "seal": "string",
    "expected_seal": "string",
    "mark_id": "bigint",
    "verified_by": "string",
    "verified_at": "string",
}
"""The fields of a finding, with their types in Spark; empty ones are NULL."""

_IN_ORDER: Final = ("id", "pid", "after_id")


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


def sampled(frame: DataFrame, counts: Mapping[Kind, int] | None = None) -> Findings:
    """Return the findings of `frame`: all are counted, the first few of each kind are kept.

    If `counts` is known, it saves the counting. The driver sees no more than that, however many
    findings there are.
    """
    if counts is None:
        found = frame.groupBy("kind").agg(F.count(F.lit(1)).alias("findings")).collect()
        counts = {Kind(row["kind"]): row["findings"] for row in found}
    kept = [
        finding_of(row)
        for kind in sorted(counts)
        for row in frame.where(F.col("kind") == kind.value)
        .orderBy(*_IN_ORDER)
        .limit(FINDINGS_MAX)
        .collect()
    ]
    return Findings(
        kept=tuple(kept),
        counts={kind.value: count for kind, count in counts.items() if count},
        wholes=(frame,) if kept else (),
    )


def finding_of(row: Row) -> Finding:
    """Return one row of a frame as a finding."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in row.asDict().items()
        if value is not None
    }
    return Finding(**(fields | {"kind": Kind(row["kind"])}))


PARQUET: Final = "findings.parquet"
JSON: Final = "findings.json"
CHAIN: Final = "chain"
"""The column that says which chain was verified; `chain_id` is that of a foreign row."""


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
    except (PySparkException, Py4JError) as error:
        reason = reason_of(error)
        raise RetryError(f"findings could not be written to {folder}: {reason}") from error
    finally:
        frame.unpersist()
    if found != findings.total:
        raise RetryError(
            f"findings could not be written to {folder}: {found} of {findings.total} are there "
            "(every executor must write to the same place)"
        )


def require_free(spark: SparkSession, folder: str) -> None:
    """Raise InputError unless Spark finds nothing at `folder`, and knows how to write there."""
    jvm: Any = spark._jvm
    java: Any = spark.sparkContext._jsc
    try:
        path = jvm.org.apache.hadoop.fs.Path(folder)
        system = path.getFileSystem(java.hadoopConfiguration())
        is_free = not system.exists(path) or not len(system.listStatus(path))
    except Py4JError as error:
        expected = f"a place that Spark can write to ({reason_of(error)})"
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
        frames.append(spark.createDataFrame([_row(one) for one in listed], schema))
    return reduce(DataFrame.unionByName, frames)


def _row(finding: Finding) -> tuple[Any, ...]:
    """Return the fields of a finding; an empty field is None."""
    fields = {name: getattr(finding, name) for name in FINDING_TYPES}
    values = {name: None if value in ((), "") else value for name, value in fields.items()}
    # Java takes plain texts only.
    return tuple((values | {"kind": finding.kind.value}).values())
