"""The chain in PostgreSQL, read by JDBC: the head first, then the pages below it, in parallel."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace
from pyspark.sql import functions as F  # noqa: N812

from chain_kernel.clients.database_config import PINNED, DatabaseConfig, warn_of_exposure
from chain_kernel.clients.options import JdbcAddress, jdbc_address
from chain_kernel.errors import ChainMissing
from chain_verifier.checks.topic_frames import FrameKeys
from chain_verifier.config import (
    CONNECTIONS_MAX,
    FETCH_PAGES,
    FETCH_ROWS,
    READ_TIMEOUT_S,
    DatabaseSource,
)
from chain_verifier.database_facts import (
    SQL,
    DatabaseFacts,
    DatabaseHead,
    filled,
    head_of,
    page_ranges,
)
from chain_verifier.spark.errors import as_broken, at_connect
from chain_verifier.spark.finding_frame import finding_frame, sampled
from chain_verifier.spark.packages import JDBC_DRIVER
from chain_verifier.spark.table import (
    HAS_NULL,
    MALFORMED,
    PAGE_FIRST_ID,
    PAGE_LAST_ID,
    PART,
    ROWS,
)
from chain_verifier.verification import CONTENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from chain_verifier.findings import Findings


_DEFAULTS: Final = {
    "driver": JDBC_DRIVER,
    "ApplicationName": "chain_verifier",
    "socketTimeout": str(READ_TIMEOUT_S),
    "tcpKeepAlive": "true",
    "options": " ".join(f"-c {name}={value}" for name, value in PINNED.items() if " " not in value),
}


def chain_address(source: DatabaseSource) -> JdbcAddress:
    """Return the JDBC address of a chain's database; JDBC waits in whole seconds.

    Raises SettingError for what JDBC cannot do. For a host where another one may pose as the
    server, a warning is logged, as with asyncpg.
    """
    config = DatabaseConfig.of(source.database)
    warn_of_exposure(config)
    address = jdbc_address(config)
    waits = dict.fromkeys(("connectTimeout", "loginTimeout"), str(ceil(source.connect_seconds)))
    return replace(address, properties={**_DEFAULTS, **waits, **address.properties})


def read_statement(
    spark: SparkSession, address: JdbcAddress, statement: str, fetch_rows: int
) -> DataFrame:
    """Return what a statement finds, read over one connection."""
    reader = spark.read.format("jdbc").option("url", address.url)
    reader = reader.options(**address.properties, fetchsize=fetch_rows)
    return reader.option("dbtable", f"({statement}) AS found").load()


_ROWS_A_CONNECTION: Final = 50_000
"""A second connection costs more than it saves below this many rows."""

_SEALED_PARTS: Final = 64
"""Parts in which seals are recomputed: what a failed task repeats."""


class DatabaseTable(DatabaseFacts):
    """The rows of one chain after `start`, up to the last one that existed when the head was read.

    Opening it reads the head, and raises ChainMissing, SchemaError or ConnectError.

    Pages committed later are left out: each connection reads its own snapshot, and pages below the
    head no longer change. Every statement names the chain as a constant, so that the server plans
    only for its partitions.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: DatabaseSource,
        chain_id: int,
        start: int = 0,
        head: DatabaseHead | None = None,
    ) -> None:
        self.name = source.name
        self._spark = spark
        self._chain_id = chain_id
        self._start = start
        self._faults: Findings | None = None
        self.address = chain_address(source)
        if head is None:
            with at_connect(DatabaseConfig.of(source.database)):
                head = self._read_head()
        self.head = head

    def head_now(self) -> int:
        """Read the head once more. Raises SourceBroken."""
        with as_broken(self.name):
            return self._read_head().last_id

    def _read_head(self) -> DatabaseHead:
        statement = filled(SQL["head"], [self._chain_id], [self._start])
        (found,) = read_statement(self._spark, self.address, statement, FETCH_ROWS).collect()
        head = head_of(found.asDict())
        if head is None:
            raise ChainMissing(self._chain_id)
        return head

    def batches(self) -> DataFrame:
        """Return, by seal, what the batch after it must be; as of when it is read."""
        return self._query("batches")

    def seal_at(self, last_id: int) -> bytes | None:
        """Return the seal after the batch that ends with `last_id`; None if none does."""
        found = self._query("seal_at", last_id).head()
        return None if found is None else bytes(found[0])

    def sealed(self) -> tuple[DataFrame, frozenset[int]]:
        """Return all batches up to the head with what is stored of them, in numbered parts.

        The parts that are returned beside them repeat the last batch of the one before.
        """
        parts = self._parts(_SEALED_PARTS, -1)
        until_ids = sorted({min(until_id, self.head.last_id) for until_id in parts})
        afters = [-1, *(parts.get(until_id, until_id) for until_id in until_ids)]
        predicates = [
            f"id > {after} AND id <= {until_id}"
            for after, until_id in zip(afters, until_ids, strict=False)
        ]
        repeating = frozenset(
            number for number, until_id in enumerate(until_ids, 1) if afters[number] < until_id
        )
        batches = self._read("sealed", predicates or ["false"], FETCH_PAGES)
        # Each predicate is a partition.
        return batches.withColumn(PART, F.spark_partition_id()), repeating

    def boundary_now(self) -> int:
        """Read once more where archived rows end. Raises SourceBroken."""
        with as_broken(self.name):
            (found,) = self._query("boundary").collect()
        return int(found["boundary_id"])

    def skips(self) -> list[tuple[int, int]]:
        """Return the ranges (after, until] that were never published. Raises SourceBroken."""
        with as_broken(self.name):
            found = self._query("skips").collect()
        return [(row["after_id"], row["until_id"]) for row in found]

    def frame_keys(self) -> FrameKeys:
        """Return the keys of all terms that exist by now. Raises SourceBroken.

        They come to the driver, and from there to the workers inside the function that uses them.
        They are in no plan, and so in no page or log of Spark.
        """
        with as_broken(self.name):
            found = self._query("terms").collect()
        return FrameKeys({bytes(row["nonce"]): bytes(row["frame_key"]) for row in found})

    # -- pages ---------------------------------------------------------------------------------

    @property
    def paths(self) -> DataFrame:
        """The pages, each as the one path that its rows form.

        The server compares the rows of a page with each other: the rows of a whole chain need not
        be sent. For a page that is no path, or begins at or before the start, `has_null` is true.
        """
        pages = self._read("edges", self._ranges(), FETCH_ROWS, self.head.has_rules)
        return paths_of(pages.withColumn("chain_id", F.lit(self._chain_id)), F.lit(self._start))

    def page_faults(self) -> Findings:
        """Return what is wrong with pages as such; searched for once. Raises SourceBroken."""
        if self._faults is None:
            with as_broken(self.name):
                pages = self._read(
                    "page_faults", self._ranges(), FETCH_ROWS, self.head.has_rules
                ).persist()
                try:
                    self._faults = sampled(finding_frame(pages, source=self.name))
                finally:
                    pages.unpersist()
        return self._faults

    @property
    def rows(self) -> DataFrame:
        """The rows, read over several connections, with the ends of their pages.

        If pages misstate what they hold, these ends are left out: they must not be used to find
        rows.
        """
        rows = self._read("rows", self._ranges("page_last_id"), FETCH_ROWS)
        # What the database has compared, or does not accept, need not be sent with every row.
        known = {"chain_id": F.lit(self._chain_id), MALFORMED: F.lit(False)}
        if self.head.has_rules:
            known[HAS_NULL] = F.lit(False)
        ends = () if self.page_faults().total else (PAGE_FIRST_ID, PAGE_LAST_ID)
        return rows.withColumns(known).select(*CONTENT, HAS_NULL, MALFORMED, *ends)

    def rows_between(self, first_id: int, last_id: int) -> DataFrame:
        """Return the rows with ids from `first_id` to `last_id`, as they are when they are read."""
        is_within = (F.col("id") >= first_id) & (F.col("id") <= last_id)
        is_page_within = (F.col(PAGE_LAST_ID) >= first_id) & (F.col(PAGE_FIRST_ID) <= last_id)
        return self._of_chain(self._query("rows").where(is_page_within & is_within))

    def rows_at(self, ids: Sequence[int]) -> DataFrame:
        """Return the rows with one of `ids`, as they are when they are read."""
        return self._of_chain(self._query("rows_at", ids).where(F.col("id").isin(list(ids))))

    def _of_chain(self, rows: DataFrame) -> DataFrame:
        return rows.withColumn("chain_id", F.lit(self._chain_id)).select(*CONTENT)

    # -- reading -------------------------------------------------------------------------------

    def _ranges(self, last_id: str = "last_id") -> list[str]:
        """Return conditions on the end of a page that cut all pages into ranges with about the same
        number of rows each.
        """
        count = min(CONNECTIONS_MAX, self.head.rows_counted // _ROWS_A_CONNECTION + 1)
        ends = self._parts(count, self._start) if count > 1 else ()
        ranges = page_ranges(ends, self._start, self.last_row_id)
        return [f"{last_id} > {after} AND {last_id} <= {until}" for after, until in ranges]

    def _parts(self, count: int, after_id: int) -> dict[int, int]:
        """Return the ends of ranges of batches, and where the last batch of each begins."""
        parts = self._query("parts", count, after_id).collect()
        return {part["until_id"]: part["next_after_id"] for part in parts}

    def _read(
        self, name: str, predicates: Sequence[str], fetch_rows: int, *values: bool
    ) -> DataFrame:
        return self._spark.read.jdbc(
            self.address.url,
            f"({filled(SQL[name], self._chain_id, *values)}) AS {name}",
            predicates=list(predicates),
            properties={**self.address.properties, "fetchsize": str(fetch_rows)},
        )

    def _query(self, name: str, *values: int | bool | Sequence[int]) -> DataFrame:
        statement = filled(SQL[name], self._chain_id, *values)
        return read_statement(self._spark, self.address, statement, FETCH_ROWS)


def paths_of(pages: DataFrame, start: Column) -> DataFrame:
    """Return pages, as `edges` describes them, each as the one path that its rows form.

    A page that begins at or before `start` holds rows that are not looked at: its `has_null` is
    true, as that of a page that is no path.
    """
    is_path = F.col("is_path") & (F.col("first_id") > start)
    return pages.select(
        "chain_id",
        F.col("last_id").alias("id"),
        "pid",
        "first_id",
        F.col("rows").cast("bigint").alias(ROWS),
        (~is_path).alias(HAS_NULL),
        F.lit(False).alias(MALFORMED),
    )
