"""Rows in files: the journal of a receiver, and Parquet.

A journal is JSON Lines, in the order in which the rows were handed on. It is read as lines, so that
each keeps its place and none is misread.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from os.path import abspath
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812

from chain_kernel.errors import InputError, SettingError
from chain_kernel.files import LINE_BYTES_MAX, journal_end, no_row
from chain_kernel.limits import PAYLOAD_BYTES_MAX
from chain_verifier.config import literal_path
from chain_verifier.places import is_url, open_to_read, place_of
from chain_verifier.spark.errors import SPARK_ERRORS, as_broken, spark_reason
from chain_verifier.spark.json_lines import is_one_value
from chain_verifier.spark.listing import files_below, listed, require_read
from chain_verifier.spark.table import (
    BLOCK,
    HAS_NULL,
    MALFORMED,
    POSITION,
    any_null,
)
from chain_verifier.verification import (
    CHAIN_FOLDER,
    CONTENT,
    EVENT_TYPES,
    MIXED_FOLDERS,
    require_columns,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession

    from chain_verifier.config import JournalSource, ParquetSource


_CORRUPT: Final = "_corrupt_record"
_LINE: Final = "line"
_TEXT: Final = "payload_text"

_JSON_TYPES: Final = EVENT_TYPES | {"payload": "string", _CORRUPT: "string"}
_JSON_SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in _JSON_TYPES.items())
_JSON_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
}


class JournalTable:
    """The rows of one journal, as it was when it was opened: what is appended later is left out."""

    has_positions: Final = True
    may_lack: Final = ()

    def __init__(self, spark: SparkSession, source: JournalSource) -> None:
        self.name = source.name
        self._place = place_of("journal", source.path).absolute()
        self._bytes, self._is_torn, self.span = journal_end(self._place, open_to_read)
        # Made once: Spark lists the file now, and reads no line that begins after this end.
        path = f"file://{self._place}" if isinstance(self._place, Path) else source.path
        self._lines = _numbered_lines(spark, path)
        if self._bytes and not self._lines.inputFiles():
            raise InputError("journal", source.path, "a file name that begins with neither _ nor .")

    def may_end_torn(self) -> bool:
        """Whether the last line may be cut off: by a crash, or because a receiver is writing it."""
        return self._is_torn or self._place.stat().st_size != self._bytes

    @property
    def rows(self) -> DataFrame:
        """The rows, each with its place in the file."""
        fields = F.from_json(F.col(_LINE), _JSON_SCHEMA, _JSON_OPTIONS)
        named = self._lines.withColumn("fields", fields).select(_LINE, BLOCK, POSITION, "fields.*")
        decoded = named.withColumnRenamed("payload", _TEXT).withColumn(
            "payload", F.try_to_binary(_TEXT, F.lit("base64"))
        )
        is_no_base64 = F.col(_TEXT).isNotNull() & F.col("payload").isNull()
        is_large = F.coalesce(F.octet_length("payload") > PAYLOAD_BYTES_MAX, F.lit(False))
        is_malformed = F.col(_CORRUPT).isNotNull() | ~_is_one_object() | is_no_base64 | is_large
        return (
            decoded.withColumn(MALFORMED, is_malformed)
            .withColumn(HAS_NULL, any_null())
            .select(*CONTENT, HAS_NULL, MALFORMED, BLOCK, POSITION, _LINE)
        )

    def malformed_error(self) -> InputError:
        """Return the error that names the first line that is no row of a journal."""
        found = self.rows.where(MALFORMED).orderBy(BLOCK, POSITION).select(_LINE).head()
        line = "" if found is None else str(found[0])
        return no_row(self.name, line, self._number_of(line))

    def _number_of(self, line: str) -> int | None:
        with self._place.open("rb") as file:
            lines = iter(lambda: file.readline(LINE_BYTES_MAX), b"")
            for number, found in enumerate(lines, 1):
                if found.rstrip(b"\n").decode(errors="replace") == line:
                    return number
        return None


def _numbered_lines(spark: SparkSession, path: str) -> DataFrame:
    return (
        spark.read.option("lineSep", "\n")
        .text(literal_path(path))
        .select(
            F.col("value").alias(_LINE),
            F.col("_metadata.file_block_start").alias(BLOCK),
            F.monotonically_increasing_id().alias(POSITION),
        )
    )


def _is_one_object() -> Column:
    """Return whether a line is one JSON object to its end.

    Otherwise, two lines that ran into each other would pass for one. The line is parsed once more
    only where that may have happened: a row holds no object, and a text seldom such a character.
    """
    line = F.col(_LINE)
    is_single = F.when(F.instr(line, "}") < F.length(line), is_one_value(line))
    return line.endswith("}") & is_single.otherwise(F.lit(True))


_CHECKSUMS: Final = "parquet.page.verify-checksum.enabled"
_OLD_READERS: Final = "spark.sql.sources.useV1SourceList"
_FROM_FOOTERS: Final = "spark.sql.parquet.aggregatePushdown"


_WIDE_SCHEMA: Final = ", ".join(
    f"{name} {'bigint' if kind == 'int' else kind}" for name, kind in EVENT_TYPES.items()
)
"""Our columns, in types that hold what each file may have: another one may have narrower ones."""


class ParquetTable:
    """The rows of one file or folder. The order of rows means nothing here: only ids count."""

    has_positions: Final = False
    may_lack: Final = ()

    def __init__(self, spark: SparkSession, source: ParquetSource) -> None:
        self.name = source.name
        self._spark = spark
        self._path = literal_path(source.path)
        try:
            files = files_below(spark, self._path)
            self._is_by_chain = _are_in_chain_folders(files, source.path)
            require_read(listed(spark, self._path, is_deep=not self._is_by_chain), files)
            # Our columns alone are read: Spark may not know the type of another one.
            self._found = self._reader().schema(_WIDE_SCHEMA).parquet(self._path)
            types = self._types(files[0])
        except (*SPARK_ERRORS, OSError) as error:
            reason = str(error) if isinstance(error, OSError) else spark_reason(error)
            expected = f"Parquet that can be read ({reason})"
            raise InputError("parquet", source.path, expected) from error
        if types is not None:
            require_columns(self.name, types)
        self.span = self._span()

    def _reader(self) -> DataFrameReader:
        """With folders `name=value`, Spark leaves out the files beside them, without a word."""
        reader = self._spark.read.option(_CHECKSUMS, "true")
        return reader.option("recursiveFileLookup", not self._is_by_chain)

    def _types(self, file: str) -> dict[str, str] | None:
        """Return the types of the columns; None where nothing here can look them up."""
        try:
            return dict(self._reader().parquet(self._path).dtypes)
        except SPARK_ERRORS:  # it knows none for one of the others
            self._found.head()  # raises for another type than ours, or if it is no Parquet
        try:
            with open_to_read(place_of("parquet", file)) as opened:
                names = set(pq.read_schema(opened).names)
        except (pa.ArrowException, OSError, SettingError):
            return None  # Each row shows NULL for a column that is not there.
        names |= {CONTENT[0]} if self._is_by_chain else set()
        return {name: kind for name, kind in EVENT_TYPES.items() if name in names}

    def _span(self) -> int:
        """Return how many ids there are from the lowest to the highest, if the footers know it.

        It is only good for the width of buckets, whatever it is: Spark takes the statistics of a
        column by its place, and files may differ in that. A look at every id would cost a third of
        the check.
        """
        ends = F.min("id"), F.max("id")
        row = None
        with suppress(*SPARK_ERRORS), _footers_read(self._spark):
            row = self._reader().parquet(self._path).agg(*ends).head()
        if row is None or row[0] is None:
            with as_broken(self.name):
                row = self._found.agg(*ends).head()
        return 0 if row is None or row[0] is None else max(0, int(row[1]) - int(row[0]) + 1)

    @property
    def rows(self) -> DataFrame:
        """The rows, in our types."""
        columns = [F.col(name).cast(kind).alias(name) for name, kind in EVENT_TYPES.items()]
        return (
            self._found.select(*columns)
            .withColumn(HAS_NULL, any_null())
            .withColumn(MALFORMED, F.lit(False))
        )


def _are_in_chain_folders(files: Sequence[str], root: str) -> bool:
    """Return whether folders below the root, and not those above it, name the chain."""
    # Links stay in it, as in Spark's names.
    path = root if is_url(root) else abspath(root)  # noqa: PTH100
    above = _chain_folders(path.split("/"))
    found = {_chain_folders(file.split("/")[:-1]) > above for file in files}
    if len(found) > 1:
        raise OSError(MIXED_FOLDERS)
    return True in found


def _chain_folders(names: Sequence[str]) -> int:
    return sum(name.startswith(CHAIN_FOLDER) for name in names)


@contextmanager
def _footers_read(spark: SparkSession) -> Iterator[None]:
    """Make Spark answer from Parquet's footers where it can; only its newer reader does this."""
    sources = str(spark.conf.get(_OLD_READERS))
    usual = {_OLD_READERS: sources, _FROM_FOOTERS: str(spark.conf.get(_FROM_FOOTERS))}
    newer = ",".join(name for name in sources.split(",") if name != "parquet")
    try:
        spark.conf.set(_OLD_READERS, newer)
        spark.conf.set(_FROM_FOOTERS, "true")
        yield
    finally:
        for name, value in usual.items():
            spark.conf.set(name, value)
