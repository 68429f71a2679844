"""Two sources compared by content: what one lacks, has too much, or holds otherwise."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.config import JournalSource, VerifyRequest
from chain_verifier.findings import Finding, Kind
from chain_verifier.report import Report, Verdict

from .agreement import verified_by_both
from .planted_faults import CHAIN_ID, Row, chain_of, head_of, id_of, write_journal

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


def changed(rows: Sequence[Row], **at: Row) -> list[Row]:
    """The rows, some replaced: `r5` is row 5."""
    return [at.get(f"r{number}", row) for number, row in enumerate(rows)]


def columns_of(number: int, **fields: Any) -> dict[str, Row]:
    return {f"r{number}": replace(ROWS[number], **fields)}


def differing(first: int, *columns: str, last: int | None = None) -> dict[str, Any]:
    """Neighbours that differ in the same way are one."""
    ends = {} if last is None else {"last_id": ROWS[last].id, "rows": last - first + 1}
    return {"kind": Kind.DIFFERING, "id": ROWS[first].id, "columns": columns} | ends


def lacking(number: int) -> dict[str, Any]:
    return {"kind": Kind.LACKING, "id": ROWS[number].id}


def surplus(row: Row) -> dict[str, Any]:
    return {"kind": Kind.SURPLUS, "id": row.id}


FILLED = [index for index in range(20, 60) if ROWS[index].payload]
ADDED = Row(id_of(ROWS[50]) + 1, ROWS[50].pid, "added")
# The row 30 was taken out together with the link to it: there the chain alone looks whole.
RELINKED = replace(ROWS[31], pid=ROWS[30].pid)

Case = tuple[list[Row], list[Row], list[dict[str, Any]], dict[str, int]]
"""The base, the source, how they differ, and what is found in them beside that."""

CASES: dict[str, Case] = {
    "the same rows": (ROWS, ROWS, [], {}),
    "another order": (ROWS, [ROWS[1], ROWS[0], *ROWS[2:]], [], {"out_of_order": 1}),
    # One column; several; swapped between two rows; moved from one column to the next.
    "values changed": (
        changed(ROWS, **columns_of(11, key="ab", payload=b"c")),
        changed(
            ROWS,
            **columns_of(2, key="é\x00"), **columns_of(3, event_time_ns=5),
            **columns_of(4, key="other", event_time_ns=5),
            **columns_of(8, key=ROWS[9].key), **columns_of(9, key=ROWS[8].key),
            **columns_of(11, key="a", payload=b"bc"),
            **columns_of(FILLED[0], payload=b"other"), **columns_of(FILLED[-1], payload=b""),
        ),
        [differing(2, "key"), differing(3, "event_time_ns"), differing(4, "key", "event_time_ns"),
         differing(8, "key", last=9), differing(11, "key", "payload"),
         differing(FILLED[0], "payload"), differing(FILLED[-1], "payload")],
        {},
    ),
    "a row twice, once without a key": (
        ROWS,
        [*ROWS[:8], replace(ROWS[8], key=None), replace(ROWS[8], key="a"), *ROWS[9:]],
        [surplus(ROWS[8])],
        {"duplicate": 1, "null": 1},
    ),
    "rows missing, repeated and added": (
        ROWS,
        [*ROWS[:10], *ROWS[11:21], *ROWS[20:30], RELINKED, *ROWS[32:51], ADDED, *ROWS[51:]],
        [lacking(10), lacking(30), differing(31, "pid"), surplus(ROWS[20]), surplus(ADDED)],
        {"duplicate": 1, "fork": 1, "gap": 1},
    ),
    "no row": (
        ROWS, [], [lacking(0) | {"last_id": HEAD, "rows": len(ROWS)}], {"gap": 1}
    ),
    "a value lacking on both sides": (
        changed(ROWS, **columns_of(5, key=None), **columns_of(6, payload=None)),
        changed(ROWS, **columns_of(5, key=None, payload=b"other"), **columns_of(6, payload=b"")),
        [differing(5, "payload", last=6)],
        {"null": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.merge) if name == "values changed" else name
     for name in CASES],
)  # fmt: skip
def test_compare_names_each_difference_and_nothing_else(compared: Compare, name: str) -> None:
    base, own, expected, alone = CASES[name]
    report = compared(base, own)
    (comparison,) = report.comparisons
    names: dict[str, Any] = {"source": comparison.source, "against": comparison.against}
    found = [one for one in report.findings if one.against]
    assert sorted(found, key=str) == sorted(
        (Finding(**names, **fields) for fields in expected), key=str
    )
    assert comparison.is_equal is not bool(expected)
    both = Counter(one["kind"].value for one in expected) + Counter(alone)
    assert report.counts == both
    assert report.verdict is (Verdict.BROKEN if both else Verdict.COMPLETE)


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
    assert [(one.kind, one.id, one.columns) for one in report.findings] == [
        (Kind.DIFFERING, ROWS[30].id, ("payload",))
    ]
