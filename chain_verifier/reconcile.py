"""Compares two sources row by row, but only where their fingerprints differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.config import FINDINGS_MAX
from chain_verifier.findings import Finding, Findings, Kind, gathered
from chain_verifier.open_rows import in_buckets
from chain_verifier.scan import placed
from chain_verifier.sources.table import CONTENT
from chain_verifier.spark_errors import as_broken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, Row

    from chain_verifier.bucket import Bucket
    from chain_verifier.examine import Examined
    from chain_verifier.horizon import Horizon
    from chain_verifier.sources.table import Table

_COMPARED: Final = tuple(name for name in CONTENT if name not in ("chain_id", "id"))


def compare(
    table: Table,
    own: Examined,
    base: Table,
    of_base: Examined,
    horizon: Horizon,
    skips: Sequence[tuple[int, int]] = (),
) -> Findings:
    """Return what `table` lacks, has too much, or holds with other content than `base`.

    Only between the ends of `horizon`, which may be narrower than what was scanned of either.
    Ranges (after, until] of `skips` may be lacking.
    """
    differing = [
        bucket for bucket in differing_buckets(own.buckets, of_base.buckets)
        if _is_within(bucket, horizon)
    ]  # fmt: skip
    if not differing:
        return Findings()
    with as_broken(f"{table.name} against {base.name}"):
        here = by_id(in_buckets(placed(table.rows, horizon), differing))
        there = by_id(in_buckets(placed(base.rows, horizon), differing))
        pairs = pairs_of(here, there)
        for after, until in skips:
            is_skipped = (F.col("id") > after) & (F.col("id") <= until)
            pairs = pairs.where(~((F.col("kind") == Kind.LACKING.value) & is_skipped))
        return findings_of(pairs, table.name, base.name)


def _is_within(bucket: Bucket, horizon: Horizon) -> bool:
    """Say whether a bucket can hold a row between start and head."""
    ends_behind_start = bucket.upper_id - 1 > horizon.start
    return ends_behind_start and (horizon.head is None or bucket.lower_id <= horizon.head)


def findings_of(pairs: DataFrame, source: str, against: str) -> Findings:
    """Return `pairs` as findings of `source`; all are counted, of each kind the first are kept."""
    counts = {row["kind"]: row["count"] for row in pairs.groupBy("kind").count().collect()}
    findings: list[Finding] = []
    for kind in counts:
        taken = pairs.where(F.col("kind") == kind).orderBy("id").limit(FINDINGS_MAX).collect()
        findings += [_finding(row, source, against) for row in taken]
    kept = {kind: sum(finding.kind == kind for finding in findings) for kind in counts}
    return gathered(findings, {Kind(kind): counts[kind] - kept[kind] for kind in counts})


def differing_buckets(one: Sequence[Bucket], other: Sequence[Bucket]) -> list[Bucket]:
    """Return the buckets, from either side, whose rows are not the same multiset."""
    left = {bucket.number: bucket for bucket in one}
    right = {bucket.number: bucket for bucket in other}
    differing = []
    for number in sorted(left.keys() | right.keys()):
        here, there = left.get(number), right.get(number)
        if here is None or there is None or _print_of(here) != _print_of(there):
            differing.append(here or there)
    return [bucket for bucket in differing if bucket is not None]


def _print_of(bucket: Bucket) -> tuple[int, tuple[int, int]]:
    return bucket.rows, bucket.fingerprint


def by_id(rows: DataFrame) -> DataFrame:
    """Return one row per id: how often it stands, and its lowest and highest content."""
    content = F.struct(*_COMPARED)
    return rows.groupBy("id").agg(
        F.count(F.lit(1)).alias("times"),
        F.min(content).alias("lowest"),
        F.max(content).alias("highest"),
    )


def pairs_of(here: DataFrame, there: DataFrame) -> DataFrame:
    """Return the ids at which the two differ, with the kind of difference."""
    joined = here.alias("h").join(there.alias("t"), "id", "full_outer")
    own, base = (F.coalesce(F.col(f"{side}.times"), F.lit(0)) for side in "ht")
    kind = (
        F.when(own < base, Kind.LACKING.value)
        .when(own > base, Kind.SURPLUS.value)
        .when(_differs(), Kind.DIFFERING.value)
    )
    columns = F.array_compact(F.array(*map(_name_if_other, _COMPARED)))
    compared = joined.select("id", kind.alias("kind"), columns.alias("columns"))
    return compared.where(F.col("kind").isNotNull())


def _differs() -> Column:
    lowest = F.col("h.lowest").eqNullSafe(F.col("t.lowest"))
    return ~(lowest & F.col("h.highest").eqNullSafe(F.col("t.highest")))


def _name_if_other(name: str) -> Column:
    lowest = F.col(f"h.lowest.{name}").eqNullSafe(F.col(f"t.lowest.{name}"))
    highest = F.col(f"h.highest.{name}").eqNullSafe(F.col(f"t.highest.{name}"))
    return F.when(~(lowest & highest), F.lit(name))


def _finding(row: Row, source: str, against: str) -> Finding:
    kind = Kind(row["kind"])
    columns = tuple(row["columns"]) if kind is Kind.DIFFERING else ()
    return Finding(kind=kind, source=source, against=against, id=row["id"], columns=columns)
