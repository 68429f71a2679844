"""Reads parts of a source again: the rows of buckets, and the rows that no bucket can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.checks.locate import Link
from chain_verifier.findings import Findings, Kind
from chain_verifier.spark.finding_frame import finding_frame, sampled
from chain_verifier.spark.scan import (
    BEYOND_ROWS,
    FOREIGN_ROWS,
    MALFORMED_ROWS,
    class_of,
    looked_at,
    placed,
    scan,
)
from chain_verifier.spark.sources.table import CONTENT, HAS_NULL, PAGE_FIRST_ID, PAGE_LAST_ID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from chain_verifier.checks.bucket import Bucket, Horizon


_ANY_BITS: Final = 1


class RowOpener:
    """The `Opener` of `chain_verifier.checks.locate` on a Spark frame."""

    def __init__(self, rows: DataFrame, horizon: Horizon, key: int) -> None:
        self._rows = placed(rows, horizon)
        self._horizon = horizon
        self._key = key

    def split(self, buckets: Sequence[Bucket], bits: int) -> list[Bucket]:
        """Return the rows of `buckets`, all of one width, in buckets of 2^bits ids."""
        rows = in_buckets(self._rows, buckets)
        return scan(
            rows, self._horizon, bits, self._key, positions=False, fingerprints=False
        ).buckets

    def links(self, buckets: Sequence[Bucket]) -> list[Link]:
        """Return every row of `buckets`."""
        rows = in_buckets(self._rows, buckets).select("id", "pid").collect()
        return [Link(row["pid"], row["id"], row["id"]) for row in rows]


def in_buckets(rows: DataFrame, buckets: Sequence[Bucket]) -> DataFrame:
    """Return the rows whose ids fall into one of `buckets`.

    A database can use the range over all of them, and the pages of that range; Spark then selects
    the rows of the single buckets.
    """
    has_pages = PAGE_LAST_ID in rows.columns
    lower_id = min(bucket.lower_id for bucket in buckets)
    upper_id = max(bucket.upper_id for bucket in buckets)
    chosen = rows.where(F.col("id") >= lower_id)
    if has_pages:
        chosen = chosen.where(F.col(PAGE_LAST_ID) >= lower_id)
    if upper_id < 2**63:
        chosen = chosen.where(F.col("id") < upper_id)
        if has_pages:
            chosen = chosen.where(F.col(PAGE_FIRST_ID) < upper_id)
    return chosen.where(_is_in(buckets))


def _is_in(buckets: Sequence[Bucket]) -> Column:
    widths = sorted({bucket.bits for bucket in buckets})
    found = F.lit(False)
    for bits in widths:
        numbers = [bucket.number for bucket in buckets if bucket.bits == bits]
        found = found | F.shiftright("id", bits).isin(numbers)
    return found


def rows_with_null(source: str, rows: DataFrame, horizon: Horizon, count: int) -> Findings:
    """Return the rows that have NULL in some column, which a scan has counted."""
    counted_elsewhere = class_of(horizon, _ANY_BITS).isin(MALFORMED_ROWS, FOREIGN_ROWS, BEYOND_ROWS)
    found = looked_at(rows, horizon).where(F.col(HAS_NULL) & ~counted_elsewhere)
    names = F.array_compact(F.array(*map(_name_if_null, CONTENT))).alias("columns")
    frame = finding_frame(found.select("id", "pid", names), kind=Kind.NULL.value, source=source)
    return sampled(frame, {Kind.NULL: count})


def _name_if_null(name: str) -> Column:
    return F.when(F.col(name).isNull(), F.lit(name))


def foreign_rows(source: str, rows: DataFrame, horizon: Horizon, count: int) -> Findings:
    """Return the rows of other chains, which a scan has counted."""
    found = _of_class(rows, horizon, FOREIGN_ROWS).select("id", "pid", "chain_id")
    frame = finding_frame(found, kind=Kind.FOREIGN_CHAIN.value, source=source)
    return sampled(frame, {Kind.FOREIGN_CHAIN: count})


def rows_beyond(source: str, rows: DataFrame, horizon: Horizon, head: int) -> Findings:
    """Return the rows after `head`, which may itself be after that of `horizon`."""
    found = _of_class(rows, horizon, BEYOND_ROWS).where(F.col("id") > head).select("id", "pid")
    return sampled(finding_frame(found, kind=Kind.BEYOND_HEAD.value, source=source, until_id=head))


def _of_class(rows: DataFrame, horizon: Horizon, number: int) -> DataFrame:
    return looked_at(rows, horizon).where(class_of(horizon, _ANY_BITS) == number)
