"""Rows in Parquet, with the columns of `chain_event`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.spark.errors import as_broken, reason_of
from chain_verifier.spark.sources.table import CONTENT, EVENT_TYPES, HAS_NULL, MALFORMED, any_null
from orderchain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from chain_verifier.config import ParquetSource


_ALSO_FITTING: Final = {
    "chain_id": {"bigint", "smallint", "tinyint"},
    "id": {"int"},
    "pid": {"int"},
}
"""Types that hold the same values and are cast to ours."""


_OLD_READERS: Final = "spark.sql.sources.useV1SourceList"
_FROM_FOOTERS: Final = "spark.sql.parquet.aggregatePushdown"


class _Footers(NamedTuple):
    """What the statistics of all row groups show together."""

    span: int
    has_null: bool


class ParquetTable:
    """The rows of one file or folder. The order of rows means nothing here: only ids count."""

    has_positions: Final = False

    def __init__(self, spark: SparkSession, source: ParquetSource) -> None:
        self.name = source.name
        self._spark = spark
        self._path = source.path
        try:
            self._found = spark.read.parquet(source.path)
        except (PySparkException, Py4JError) as error:
            raise InputError(
                "parquet", source.path, f"Parquet that can be read ({reason_of(error)})"
            ) from error
        self._require_columns()
        footers = self._footers()
        self.span = self._span(footers)
        self._may_have_null = footers is None or footers.has_null

    def _require_columns(self) -> None:
        found = dict(self._found.dtypes)
        for name, kind in EVENT_TYPES.items():
            if found.get(name) not in {kind} | _ALSO_FITTING.get(name, set()):
                raise InputError(f"{self.name}, column {name}", found.get(name), f"the type {kind}")

    def _span(self, footers: _Footers | None) -> int:
        if footers is not None:
            return footers.span
        with as_broken(self.name):
            row = self._found.agg(F.min("id"), F.max("id")).head()
        return 0 if row is None or row[0] is None else int(row[1]) - int(row[0]) + 1

    def _footers(self) -> _Footers | None:
        """Return what the files' footers show; None if they have no statistics.

        A look at every id would cost a third of the check, and one at every column for NULLs as
        much as all the rest. The links do not depend on the footers: whatever footers say of ends,
        each row is counted where it is, and a row without id or pid is seen in its place.
        """
        counts = [F.count(name) for name in CONTENT]
        try:
            with _footers_read(self._spark):
                extremes = (
                    self._spark.read.schema(self._found.schema)
                    .parquet(self._path)
                    .agg(F.min("id"), F.max("id"), F.count("*"), *counts)
                )
                row = extremes.head()
        except (PySparkException, Py4JError):
            return None
        if row is None or row[0] is None:
            return None
        has_null = any(count != row[2] for count in row[3:])
        return _Footers(int(row[1]) - int(row[0]) + 1, has_null)

    @property
    def rows(self) -> DataFrame:
        """The rows, in our types."""
        columns = [F.col(name).cast(kind).alias(name) for name, kind in EVENT_TYPES.items()]
        return (
            self._found.select(*columns)
            .withColumn(HAS_NULL, any_null(CONTENT) if self._may_have_null else F.lit(False))
            .withColumn(MALFORMED, F.lit(False))
        )


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
