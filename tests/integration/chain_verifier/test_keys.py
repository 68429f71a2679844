"""Two rows under one key are found by both modes, where the policy of keys forbids them."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from chain_kernel.limits import ID_MAX
from chain_kernel.sql import AUDITOR
from chain_verifier.config import DatabaseSource, VerifyRequest
from chain_verifier.findings import Kind
from chain_verifier.report import Report, Verdict
from tests.integration.chain_verifier.agreement import verified_by_both
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, Row, chain_of, head_of
from tests.integration.chain_verifier.stored_rows import store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from chain_verifier.config import ParquetSource, Source

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


def pair(first: int, second: int, key: str, rows: Sequence[Row] = ROWS) -> Any:
    return (rows[first].id, rows[second].id), key


def test_keys_that_stand_once_are_no_finding(
    verified: Verified, parquet_of: Callable[[Sequence[Row]], ParquetSource]
) -> None:
    source = parquet_of(ROWS)
    report = verified(source, head=HEAD)
    assert (report.verdict, report.keys_compared) == (Verdict.COMPLETE, True)
    assert report.lines()[0].endswith(", keys compared")
    without = verified(source, head=HEAD, key_window_rows=None)
    assert (without.verdict, without.keys_compared) == (Verdict.COMPLETE, False)


@pytest.mark.merge
def test_keys_that_stand_again_within_the_window_name_both_rows(
    verified: Verified, parquet_of: Callable[[Sequence[Row]], ParquetSource]
) -> None:
    """Exactly as far apart as the window, further, three times, NULL, and of other case."""
    planted: dict[int, str | None] = {
        3: "a", 13: "a", 4: "b", 15: "b", 20: "c\n", 25: "c\n", 29: "c\n", 40: None, 41: None,
        50: "d", 51: "D", 52: "d ",
    }  # fmt: skip
    rows = keyed(planted)
    report = verified(parquet_of(rows), head=HEAD, key_window_rows=10)
    assert pairs(report) == [
        pair(3, 13, "a"), pair(20, 25, "c\n"), pair(25, 29, "c\n"),
    ]  # fmt: skip
    assert report.row_counts == {"repeated_key": 3, "null": 2}
    (text,) = {one.text for one in report.findings if one.key == "a"}
    assert text == f"two orders under one key: rows {ROWS[3].id}, {ROWS[13].id} have the key 'a'"
    assert all(line.isprintable() for line in report.lines())


def test_keys_far_apart_by_their_ids_are_judged_by_the_rows_between(
    verified: Verified, parquet_of: Callable[[Sequence[Row]], ParquetSource]
) -> None:
    """After a take-over ids go on far ahead: that makes no row lie between."""
    skip = 10**15
    rows = [
        row if at < 30 else replace(
            row, id=(row.id or 0) + skip, pid=(row.pid or 0) + (skip if at > 30 else 0)
        )
        for at, row in enumerate(ROWS)
    ]  # fmt: skip
    rows = keyed({25: "a", 35: "a", 24: "b", 36: "b"}, rows)
    report = verified(parquet_of(rows), head=head_of(rows), key_window_rows=10, bucket_bits=None)
    assert pairs(report) == [pair(25, 35, "a", rows)]


def test_numbers_of_a_client_never_stand_again_and_what_is_no_such_key_may(
    verified: Verified, parquet_of: Callable[[Sequence[Row]], ParquetSource]
) -> None:
    of_client = ["x#1", "x#y#0", f"c\n#{ID_MAX}", "é#7"]
    free = ["x#01", "#1", "x#", f"x#{ID_MAX + 1}", "x#1\n", "x#-1", "x#१", "x#1.5"]
    keys = {at: key for at, key in enumerate([*of_client, *free])}
    keys |= {at + 30: key for at, key in keys.items()}
    report = verified(parquet_of(keyed(keys)), head=HEAD, key_window_rows=5)
    assert pairs(report) == [pair(at, at + 30, key) for at, key in enumerate(of_client)]
    near = verified(parquet_of(keyed(keys)), head=HEAD, key_window_rows=30)
    assert [key for _, key in pairs(near)] == [*of_client, *free]


def test_an_id_that_stands_twice_is_a_duplicate_and_no_repeated_key(
    verified: Verified, parquet_of: Callable[[Sequence[Row]], ParquetSource]
) -> None:
    rows = [*ROWS, ROWS[5], replace(ROWS[9], key=ROWS[8].key)]
    report = verified(parquet_of(rows), head=HEAD)
    assert pairs(report) == [pair(8, 9, ROWS[8].key or "")]
    assert report.counts == {"duplicate": 2, "repeated_key": 1}


def test_keys_of_a_database_are_compared_behind_the_start(
    verified: Verified, database: str, role_dsn: Callable[[str], str]
) -> None:
    asyncio.run(store(database, keyed({2: "a", 30: "a", 40: "a"})))
    source = DatabaseSource(database=role_dsn(AUDITOR))
    assert pairs(verified(source)) == [pair(2, 30, "a"), pair(30, 40, "a")]
    start = ROWS[9].id or 0
    assert pairs(verified(source, start=start)) == [pair(30, 40, "a")]
