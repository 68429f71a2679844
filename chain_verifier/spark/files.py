"""Rows in files on Spark: a journal, read in Python's workers, and Parquet, by Spark's own reader.

The latter is the fastest there is; the columns, and what is refused, are those of
`sources.parquet`.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from functools import partial
from os.path import abspath
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import astuple
from pyspark.sql import functions as F  # noqa: N812

from chain_kernel.errors import InputError, SettingError, SourceBroken
from chain_kernel.files import FoundRow, found_row
from chain_verifier.config import literal_path
from chain_verifier.places import is_url, open_to_read, place_of
from chain_verifier.sources.columns import ARROW_TYPES
from chain_verifier.sources.content import CONTENT, EVENT_TYPES
from chain_verifier.sources.journal import JournalRows
from chain_verifier.sources.parquet import CHAIN_FOLDER, MIXED_FOLDERS, require_columns
from chain_verifier.spark.errors import SPARK_ERRORS, as_broken, spark_reason
from chain_verifier.spark.listing import files_below, listed, require_read
from chain_verifier.spark.table import (
    BLOCK,
    HAS_NULL,
    MALFORMED,
    POSITION,
    any_null,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Never

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

    from chain_verifier.config import JournalSource, ParquetSource
    from chain_verifier.sources.journal import JournalRange


class JournalTable:
    """The rows of one journal, as it was when it was opened: what is appended later is left out."""

    has_positions: Final = True
    may_lack: Final = ()

    def __init__(self, spark: SparkSession, source: JournalSource) -> None:
        self.name = source.name
        self._spark = spark
        self._journal = JournalRows(source)
        self.span = self._journal.span
        self.notes = self._journal.notes()

    @property
    def rows(self) -> DataFrame:
        """The rows, each with its place in the file: a block is a range that a worker reads."""
        ranges = self._journal.ranges()
        numbers = self._spark.range(0, len(ranges), 1, len(ranges))
        found = numbers.mapInArrow(partial(_journal_rows, self._journal, ranges), _JOURNAL_SCHEMA)
        return found.withColumn(HAS_NULL, any_null())

    def refuse_line(self) -> Never:
        """Raise InputError with the number of the first line that is no row."""
        for _ in self._journal.pages():
            pass
        raise SourceBroken(self.name, "it changed while it was being read")


def _journal_rows(
    journal: JournalRows, ranges: Sequence[JournalRange], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read the ranges of some numbers, in a worker; a line that is no row is malformed."""
    for number in (number for batch in batches for number in batch["id"].to_pylist()):
        position = 0
        for lines in journal.lines(ranges[number]):
            found = [found_row(line.removesuffix(b"\n")) for line in lines]
            content = zip(*(astuple(row or _NO_ROW) for row in found), strict=True)
            columns = {
                name: pa.array(column, ARROW_TYPES[kind])
                for (name, kind), column in zip(EVENT_TYPES.items(), content, strict=True)
            }
            columns[MALFORMED] = pa.array([row is None for row in found])
            columns[BLOCK] = pa.array([number] * len(found), pa.int64())
            columns[POSITION] = pa.array(range(position, position + len(found)), pa.int64())
            position += len(found)
            yield pa.RecordBatch.from_pydict(columns)


_NO_ROW: Final = FoundRow()
_JOURNAL_SCHEMA: Final = ", ".join(
    f"{name} {kind}"
    for name, kind in {
        **EVENT_TYPES, MALFORMED: "boolean", BLOCK: "bigint", POSITION: "bigint",
    }.items()
)  # fmt: skip


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
