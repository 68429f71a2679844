"""All findings as files of Spark: Parquet and JSON, a folder each, written by the executors."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.finding_frame import FINDING_TYPES
from chain_verifier.spark_errors import reason_of
from orderchain.errors import RetryError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from chain_verifier.findings import Finding, Findings

PARQUET: Final = "findings.parquet"
JSON: Final = "findings.json"
CHAIN: Final = "chain"
"""The column that says which chain was verified; `chain_id` is that of a foreign row."""


def write_findings(spark: SparkSession, chain_id: int, findings: Findings, folder: str) -> None:
    """Add all `findings` of a chain to `folder`; frames are evaluated once more.

    Raises RetryError when it cannot be done: then the folder is of no use.
    """
    frame = _frame_of(spark, findings).withColumn(CHAIN, F.lit(chain_id)).persist()
    try:
        frame.write.mode("append").parquet(str(Path(folder) / PARQUET))
        frame.write.mode("append").json(str(Path(folder) / JSON))
    except (PySparkException, Py4JError) as error:
        reason = reason_of(error)
        raise RetryError(f"findings could not be written to {folder}: {reason}") from error
    finally:
        frame.unpersist()


def _frame_of(spark: SparkSession, findings: Findings) -> DataFrame:
    frames = [whole for whole in findings.wholes if isinstance(whole, DataFrame)]
    listed = [one for whole in findings.wholes if isinstance(whole, tuple) for one in whole]
    schema = ", ".join(f"`{name}` {kind}" for name, kind in FINDING_TYPES.items())
    if listed or not frames:
        frames.append(spark.createDataFrame([_row(one) for one in listed], schema))
    return reduce(DataFrame.unionByName, frames)


def _row(finding: Finding) -> tuple[Any, ...]:
    """Return the fields of a finding; what says nothing is None."""
    fields = {name: getattr(finding, name) for name in FINDING_TYPES}
    told = {name: None if value in ((), "") else value for name, value in fields.items()}
    # Java takes plain texts only.
    return tuple((told | {"kind": finding.kind.value}).values())
