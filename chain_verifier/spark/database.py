"""The chain in PostgreSQL: the head first, then the pages below it, in parallel."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.config import (
    CONNECTIONS_MAX,
    FETCH_PAGES,
    DatabaseSource,
)
from chain_verifier.database_facts import (
    SQL,
    DatabaseFacts,
    DatabaseHead,
    filled,
    page_ranges,
)
from chain_verifier.server import Reading
from chain_verifier.sources.content import CONTENT, EVENT
from chain_verifier.sources.database import PageRange
from chain_verifier.spark.errors import as_broken
from chain_verifier.spark.finding_frame import finding_frame, sampled
from chain_verifier.spark.statements import WorkerLogin, find, find_rows
from chain_verifier.spark.table import HAS_NULL, MALFORMED, ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from chain_verifier.findings import Findings
    from chain_verifier.spark.statements import Decode
    from chain_verifier.spark.table import Table


FINDS: Final = {
    "edges": "last_id bigint, first_id bigint, pid bigint, rows int, is_path boolean",
    "page_faults": (
        "last_id bigint, kind string, id bigint, until_id bigint, ids array<bigint>, "
        "columns array<string>, after_id bigint, count bigint"
    ),
}
"""The columns that statements of `database.sql` find."""

_ROWS_A_CONNECTION: Final = 500_000
"""A second connection costs more than it saves below this many rows."""

EVERY_ID: Final = range(-(2**63), 2**63)

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
        super().__init__(source.name, chain_id, start)
        self._spark = spark
        self._source = source
        self.head = self._read_head() if head is None else head

    def _ask(self, statement: str) -> list[Any]:
        with Reading(self._source.database, self._source.connect_seconds) as reading:
            return reading.fetch(statement)

    @cached_property
    def login(self) -> WorkerLogin:
        """As whom workers log in."""
        return WorkerLogin.of(self._source)

    def sealed(self, check: Callable[[Collection[int]], Decode], schema: str) -> DataFrame:
        """Return what a check yields for all batches up to the head with what is stored of them.

        They come in numbered parts. `check` is given the parts that repeat the last batch of the
        one before.
        """
        parts = self._parts(_SEALED_PARTS, -1)
        until_ids = sorted({min(until_id, self.head.last_id) for until_id in parts})
        afters = [-1, *(parts.get(until_id, until_id) for until_id in until_ids)]
        within = [
            f"id > {after} AND id <= {until_id}"
            for after, until_id in zip(afters, until_ids, strict=False)
        ]
        repeating = frozenset(
            number for number, until_id in enumerate(until_ids, 1) if afters[number] < until_id
        )
        statements = self._within("sealed", within)
        return find(self._spark, self.login, statements, schema, check(repeating), FETCH_PAGES)

    # -- pages ---------------------------------------------------------------------------------

    @property
    def paths(self) -> DataFrame:
        """The pages, each as the one path that its rows form.

        The server compares the rows of a page with each other: the rows of a whole chain need not
        be sent. For a page that is no path, or begins at or before the start, `has_null` is true.
        """
        pages = self._compared("edges")
        return paths_of(pages.withColumn("chain_id", F.lit(self._chain_id)), F.lit(self._start))

    def page_faults(self) -> Findings:
        """Return what is wrong with pages as such; searched for once. Raises SourceBroken."""
        if self._faults is None:
            with as_broken(self.name):
                pages = self._compared("page_faults").persist()
                try:
                    self._faults = sampled(finding_frame(pages, source=self.name))
                finally:
                    pages.unpersist()
        return self._faults

    def _compared(self, name: str) -> DataFrame:
        """Return what a statement finds that compares the rows of each page."""
        within = [f"last_id > {after} AND last_id <= {until}" for after, until in self._ranges()]
        statements = self._within(name, within, self.head.has_rules)
        return find(self._spark, self.login, statements, FINDS[name])

    @property
    def rows(self) -> DataFrame:
        """The rows, read over several connections."""
        return self.rows_with(CONTENT)

    def rows_with(self, names: Sequence[str], ids: range = EVERY_ID) -> DataFrame:
        """Return the rows of the pages with one of `ids`, with the columns `names`, ids and pids.

        All rows come if pages misstate what they hold.
        """
        # What the database does not accept need not be looked for in every column.
        asked = (set(names) if self.head.has_rules else set(CONTENT)) | {"id", "pid"}
        if ids != EVERY_ID and self.page_faults().total:
            ids = EVERY_ID
        ranges = [
            PageRange(self._chain_id, max(after, ids.start - 1), min(until, ids.stop - 1), until)
            for after, until in self._ranges()
        ]
        tasks = [[each] for each in ranges if each.after_id < each.until_id]
        found = find_rows(self._spark, self.login, tasks, [name for name in EVENT if name in asked])
        return found.withColumn(MALFORMED, F.lit(False))

    # -- reading -------------------------------------------------------------------------------

    def _ranges(self) -> list[tuple[int, int]]:
        """Return ranges (after, until] of the ends of pages with about the same number of rows."""
        count = min(CONNECTIONS_MAX, self.head.rows_counted // _ROWS_A_CONNECTION + 1)
        ends = self._parts(count, self._start) if count > 1 else ()
        return page_ranges(ends, self._start, self.last_row_id)

    def _parts(self, count: int, after_id: int) -> dict[int, int]:
        """Return the ends of ranges of batches, and where the last batch of each begins."""
        with self._as_broken():
            parts = self._fetch("parts", count, after_id)
        return {part["until_id"]: part["next_after_id"] for part in parts}

    def _within(self, name: str, conditions: Sequence[str], *values: bool) -> list[str]:
        """Return a statement for each of some conditions on what it finds."""
        statement = filled(SQL[name], self._chain_id, *values)
        return [
            f"SELECT * FROM ({statement}) AS {name} WHERE {each}"  # noqa: S608 - ours
            for each in conditions
        ]


def rows_of(table: Table, names: Sequence[str] = (), ids: range = EVERY_ID) -> DataFrame:
    """Return rows of a table, at least those with one of `ids`, with ids, pids and `names`.

    Spark itself leaves out what it does not need of files; a database is asked for no more.
    """
    return table.rows_with(names, ids) if isinstance(table, DatabaseTable) else table.rows


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
