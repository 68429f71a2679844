"""Checks a table of the catalog, or files: findings are counted, appended to a table, reported."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from msgspec import Struct
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documents use

from chain_kernel.errors import InputError, RetryError, SettingError
from chain_verifier.dataframe.frame import KINDS, column_of, verify_frame
from chain_verifier.findings import Finding, Kind
from chain_verifier.sources.table import open_files, open_table
from chain_verifier.spark.errors import as_broken, spark_reason
from chain_verifier.spark.session import loses_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

_FILES: Final = ("parquet", "orc", "json")

_SHOWN_MAX: Final = 1_000
"""Findings that are reported; all are counted, and appended to a table."""

_NEEDS_PID: Final = frozenset(
    {Kind.FORK, Kind.SECOND_ROOT, Kind.ORPHAN, Kind.PID_NOT_BELOW_ID, Kind.DAMAGED_RANGE}
)


class TableCheck(Struct, frozen=True, kw_only=True):
    """Which table is checked, and by which columns, as `verify_frame` has them."""

    name: str
    """A table of the session's catalog, or files: `parquet:PATH`, `orc:PATH`, `json:PATH`."""
    id: str
    pid: str | None = None
    key: str | None = None
    order: str | None = None
    after: int = 0
    """The id before the first row; it counts with `pid` or heads."""
    head: int | None = None
    """The last id that there has to be."""
    heads: dict[str, int] | None = None
    """The same by key."""
    findings_table: str | None = None
    """Findings are appended to it; it is made if it does not exist."""

    @property
    def source(self) -> str:
        """Its name in the report."""
        return f"table:{self.name}"

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of findings that were looked for."""
        return [
            kind
            for kind in KINDS
            if (self.pid or kind not in _NEEDS_PID) and (self.order or kind != Kind.OUT_OF_ORDER)
        ]


class TableReport(Struct, frozen=True, kw_only=True):
    """Findings in a table."""

    source: str
    rows: int
    rows_without_id: int
    first_id: int | None
    last_id: int | None
    counts: dict[str, int]
    """Findings by kind."""
    findings: tuple[dict[str, Any], ...]
    """The first ones, with the columns of `verify_frame`; what is empty is left out."""
    run_id: str
    finished_at: datetime

    @property
    def is_clean(self) -> bool:
        """True if rows were read, and nothing is wrong with them."""
        return bool(self.rows) and not self.counts

    def lines(self) -> list[str]:
        """Return the report as lines for people."""
        lines = [f"{one.get('key', self.source)}: {_text(one)}" for one in self.findings]
        more = sum(self.counts.values()) - len(lines)
        counts = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items())
        found = counts or ("nothing wrong" if self.rows else "nothing was read")
        span = "" if self.first_id is None else f", ids {self.first_id} to {self.last_id}"
        last = f"{self.source}: {self.rows:,} rows{span}: {found}"
        return [*lines, *([f"... {more:,} more"] if more else []), last]


def _text(found: Mapping[str, Any]) -> str:
    fields: dict[str, Any] = {name: value for name, value in found.items() if name != "key"}
    lists: dict[str, Any] = {
        name: tuple(fields[name]) for name in ("ids", "columns") if name in fields
    }
    return Finding(source="", **(fields | lists | {"kind": Kind(found["kind"])})).text


def check_table(spark: SparkSession, check: TableCheck) -> TableReport:
    """Check a table. Raises InputError where it or a column is missing, SourceBroken where it
    cannot be read to its end, RetryError where findings cannot be appended, SettingError where they
    would end with the session.
    """
    into = check.findings_table
    if into is not None and loses_table(spark, into):
        expected = "a table that stays: by spark-submit, SPARK_REMOTE, or in a catalog of its own"
        raise SettingError("--findings-table", into, expected)
    try:
        table = _opened(spark, check)
    except (PySparkException, Py4JError, OSError) as error:
        reason = str(error) if isinstance(error, OSError) else spark_reason(error)
        expected = f"a table that Spark finds ({reason})"
        raise InputError("NAME", check.source, expected) from error
    with as_broken(check.source):
        head: int | DataFrame | None = check.head
        if check.heads is not None:
            head = spark.createDataFrame([*check.heads.items()], "key STRING, head BIGINT")
        found = verify_frame(
            table, id=check.id, pid=check.pid, key=check.key, order=check.order,
            start=check.after, head=head,
        ).persist()  # fmt: skip
        try:
            return _reported(spark, check, table, found)
        finally:
            found.unpersist()


def _opened(spark: SparkSession, check: TableCheck) -> DataFrame:
    """Open a table of the catalog, or files of a `FORMAT:PATH`."""
    kind, colon, path = check.name.partition(":")
    if not colon:
        return open_table(spark, check.name)
    if kind not in _FILES or not path:
        raise OSError(f"of files, {', '.join(f'{each}:PATH' for each in _FILES)}")
    return open_files(spark, kind, path, text=check.key)


def _reported(
    spark: SparkSession, check: TableCheck, table: DataFrame, found: DataFrame
) -> TableReport:
    ids = column_of(check.id)
    (of_all,) = table.agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if(ids.isNull()).alias("nulls"),
        F.min(ids).alias("a"),
        F.max(ids).alias("b"),
    ).collect()
    counts = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    shown = found.orderBy("key", F.coalesce("id", "after_id")).limit(_SHOWN_MAX).collect()
    report = TableReport(
        source=check.source,
        rows=of_all["rows"],
        rows_without_id=of_all["nulls"],
        first_id=None if of_all["a"] is None else int(of_all["a"]),
        last_id=None if of_all["b"] is None else int(of_all["b"]),
        counts=dict(sorted(counts.items())),
        findings=tuple(
            {name: value for name, value in row.asDict().items() if value is not None}
            for row in shown
        ),
        run_id=str(uuid4()),
        finished_at=datetime.now(UTC),
    )
    if check.findings_table is not None:
        _append(found, report, check.findings_table)
    return report


def _append(found: DataFrame, report: TableReport, table: str) -> None:
    known = {
        "run_id": F.lit(report.run_id),
        "source": F.lit(report.source),
        "found_at": F.lit(report.finished_at),
    }
    try:
        found.select(
            *(column.alias(name) for name, column in known.items()), *found.columns
        ).write.mode("append").saveAsTable(table)
    except (PySparkException, Py4JError) as error:
        reason = spark_reason(error)
        raise RetryError(f"findings could not be appended to {table}: {reason}") from error
