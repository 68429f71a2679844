"""Files of one's own, of which Spark reads every one: it leaves some out without a word."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documents use

from chain_verifier.config import literal_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_BY_PATH: Final = re.compile(
    r"`?(avro|binaryfile|csv|json|orc|parquet|text|xml)`?\s*\.\s*`.*", re.IGNORECASE | re.DOTALL
)


def open_table(spark: SparkSession, name: str) -> DataFrame:
    """Return a table of the session's catalog.

    Raises OSError for files by their path, such as parquet.`/x`, which Spark takes for one: it may
    leave out some; and as Spark does.
    """
    if _BY_PATH.fullmatch(name.strip()):
        raise OSError("files are named as parquet:PATH")
    return spark.table(name)


def open_files(spark: SparkSession, kind: str, path: str) -> DataFrame:
    """Return the rows of a file, or of a folder with all that is below it.

    Raises OSError where Spark would leave out a file: an empty one, one in a folder below, or one
    beside folders `name=value`; and as Spark does for what it cannot open.
    """
    place = literal_path(path)
    found = spark.read.format(kind).load(place)
    # Spark lists the files of this format as those of any other, and opens none for their names.
    names = spark.read.format("binaryFile")
    read = {row[0] for row in names.load(place).select(F.input_file_name()).collect()}
    every = names.option("recursiveFileLookup", "true").load(place).inputFiles()
    if not every:
        raise OSError("it holds no file whose name begins with neither _ nor .")
    left_out = sorted(set(every) - read)
    if left_out:
        why = "it is empty, or not every file is in the folder itself or in folders name=value"
        raise OSError(f"Spark leaves out {unquote(left_out[0])}: {why}")
    return found
