"""Compares two sources row by row, where their fingerprints differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.findings import Findings, Kind
from chain_verifier.sources.content import CONTENT
from chain_verifier.spark.errors import as_broken
from chain_verifier.spark.finding_frame import finding_frame, sampled_rows
from chain_verifier.spark.source_check import in_buckets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from chain_verifier.checks.buckets import Bucket, Horizon
    from chain_verifier.spark.table import Table


_COMPARED: Final = tuple(name for name in CONTENT if name not in ("chain_id", "id"))


def compare(
    table: Table,
    base: Table,
    differing: Sequence[Bucket],
    horizon: Horizon,
) -> Findings:
    """Return what `table` lacks, has in surplus, or holds otherwise in the `differing` buckets."""
    with as_broken(f"{table.name} against {base.name}"):
        here = by_id(in_buckets(table, horizon, differing, CONTENT))
        there = by_id(in_buckets(base, horizon, differing, CONTENT))
        pairs = pairs_of(here, there)
        for after, until in table.may_lack:
            is_skipped = (F.col("id") > after) & (F.col("id") <= until)
            pairs = pairs.where(~((F.col("kind") == Kind.LACKING.value) & is_skipped))
        return findings_of(pairs, table.name, base.name)


def forged_findings(name: str, forged: DataFrame, base: Table, horizon: Horizon) -> Findings:
    """Return the rows of forged frames after the start that `base` does not hold, or holds with
    other content.
    """
    here = by_id(forged.where(F.col("id") > horizon.start).distinct())
    there = base.rows.where(F.col("chain_id") == horizon.chain_id)
    with as_broken(f"{name} against {base.name}"):
        pairs = pairs_of(here, by_id(there.join(here.select("id"), "id", "left_semi")))
        return findings_of(pairs.where(F.col("kind") != Kind.LACKING.value), name, base.name)


def findings_of(pairs: DataFrame, source: str, against: str) -> Findings:
    """Return `pairs` as findings of `source`; all are counted, the first of each kind are kept."""
    return sampled_rows(finding_frame(pairs, source=source, against=against))


def by_id(rows: DataFrame) -> DataFrame:
    """Return one row per id: how often it occurs, and its lowest and highest content."""
    content = F.struct(*_COMPARED)
    return rows.groupBy("id").agg(
        F.count(F.lit(1)).alias("times"),
        F.min(content).alias("lowest"),
        F.max(content).alias("highest"),
    )


def pairs_of(here: DataFrame, there: DataFrame) -> DataFrame:
    """Return the ids at which the two differ, with the kind of difference and the lowest pid there.

    The pid is that of the base, but for a row in surplus.
    """
    joined_findings = here.alias("h").join(there.alias("t"), "id", "full_outer")
    own, base = (F.coalesce(F.col(f"{side}.times"), F.lit(0)) for side in "ht")
    kind = (
        F.when(own < base, Kind.LACKING.value)
        .when(own > base, Kind.SURPLUS.value)
        .when(_is_other(""), Kind.DIFFERING.value)
    )
    others = [F.when(_is_other(f".{name}"), F.lit(name)) for name in _COMPARED]
    columns = F.array_compact(F.array(*others))
    named = F.when(own == base, columns)
    pid = F.when(own > base, F.col("h.lowest.pid")).otherwise(F.col("t.lowest.pid"))
    compared = joined_findings.select(
        "id", pid.alias("pid"), kind.alias("kind"), named.alias("columns")
    )
    return compared.where(F.col("kind").isNotNull())


def _is_other(name: str) -> Column:
    lowest = F.col(f"h.lowest{name}").eqNullSafe(F.col(f"t.lowest{name}"))
    return ~(lowest & F.col(f"h.highest{name}").eqNullSafe(F.col(f"t.highest{name}")))
