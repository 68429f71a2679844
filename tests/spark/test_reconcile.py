"""Two sources compared by content: what one lacks, has too much, or holds otherwise."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from chain_verifier.config import JournalSource, VerifyRequest
from chain_verifier.findings import Finding, Kind
from chain_verifier.report import Report, Verdict
from chain_verifier.verify import verify
from tests.spark.planting import CHAIN_ID, Row, chain_of, head_of, write_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    Compare = Callable[[Sequence[Row], Sequence[Row]], Report]

ROWS = chain_of(random.Random(5), 60)
HEAD = head_of(ROWS)


@pytest.fixture
def compared(spark: SparkSession, tmp_path: Path) -> Compare:
    """Verifies two journals, `base` and `own`, together."""

    def run(base: Sequence[Row], own: Sequence[Row]) -> Report:
        write_journal(tmp_path / "base", base)
        write_journal(tmp_path / "own", own)
        request = VerifyRequest(
            chain_id=CHAIN_ID,
            sources=tuple(JournalSource(path=str(tmp_path / name)) for name in ("base", "own")),
            head=HEAD,
            bucket_bits=4,
        )
        return verify(request, spark)

    return run


def differences(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.against]


def difference(report: Report, kind: Kind, **fields: Any) -> Finding:
    (comparison,) = report.comparisons
    return Finding(kind=kind, source=comparison.source, against=comparison.against, **fields)


def test_compare_with_the_same_rows_is_equal(compared: Compare) -> None:
    report = compared(ROWS, ROWS)
    assert report.is_clean
    assert report.verdict is Verdict.COMPLETE
    assert report.comparisons[0].is_equal


@pytest.mark.parametrize(
    ("column", "value"),
    [("key", "other"), ("event_time_ns", 5), ("payload", b"other"), ("payload", b"")],
)
def test_compare_with_one_value_changed_names_row_and_column(
    compared: Compare, column: str, value: object
) -> None:
    row = next(row for row in ROWS[20:] if row.payload)
    changed = [replace(one, **{column: value}) if one is row else one for one in ROWS]
    report = compared(ROWS, changed)
    assert differences(report) == [difference(report, Kind.DIFFERING, id=row.id, columns=(column,))]
    assert report.verdict is Verdict.BROKEN
    assert [source.verdict for source in report.sources] == [Verdict.COMPLETE] * 2


def test_compare_with_values_swapped_between_two_rows_names_both(compared: Compare) -> None:
    swapped = list(ROWS)
    swapped[8] = replace(ROWS[8], key=ROWS[9].key)
    swapped[9] = replace(ROWS[9], key=ROWS[8].key)
    report = compared(ROWS, swapped)
    assert differences(report) == [
        difference(report, Kind.DIFFERING, id=row.id, columns=("key",)) for row in ROWS[8:10]
    ]


def test_compare_with_bytes_moved_from_key_to_payload_sees_it(compared: Compare) -> None:
    one, other = list(ROWS), list(ROWS)
    one[8] = replace(ROWS[8], key="ab", payload=b"c")
    other[8] = replace(ROWS[8], key="a", payload=b"bc")
    report = compared(one, other)
    assert differences(report) == [
        difference(report, Kind.DIFFERING, id=ROWS[8].id, columns=("key", "payload"))
    ]


def test_compare_with_rows_missing_repeated_and_added_names_each(compared: Compare) -> None:
    added = Row(ROWS[50].id + 1, ROWS[50].pid, "added")
    own = [*ROWS[:10], *ROWS[11:21], *ROWS[20:51], added, *ROWS[51:]]
    report = compared(ROWS, own)
    assert sorted(differences(report), key=str) == sorted(
        [
            difference(report, Kind.LACKING, id=ROWS[10].id),
            difference(report, Kind.SURPLUS, id=ROWS[20].id),
            difference(report, Kind.SURPLUS, id=added.id),
        ],
        key=str,
    )
    assert report.comparisons[0].counts == {"lacking": 1, "surplus": 2}


def test_compare_with_one_consistent_row_less_on_one_side_names_it(compared: Compare) -> None:
    # Taken out together with the link to it: the chain alone looks whole.
    own = [*ROWS[:10], replace(ROWS[11], pid=ROWS[10].pid), *ROWS[12:]]
    report = compared(ROWS, own)
    assert report.sources[1].verdict is Verdict.COMPLETE
    assert sorted(differences(report), key=str) == sorted(
        [
            difference(report, Kind.LACKING, id=ROWS[10].id),
            difference(report, Kind.DIFFERING, id=ROWS[11].id, columns=("pid",)),
        ],
        key=str,
    )


def test_compare_with_one_source_empty_counts_every_row(compared: Compare) -> None:
    report = compared(ROWS, [])
    assert report.comparisons[0].counts == {"lacking": len(ROWS)}


def test_compare_with_rows_in_another_order_is_equal_in_content(compared: Compare) -> None:
    report = compared(ROWS, [ROWS[1], ROWS[0], *ROWS[2:]])
    assert report.comparisons[0].is_equal
    assert report.counts == {"out_of_order": 1}
