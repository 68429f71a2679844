"""Two sources compared by content: what one lacks, has too much, or holds otherwise."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.config import JournalSource, VerifyRequest
from chain_verifier.findings import Finding, Kind
from chain_verifier.report import Report, Verdict
from tests.integration.chain_verifier.agreement import verified_by_both
from tests.integration.chain_verifier.planted_faults import (
    CHAIN_ID,
    Row,
    chain_of,
    head_of,
    id_of,
    write_journal,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    Compare = Callable[[Sequence[Row], Sequence[Row]], Report]

ROWS = chain_of(random.Random(5), 60)
HEAD = head_of(ROWS)


@pytest.fixture
def compared(spark: SparkSession, tmp_path: Path) -> Compare:
    """Verifies two journals, `base` and `own`, together, by both modes."""

    def run(base: Sequence[Row], own: Sequence[Row]) -> Report:
        write_journal(tmp_path / "base", base)
        write_journal(tmp_path / "own", own)
        request = VerifyRequest(
            chain_id=CHAIN_ID,
            sources=tuple(JournalSource(path=str(tmp_path / name)) for name in ("base", "own")),
            head=HEAD,
            bucket_bits=4,
        )
        return verified_by_both(request, spark)

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


@pytest.mark.merge
def test_compare_with_values_changed_names_each_row_and_column(compared: Compare) -> None:
    """One column; several; swapped between two rows; moved from one column to the next."""
    filled = [index for index in range(20, 60) if ROWS[index].payload]
    own, base = list(ROWS), list(ROWS)
    own[filled[0]] = replace(ROWS[filled[0]], payload=b"other")
    own[filled[-1]] = replace(ROWS[filled[-1]], payload=b"")
    own[2] = replace(ROWS[2], key="é\x00")
    own[3] = replace(ROWS[3], event_time_ns=5)
    own[4] = replace(ROWS[4], key="other", event_time_ns=5)
    own[8], own[9] = replace(ROWS[8], key=ROWS[9].key), replace(ROWS[9], key=ROWS[8].key)
    base[11] = replace(ROWS[11], key="ab", payload=b"c")
    own[11] = replace(ROWS[11], key="a", payload=b"bc")
    report = compared(base, own)
    changed = {
        2: ("key",), 3: ("event_time_ns",), 4: ("key", "event_time_ns"), 8: ("key",),
        11: ("key", "payload"), filled[0]: ("payload",), filled[-1]: ("payload",),
    }  # fmt: skip
    assert differences(report) == [
        difference(
            report, Kind.DIFFERING, id=ROWS[index].id, columns=columns,
            # Two neighbours that differ in the same way are one.
            **({"last_id": ROWS[9].id, "rows": 2} if index == 8 else {}),
        )
        for index, columns in sorted(changed.items())
    ]  # fmt: skip
    assert report.verdict is Verdict.BROKEN
    assert [source.verdict for source in report.sources] == [Verdict.COMPLETE] * 2


def test_compare_with_a_row_that_stands_twice_with_other_content_and_a_null_names_it(
    compared: Compare,
) -> None:
    own = [*ROWS[:8], replace(ROWS[8], key=None), replace(ROWS[8], key="a"), *ROWS[9:]]
    report = compared(ROWS, own)
    assert differences(report) == [difference(report, Kind.SURPLUS, id=ROWS[8].id)]
    assert report.counts == {"duplicate": 1, "null": 1, "surplus": 1}


def test_compare_with_rows_missing_repeated_and_added_names_each(compared: Compare) -> None:
    added = Row(id_of(ROWS[50]) + 1, ROWS[50].pid, "added")
    # The row 30 was taken out together with the link to it: there the chain alone looks whole.
    relinked = replace(ROWS[31], pid=ROWS[30].pid)
    own = [
        *ROWS[:10], *ROWS[11:21], *ROWS[20:30], relinked, *ROWS[32:51], added, *ROWS[51:],
    ]  # fmt: skip
    report = compared(ROWS, own)
    assert sorted(differences(report), key=str) == sorted(
        [
            difference(report, Kind.LACKING, id=ROWS[10].id),
            difference(report, Kind.LACKING, id=ROWS[30].id),
            difference(report, Kind.DIFFERING, id=ROWS[31].id, columns=("pid",)),
            difference(report, Kind.SURPLUS, id=ROWS[20].id),
            difference(report, Kind.SURPLUS, id=added.id),
        ],
        key=str,
    )
    assert report.comparisons[0].counts == {"differing": 1, "lacking": 2, "surplus": 2}
    assert report.sources[1].counts == {"duplicate": 1, "fork": 1, "gap": 1}


def test_compare_with_one_source_empty_counts_every_row(compared: Compare) -> None:
    report = compared(ROWS, [])
    assert report.comparisons[0].counts == {"lacking": 1}
    assert report.comparisons[0].row_counts == {"lacking": len(ROWS)}


def test_compare_with_rows_in_another_order_is_equal_in_content(compared: Compare) -> None:
    report = compared(ROWS, [ROWS[1], ROWS[0], *ROWS[2:]])
    assert report.comparisons[0].is_equal
    assert report.counts == {"out_of_order": 1}


_XX_PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F)
_WORD = 2**64


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) % _WORD


def _collider(payload: bytes) -> bytes:
    """Other 16 bytes with the same xxHash64 under every seed.

    A bit flipped in what the first word is mixed to becomes the highest bit of the state, whatever
    that was; the second word takes it back.
    """
    first, second = _XX_PRIMES
    words = []
    for at, bit in ((0, 36), (8, 63)):
        word = int.from_bytes(payload[at : at + 8], "little")
        mixed = _rotated(word * second % _WORD, 31) * first % _WORD ^ (1 << bit)
        back = _rotated(mixed * pow(first, -1, _WORD) % _WORD, 33) * pow(second, -1, _WORD)
        words.append((back % _WORD).to_bytes(8, "little"))
    return b"".join(words)


def test_compare_with_a_payload_made_to_collide_under_any_key_of_a_fast_hash_names_its_row(
    compared: Compare, spark: SparkSession
) -> None:
    payload = random.Random(1).randbytes(16)
    other = _collider(payload)
    assert payload != other
    sides = [F.xxhash64(F.lit(seed), F.lit(side)) for seed in (1, 2) for side in (payload, other)]
    found = spark.range(1).select(F.array(*sides)).collect()[0][0]
    assert (found[0], found[2]) == (found[1], found[3])
    base, own = list(ROWS), list(ROWS)
    base[30], own[30] = replace(ROWS[30], payload=payload), replace(ROWS[30], payload=other)
    report = compared(base, own)
    assert differences(report) == [
        difference(report, Kind.DIFFERING, id=ROWS[30].id, columns=("payload",))
    ]


def test_compare_with_rows_that_lack_a_value_on_both_sides_still_compares_the_rest(
    compared: Compare,
) -> None:
    base, own = list(ROWS), list(ROWS)
    base[5], own[5] = replace(ROWS[5], key=None), replace(ROWS[5], key=None, payload=b"other")
    base[6], own[6] = replace(ROWS[6], payload=None), replace(ROWS[6], payload=b"")
    report = compared(base, own)
    assert differences(report) == [
        difference(
            report, Kind.DIFFERING, id=ROWS[5].id, last_id=ROWS[6].id, rows=2, columns=("payload",)
        )
    ]
