"""Rows in Parquet, with the columns of `chain_event`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.sources.table import CONTENT, EVENT_TYPES, HAS_NULL, MALFORMED, any_null
from chain_verifier.spark_errors import as_broken, reason_of
from orderchain.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from chain_verifier.config import ParquetSource

_ALSO_FITTING: Final = {
    "chain_id": {"bigint", "smallint", "tinyint"},
    "id": {"int"},
    "pid": {"int"},
}
"""Types that hold the same values and are brought to ours."""


class ParquetTable:
    """The rows of one file or folder. An order of rows means nothing here: ids alone count."""

    has_positions: Final = False

    def __init__(self, spark: SparkSession, source: ParquetSource) -> None:
        self.name = source.name
        try:
            self._found = spark.read.parquet(source.path)
        except (PySparkException, Py4JError) as error:
            raise InputError(
                "parquet", source.path, f"Parquet that can be read ({reason_of(error)})"
            ) from error
        self._require_columns()
        self.span = self._span()

    def _require_columns(self) -> None:
        found = dict(self._found.dtypes)
        for name, kind in EVENT_TYPES.items():
            if found.get(name) not in {kind} | _ALSO_FITTING.get(name, set()):
                raise InputError(f"{self.name}, column {name}", found.get(name), f"the type {kind}")

    def _span(self) -> int | None:
        with as_broken(self.name):
            row = self._found.agg(F.min("id"), F.max("id")).head()
        if row is None or row[0] is None:
            return 0
        return int(row[1]) - int(row[0]) + 1

    @property
    def rows(self) -> DataFrame:
        """The rows, in our types."""
        columns = [F.col(name).cast(kind).alias(name) for name, kind in EVENT_TYPES.items()]
        return (
            self._found.select(*columns)
            .withColumn(HAS_NULL, any_null(CONTENT))
            .withColumn(MALFORMED, F.lit(False))
        )
