"""Files that Spark should read, and does: it leaves some out without a word."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documents use
from pyspark.sql.types import StringType, StructField, StructType

from chain_verifier.sources.parquet import is_hidden

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession


def files_below(spark: SparkSession, path: str) -> list[str]:
    """Return the URLs of a file, or of all files in a folder and below it that are not hidden.

    Raises OSError if there is none; and as Spark does for a path that it cannot list.
    """
    every = listed(spark, path, is_deep=True).inputFiles()
    found = [file for file in every if not is_hidden(file.rpartition("/")[2])]
    if not found:
        raise OSError("it holds no file whose name begins with neither _ nor .")
    return found


def require_read(listing: DataFrame, files: Sequence[str]) -> None:
    """Raise OSError for one of `files` that a listing leaves out: an empty one, one in a folder
    below, or one beside folders `name=value`.
    """
    read = {row[0] for row in listing.select(F.input_file_name()).collect()}
    left_out = sorted(set(files) - read)
    if left_out:
        why = "it is empty, or not every file is in the folder itself or in folders name=value"
        raise OSError(f"Spark leaves out {unquote(left_out[0])}: {why}")


def listed(spark: SparkSession, path: str, *, is_deep: bool) -> DataFrame:
    """Return one row per file that Spark reads.

    Spark lists the files of this format as those of any other, and opens none for their names.
    `is_deep` takes those in all folders below, also those that are no `name=value`.
    """
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", is_deep)
    return reader.load(path)


def folder_columns(spark: SparkSession, path: str) -> list[str]:
    """Return the columns that folders `name=value` below a path have.

    Beside one that no folder can name: one of the same name would take its place.
    """
    none = StructType([StructField("/", StringType())])
    return spark.read.format("parquet").schema(none).load(path).columns[1:]  # it opens no file
