"""Tables of the catalog, and files of one's own: Spark reads every file, each to its end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documents use
from pyspark.sql.types import StringType, StructField, StructType

from chain_verifier.config import literal_path
from chain_verifier.spark.errors import SPARK_ERRORS, spark_reason
from chain_verifier.spark.listing import files_below, folder_columns, listed, require_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_LEAVING_OUT: Final = re.compile(
    r"(ignoreCorruptFiles|ignoreMissingFiles|ignoreInvalidPartitionPaths)=true"
    r"|(orc\.skip\.corrupt\.data|ignore\.inputs\.without\.extension)=true"
    r"|mode=dropMalformed|ignoreExtension=false"
    r"|(pathGlobFilter|modifiedBefore|modifiedAfter|pathFilter\.class)=[^,\]]*"
    r"|(?<![\w.])comment=(?!, |\](?!\])).",  # none, if it is empty
    re.IGNORECASE,
)
"""Options of a table by which Spark leaves rows of it out, without a word.

`header` is none of them: by it, the owner says that the first line of each file holds no row.
"""


def open_table(spark: SparkSession, name: str) -> DataFrame:
    """Return a table of the session's catalog.

    Raises OSError where there is none, or rows of it are left out by its options, or may be as
    those of JSON: what comes after the first value of a line.
    """
    try:
        table = spark.table(name)
        table.schema  # noqa: B018 - over Connect, only this looks for the table
        described = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    except SPARK_ERRORS as error:
        raise OSError(f"{spark_reason(error)}; files are named as parquet:PATH") from error
    known = {row["col_name"]: row["data_type"] for row in described}
    options = f"{known.get('Storage Properties')} {known.get('Table Properties')}"
    if found := _LEAVING_OUT.search(options):
        raise OSError(f"its option {found[0]} leaves rows out")
    if str(known.get("Provider")).lower() == "json":
        raise OSError("files of JSON are named as json:PATH: only so each line is read to its end")
    # Each table of Hive has a provider, also without partitions.
    if "# Partition Information" in known and known.get("Partition Provider") == "Catalog":
        _require_partitions(spark, name, table)
    return table


def _require_partitions(spark: SparkSession, name: str, table: DataFrame) -> None:
    """Raise OSError for a partition whose folder is gone: Spark reads the others, without a word.

    Where a file is read in the folder of its name, it is there; the others are looked up.
    """
    try:
        partitions = [row[0] for row in spark.sql(f"SHOW PARTITIONS {name}").collect()]
        depth = partitions[0].count("/") + 1 if partitions else 0
        files = (file.split("/") for file in table.inputFiles())
        read = {unquote("/".join(parts[-depth - 1 : -1])) for parts in files}
        others = [_place_of(spark, name, each) for each in partitions if each not in read]
        if others:
            spark.read.format("binaryFile").load(others).schema  # noqa: B018 - as above
    except SPARK_ERRORS as error:
        raise OSError(f"a partition of it cannot be read: {spark_reason(error)}") from error


def _place_of(spark: SparkSession, name: str, partition: str) -> str:
    values = []
    for part in partition.split("/"):
        column, _, value = part.partition("=")
        text = unquote(value).replace("\\", "\\\\").replace("'", "\\'")
        values.append(f"`{unquote(column)}` = '{text}'")
    described = spark.sql(f"DESCRIBE TABLE EXTENDED {name} PARTITION ({', '.join(values)})")
    places = [row["data_type"] for row in described.collect() if row["col_name"] == "Location"]
    return literal_path(places[0])  # the table's own comes after it


def open_files(spark: SparkSession, kind: str, path: str, *, text: str | None) -> DataFrame:
    """Return the rows of a file, or of a folder with all that is below it.

    Where folders `name=value` name the column `text`, it is text: 01 is not 1.

    Raises OSError where Spark would leave out a file, or a part of a line of JSON; and as Spark
    does for what it cannot open.
    """
    place = literal_path(path)
    found = spark.read.format(kind).load(place)
    require_read(listed(spark, place, is_deep=False), files_below(spark, place))
    if kind == "json":
        _require_whole_lines(spark, place)
    if text is None or text not in folder_columns(spark, place):
        return found
    fields = {field.name: field.dataType for field in found.schema} | {text: StringType()}
    schema = StructType([StructField(name, of) for name, of in fields.items()])
    return spark.read.format(kind).schema(schema).load(place)


def _require_whole_lines(spark: SparkSession, place: str) -> None:
    reader = spark.read.option("recursiveFileLookup", "true")  # else a folder `value=1` is a column
    lines = reader.text(place).select("value", F.col("_metadata.file_path").alias("file"))
    # Spark's parser stops after the first value of a line, and says nothing; what follows one that
    # ends the list itself counts for neither.
    line = F.col("value")
    one, two = (
        F.size(F.from_json(F.concat(F.lit("["), line, F.lit(f"{more}]")), "array<string>"))
        for more in ("", ",0")
    )
    is_one_value = F.coalesce((one == 1) & (two == 2), F.lit(False))
    found = lines.where(line.rlike(r"\S") & ~is_one_value).head()
    if found is not None:
        raise OSError(f"a line of {unquote(found['file'])} is not one JSON value")
