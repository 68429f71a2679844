"""Two rows under one key are found by both modes, where the policy of keys forbids them."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from chain_kernel.limits import ID_MAX
from chain_kernel.sql import AUDITOR
from chain_verifier.config import DatabaseSource, ParquetSource, Source, VerifyRequest
from chain_verifier.findings import Kind
from chain_verifier.report import Report, Verdict
from tests.integration.chain_verifier.agreement import verified_by_both
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, Row, chain_of, head_of
from tests.integration.chain_verifier.stored_rows import store

Verified = Callable[..., Report]

ROWS = chain_of(random.Random(31), 60)
HEAD = head_of(ROWS)


@pytest.fixture
def verified(spark: SparkSession) -> Verified:
    def run(source: Source, **options: Any) -> Report:
        request = VerifyRequest(
            chain_id=CHAIN_ID,
            sources=(source,),
            **({"key_window_rows": 10**6, "bucket_bits": 5} | options),
        )
        return verified_by_both(request, spark)

    return run


def keyed(keys: Mapping[int, str | None], rows: Sequence[Row] = ROWS) -> list[Row]:
    return [replace(row, key=keys.get(at, row.key)) for at, row in enumerate(rows)]


def pairs(report: Report) -> list[tuple[tuple[int, ...], str]]:
    return [(one.ids, one.key) for one in report.findings if one.kind is Kind.REPEATED_KEY]


def test_keys_that_stand_once_are_no_finding(
    verified: Verified, parquet_of: Callable[[Sequence[Row]], ParquetSource]
) -> None:
    source = parquet_of(ROWS)
    report = verified(source, head=HEAD)
    assert (report.verdict, report.keys_compared) == (Verdict.COMPLETE, True)
    assert report.lines()[0].endswith(", keys compared")
    without = verified(source, head=HEAD, key_window_rows=None)
    assert (without.verdict, without.keys_compared) == (Verdict.COMPLETE, False)


SKIP = 10**15
FAR = [
    row if at < 30 else replace(
        row, id=(row.id or 0) + SKIP, pid=(row.pid or 0) + (SKIP if at > 30 else 0)
    )
    for at, row in enumerate(ROWS)
]  # fmt: skip
OF_CLIENT = ["x#1", "x#y#0", f"c\n#{ID_MAX}", "é#7"]
FREE = ["x#01", "#1", "x#", f"x#{ID_MAX + 1}", "x#1\n", "x#-1", "x#१", "x#1.5"]
NUMBERS: dict[int, str | None] = {at: key for at, key in enumerate([*OF_CLIENT, *FREE])}
NUMBERS |= {at + 30: key for at, key in NUMBERS.items()}

Case = tuple[list[Row], int, list[tuple[int, int, str]]]
"""The rows, the window, and by their places the rows that are named with their key."""

CASES: dict[str, Case] = {
    # Exactly as far apart as the window, further, three times, NULL, and of other case.
    "within the window": (
        keyed({3: "a", 13: "a", 4: "b", 15: "b", 20: "c\n", 25: "c\n", 29: "c\n", 40: None,
               41: None, 50: "d", 51: "D", 52: "d "}),
        10,
        [(3, 13, "a"), (20, 25, "c\n"), (25, 29, "c\n")],
    ),
    # After a take-over ids go on far ahead: that makes no row lie between.
    "far apart by their ids": (
        keyed({25: "a", 35: "a", 24: "b", 36: "b"}, FAR), 10, [(25, 35, "a")],
    ),
    "numbers of a client": (
        keyed(NUMBERS), 5, [(at, at + 30, key) for at, key in enumerate(OF_CLIENT)],
    ),
    "numbers of a client, and what is no such key": (
        keyed(NUMBERS), 30, [(at, at + 30, key) for at, key in enumerate([*OF_CLIENT, *FREE])],
    ),
    "an id twice": (
        [*ROWS, ROWS[5], replace(ROWS[9], key=ROWS[8].key)], 10**6, [(8, 9, ROWS[8].key or "")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.merge) if name == "within the window" else name
     for name in CASES],
)  # fmt: skip
def test_keys_that_come_again_name_both_rows(
    verified: Verified, parquet_of: Callable[[Sequence[Row]], ParquetSource], name: str
) -> None:
    rows, window, expected = CASES[name]
    wide = {"bucket_bits": None} if head_of(rows) > SKIP else {}
    report = verified(parquet_of(rows), head=head_of(rows), key_window_rows=window, **wide)
    assert pairs(report) == [((rows[a].id, rows[b].id), key) for a, b, key in expected]
    assert report.counts["repeated_key"] == len(expected)
    assert all(line.isprintable() for line in report.lines())


def test_keys_of_a_database_are_compared_behind_the_start(
    verified: Verified, database: str, role_dsn: Callable[[str], str]
) -> None:
    asyncio.run(store(database, keyed({2: "a", 30: "a", 40: "a"})))
    source = DatabaseSource(database=role_dsn(AUDITOR))
    later = ((ROWS[30].id, ROWS[40].id), "a")
    assert pairs(verified(source)) == [((ROWS[2].id, ROWS[30].id), "a"), later]
    start = ROWS[9].id or 0
    assert pairs(verified(source, start=start)) == [later]
