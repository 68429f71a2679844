"""Findings as a frame of Spark: one row each, however many; the driver takes a sample of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.config import FINDINGS_MAX
from chain_verifier.findings import Finding, Findings, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, Row


FINDING_TYPES: Final = {
    "kind": "string",
    "source": "string",
    "id": "bigint",
    "pid": "bigint",
    "ids": "array<bigint>",
    "after_id": "bigint",
    "until_id": "bigint",
    "count": "bigint",
    "expected_count": "bigint",
    "columns": "array<string>",
    "against": "string",
    "chain_id": "bigint",
    "epoch": "bigint",
    "expected_epoch": "bigint",
    "key": "string",
    "seal": "string",
    "expected_seal": "string",
    "mark_id": "bigint",
    "verified_by": "string",
    "verified_at": "string",
}
"""The fields of a finding, with their types in Spark; empty ones are NULL."""

_IN_ORDER: Final = ("id", "pid", "after_id")


def finding_frame(rows: DataFrame, **fields: str | int) -> DataFrame:
    """Return `rows` as findings: `fields` are the same for all; columns of the same names fill the
    other fields.
    """
    columns = []
    for name, kind in FINDING_TYPES.items():
        if name in fields:
            column = F.lit(fields[name])
        elif name in rows.columns:
            column = F.col(name)
        else:
            column = F.lit(None)
        columns.append(column.cast(kind).alias(name))
    return rows.select(*columns)


def sampled(frame: DataFrame, counts: Mapping[Kind, int] | None = None) -> Findings:
    """Return the findings of `frame`: all are counted, the first few of each kind are kept.

    If `counts` is known, it saves the counting. The driver sees no more than that, however many
    findings there are.
    """
    if counts is None:
        found = frame.groupBy("kind").agg(F.count(F.lit(1)).alias("findings")).collect()
        counts = {Kind(row["kind"]): row["findings"] for row in found}
    kept = [
        finding_of(row)
        for kind in sorted(counts)
        for row in frame.where(F.col("kind") == kind.value)
        .orderBy(*_IN_ORDER)
        .limit(FINDINGS_MAX)
        .collect()
    ]
    return Findings(
        kept=tuple(kept),
        counts={kind.value: count for kind, count in counts.items() if count},
        wholes=(frame,) if kept else (),
    )


def finding_of(row: Row) -> Finding:
    """Return one row of a frame as a finding."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in row.asDict().items()
        if value is not None
    }
    return Finding(**(fields | {"kind": Kind(row["kind"])}))
