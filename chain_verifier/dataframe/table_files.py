"""Tables, and files of one's own: of these, Spark reads every one, and each to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documents use

from chain_verifier.config import literal_path
from chain_verifier.spark.errors import SPARK_ERRORS, spark_reason
from chain_verifier.spark.json_lines import is_one_value
from chain_verifier.spark.listing import files_below, listed, require_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def open_table(spark: SparkSession, name: str) -> DataFrame:
    """Return a table of the session's catalog. Raises OSError where there is none."""
    try:
        table = spark.table(name)
        table.schema  # noqa: B018 - over Connect, only this looks for the table
    except SPARK_ERRORS as error:
        raise OSError(f"{spark_reason(error)}; files are named as parquet:PATH") from error
    return table


def open_files(spark: SparkSession, kind: str, path: str) -> DataFrame:
    """Return the rows of a file, or of a folder with all that is below it.

    Raises OSError where Spark would leave out a file, or a part of a line of JSON; and as Spark
    does for what it cannot open.
    """
    place = literal_path(path)
    found = spark.read.format(kind).load(place)
    require_read(listed(spark, place, is_deep=False), files_below(spark, place))
    if kind == "json":
        _require_whole_lines(spark, place)
    return found


def _require_whole_lines(spark: SparkSession, place: str) -> None:
    reader = spark.read.option("recursiveFileLookup", "true")  # else a folder `value=1` is a column
    lines = reader.text(place).select("value", F.col("_metadata.file_path").alias("file"))
    line = F.col("value")
    found = lines.where(line.rlike(r"\S") & ~is_one_value(line)).head()
    if found is not None:
        raise OSError(f"a line of {unquote(found['file'])} is not one JSON value")
