"""The chain in PostgreSQL, read by JDBC: the head first, then the rows below it, in parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.config import CONNECTIONS_MAX, FETCH_ROWS, DatabaseSource
from chain_verifier.frame_reading import FrameKeys
from chain_verifier.jdbc import chain_address
from chain_verifier.sources.table import CONTENT, HAS_NULL, MALFORMED
from chain_verifier.spark_errors import as_broken, at_connect
from chain_verifier.truth import DatabaseHead, Truth
from orderchain.clients.database_config import DatabaseConfig
from orderchain.errors import ChainMissing, SchemaError
from orderchain.schema import SCHEMA_VERSION
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

_SQL: Final = load_sql("chain_verifier.sources", "database.sql")

_ROWS_A_CONNECTION: Final = 50_000
"""A second connection costs more than it saves below this many ids."""


class DatabaseTable(Truth):
    """The rows of one chain up to the last one there was when the head was read.

    To open it reads the head, and raises ChainMissing, SchemaError or ConnectError.

    Rows committed later are left out: each connection reads a snapshot of its own, and what lies
    below the head no longer changes.
    """

    has_positions: Final = False

    def __init__(self, spark: SparkSession, source: DatabaseSource, chain_id: int) -> None:
        self.name = source.name
        self._spark = spark
        self._chain_id = chain_id
        database = DatabaseConfig.of(source.database)
        self._address = chain_address(database)
        with at_connect(database):
            self.head = self._read_head()

    def head_now(self) -> int:
        """Read the head once more. Raises SourceBroken."""
        with as_broken(self.name):
            return self._read_head().last_id

    def _read_head(self) -> DatabaseHead:
        heads = self._query("heads").where(F.col("chain_id") == self._chain_id).collect()
        versions = [head["version"] for head in heads] or [
            row["version"] for row in self._query("versions").collect()
        ]
        if versions != [SCHEMA_VERSION]:
            raise SchemaError("schema", f"version {versions}", f"version {SCHEMA_VERSION}")
        if not heads:
            raise ChainMissing(self._chain_id)
        head = heads[0]
        self._is_without_null = bool(head["is_without_null"])
        return DatabaseHead(
            last_id=head["last_id"],
            first_row_id=head["first_row_id"],
            last_row_id=head["last_row_id"],
            rows_counted=head["rows_counted"],
            seal=bytes(head["last_seal"]),
            epoch=head["epoch"],
            published_id=head["published_id"],
            topic=head["topic"],
            topic_partition=head["topic_partition"],
            database_id=head["database_id"],
        )

    def batches(self) -> DataFrame:
        """Return, by seal, what the batch behind it is to be; as of when it is read."""
        return self._query("batches").where(F.col("chain_id") == self._chain_id).drop("chain_id")

    def seal_at(self, last_id: int) -> bytes | None:
        """Return the seal after the batch that ends with `last_id`; None if none does."""
        found = self.batches().where(F.col("anchor_id") == last_id).select("anchor").head()
        return None if found is None else bytes(found[0])

    def sealed_rows(self) -> tuple[DataFrame, list[int]]:
        """Return all rows up to the head, and all batches, in parts that cut no batch.

        The last batch of each part comes again with the next one; these are named by their ends.
        """
        parts = self._query("parts").where(F.col("chain_id") == self._chain_id).collect()
        until_ids: list[int] = []
        predicates = []
        after = -1
        for part in sorted(parts, key=lambda part: part["until_id"]):
            until = min(part["until_id"], self.head.last_id)
            if until_ids[-1:] == [until]:  # committed since the head was read
                break
            predicates.append(f"chain_id = {self._chain_id} AND id > {after} AND id <= {until}")
            until_ids.append(until)
            after = part["next_after_id"]
        rows = self._spark.read.jdbc(
            self._address.url,
            f"({_SQL['sealed']}) AS sealed",
            predicates=predicates,
            properties={**self._address.properties, "fetchsize": str(FETCH_ROWS)},
        )
        return rows, until_ids

    def skips(self) -> list[tuple[int, int]]:
        """Return the ranges (after, until] that were never published. Raises SourceBroken."""
        with as_broken(self.name):
            found = self._query("skips").where(F.col("chain_id") == self._chain_id).collect()
        return [(row["after_id"], row["until_id"]) for row in found]

    def frame_keys(self) -> FrameKeys:
        """Return the keys of all terms that there are by now. Raises SourceBroken.

        They come to the driver, and from there to the workers inside the function that uses them:
        in no plan, and so in no page or log of Spark's.
        """
        with as_broken(self.name):
            found = self._query("terms").where(F.col("chain_id") == self._chain_id).collect()
        return FrameKeys({bytes(row["nonce"]): bytes(row["frame_key"]) for row in found})

    @property
    def rows(self) -> DataFrame:
        """The rows, with the id range split over several connections."""
        reader = self._reader().option("dbtable", f"({_SQL['rows']}) AS chain_rows")
        rows = self._split(reader).load()
        # What the database has compared, or does not let in, need not travel with every row.
        known = {"chain_id": F.lit(self._chain_id), MALFORMED: F.lit(False)}
        if self._is_without_null:
            known[HAS_NULL] = F.lit(False)
        return (
            rows.where((F.col("chain_id") == self._chain_id) & (F.col("id") <= self.last_row_id))
            .withColumns(known)
            .select(*CONTENT, HAS_NULL, MALFORMED)
        )

    def rows_between(self, first_id: int, last_id: int) -> DataFrame:
        """Return the rows with ids from `first_id` to `last_id`, as they are when they are read."""
        rows = self._reader().option("dbtable", f"({_SQL['rows']}) AS chain_rows").load()
        is_within = (F.col("id") >= first_id) & (F.col("id") <= last_id)
        return rows.where((F.col("chain_id") == self._chain_id) & is_within).select(*CONTENT)

    def _split(self, reader: DataFrameReader) -> DataFrameReader:
        parts = min(
            CONNECTIONS_MAX,
            self._spark.sparkContext.defaultParallelism,
            self.span // _ROWS_A_CONNECTION + 1,
        )
        if parts == 1:
            return reader
        bounds = {"lowerBound": self.head.first_row_id, "upperBound": self.last_row_id + 1}
        return reader.options(partitionColumn="id", numPartitions=parts, **bounds)

    def _query(self, name: str) -> DataFrame:
        return self._reader().option("dbtable", f"({_SQL[name]}) AS {name}").load()

    def _reader(self) -> DataFrameReader:
        reader = self._spark.read.format("jdbc").option("url", self._address.url)
        return reader.options(**self._address.properties, fetchsize=FETCH_ROWS)
