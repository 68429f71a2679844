"""Spark names all that is wrong with a source, the local mode where it breaks first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from chain_kernel.errors import ChainMissing, ConnectError, InputError, SchemaError, SourceBroken
from chain_kernel.sql import AUDITOR, GAP_READER
from chain_verifier.config import DatabaseSource, JournalSource, VerifyRequest
from chain_verifier.findings import Finding, Kind
from chain_verifier.local.verify import verify_locally
from chain_verifier.report import Verdict
from chain_verifier.spark.verify import verify
from tests.integration.chain_verifier.agreement import verified_by_both
from tests.integration.chain_verifier.planted_faults import (
    CHAIN_ID,
    Row,
    chain_of,
    head_of,
    write_journal,
)
from tests.integration.chain_verifier.stored_rows import execute, store
from tests.lanes import at_night

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from chain_verifier.config import ParquetSource, Source
    from chain_verifier.report import Report

ROWS = chain_of(random.Random(11), 60)
HEAD = head_of(ROWS)


@pytest.fixture
def agreed(spark: SparkSession) -> Callable[..., Report]:
    """Verifies by both modes, and returns the report of Spark once they agree."""

    def run(*sources: Source, **options: Any) -> Report:
        given = {"bucket_bits": 4, "leaf_bits": 3} | options
        request = VerifyRequest(chain_id=CHAIN_ID, sources=sources, **given)
        return verified_by_both(request, spark)

    return run


@pytest.fixture
def journal_of(tmp_path: Path) -> Callable[..., JournalSource]:
    def write(rows: Sequence[Any], name: str = "j", torn: str = "") -> JournalSource:
        return JournalSource(path=str(write_journal(tmp_path / name, rows, torn)))

    return write


def moved(rows: Sequence[Row], index: int, to: int) -> list[Row]:
    rest = [*rows[:index], *rows[index + 1 :]]
    return [*rest[:to], rows[index], *rest[to:]]


def gap(index: int, until: int | None = None) -> dict[str, Any]:
    """The rows from `index` to `until` are missing."""
    last = ROWS[index if until is None else until]
    return {"kind": Kind.GAP, "after_id": ROWS[index].pid, "until_id": last.id}


def late(first: int, last: int, behind: int) -> dict[str, Any]:
    """The rows from `first` to `last` come after a later one."""
    return {
        "kind": Kind.OUT_OF_ORDER, "id": ROWS[first].id, "until_id": ROWS[last].id,
        "after_id": ROWS[behind].id, "count": last - first + 1,
    }  # fmt: skip


def span(first: int, last: int) -> dict[str, Any]:
    """The neighbouring rows from `first` to `last`, as one finding."""
    return {"id": ROWS[first].id, "last_id": ROWS[last].id, "rows": last - first + 1}


def twice(first: int, last: int) -> dict[str, Any]:
    return {"kind": Kind.DUPLICATE, "count": 2} | span(first, last)


def null(index: int, *columns: str, **fields: Any) -> dict[str, Any]:
    ids = {"id": ROWS[index].id, "pid": ROWS[index].pid} | fields
    return {"kind": Kind.NULL, "columns": columns} | ids


Vector = tuple[Sequence[Any], int | None, list[dict[str, Any]]]

VECTORS: dict[str, Vector] = {
    "clean": (ROWS, HEAD, []),
    "head not known": (ROWS[:-5], None, []),
    "nothing": ([], HEAD, [{"kind": Kind.GAP, "after_id": 0, "until_id": HEAD}]),
    "nothing of nothing": ([], 0, []),
    "row and tail missing": (
        [*ROWS[:30], *ROWS[31:-3]],
        HEAD,
        [gap(30), gap(len(ROWS) - 3, len(ROWS) - 1)],
    ),
    "behind the head": (ROWS, ROWS[-4].id, [
        {"kind": Kind.BEYOND_HEAD, "pid": ROWS[-4].id, "until_id": ROWS[-4].id}
        | span(len(ROWS) - 3, len(ROWS) - 1)
    ]),
    "moved to the front": (moved(ROWS, 30, 0), HEAD, [late(0, 29, 30)]),
    "moved, and rows repeated": (
        [*moved(ROWS, 5, 50), ROWS[30], ROWS[31]],
        HEAD,
        [late(5, 5, 50), twice(30, 31)],
    ),
    "backwards": (ROWS[::-1], HEAD, [late(0, len(ROWS) - 2, len(ROWS) - 1)]),
    "a row of another chain": (
        [*ROWS[:7], replace(ROWS[7], chain_id=8), *ROWS[7:]],
        HEAD,
        [{"kind": Kind.FOREIGN_CHAIN, "id": ROWS[7].id, "pid": ROWS[7].pid, "chain_id": 8}],
    ),
    "neighbours without a key, some of another chain, and a hole": (
        [*ROWS[:7], *(replace(row, chain_id=8) for row in ROWS[:5]),
         *(replace(row, key=None) for row in ROWS[7:20]), ROWS[20],
         *(replace(row, key=None) for row in ROWS[21:]), replace(ROWS[9], chain_id=8)],
        HEAD,
        [{"kind": Kind.FOREIGN_CHAIN, "pid": 0, "chain_id": 8} | span(0, 4),
         {"kind": Kind.FOREIGN_CHAIN, "id": ROWS[9].id, "pid": ROWS[9].pid, "chain_id": 8},
         {"kind": Kind.NULL, "pid": ROWS[7].pid, "columns": ("key",)} | span(7, 19),
         {"kind": Kind.NULL, "pid": ROWS[21].pid, "columns": ("key",)} | span(21, len(ROWS) - 1)],
    ),
    "null in ids": (
        [*ROWS[:7], replace(ROWS[7], id=None), *ROWS[8:20], replace(ROWS[20], pid=None),
         *ROWS[21:30], replace(ROWS[30], chain_id=None), *ROWS[31:]],
        HEAD,
        [null(7, "id", id=None), gap(7), null(20, "pid", pid=None), gap(20), null(30, "chain_id"),
         gap(30)],
    ),
}  # fmt: skip


IN_THE_MERGE = (
    "row and tail missing",
    "behind the head",
    "moved, and rows repeated",
    "a row of another chain",
    "null in ids",
)
"""One for each finding."""


def expected_of(name: str, source: str) -> list[Finding]:
    return [Finding(source=source, **fields) for fields in VECTORS[name][2]]


@pytest.mark.parametrize(
    "name", [*IN_THE_MERGE, *at_night(*[n for n in VECTORS if n not in IN_THE_MERGE])]
)
def test_modes_with_one_journal_find_what_is_wrong_with_it(
    agreed: Callable[..., Report], journal_of: Callable[..., JournalSource], name: str
) -> None:
    rows, head, faults = VECTORS[name]
    source = journal_of(rows)
    report = agreed(source, head=head)
    assert sorted(report.findings, key=str) == sorted(expected_of(name, source.name), key=str)
    assert report.is_clean is not bool(faults)
    assert report.sources[0].rows == row_count(rows, head)


@pytest.mark.nightly
def test_modes_with_no_row_and_no_known_head_prove_nothing(
    agreed: Callable[..., Report],
    journal_of: Callable[..., JournalSource],
    parquet_of: Callable[[Sequence[Row]], ParquetSource],
) -> None:
    empty, other = journal_of([]), parquet_of([])
    for sources in ((empty,), (journal_of([], "torn", torn=LINE[:40]),), (other,), (empty, other)):
        report = agreed(*sources)
        assert (report.verdict, report.is_clean, report.counts) == (Verdict.UNPROVEN, False, {})
        assert {one.verdict for one in report.sources} == {Verdict.UNPROVEN}
    behind = agreed(journal_of(ROWS, "all"), start=HEAD)
    assert behind.verdict is Verdict.UNPROVEN
    known = agreed(empty, other, head=0)
    assert (known.verdict, known.is_clean) == (Verdict.COMPLETE, True)
    assert agreed(journal_of(ROWS[:1], "one"), empty).verdict is Verdict.BROKEN


def row_count(rows: Sequence[Any], head: int | None) -> int:
    """Rows of the chain up to the head, each as often as it stands."""
    own = [row for row in rows if row.chain_id == CHAIN_ID and None not in (row.id, row.pid)]
    return sum(head is None or row.id <= head for row in own)


@pytest.mark.parametrize("name", ["row and tail missing", *at_night("clean", "null in ids")])
def test_modes_with_parquet_find_what_is_wrong_with_it(
    agreed: Callable[..., Report], parquet_of: Callable[[Sequence[Row]], ParquetSource], name: str
) -> None:
    rows, head, _ = VECTORS[name]
    source = parquet_of(random.Random(1).sample(rows, len(rows)))
    report = agreed(source, head=head)
    assert sorted(report.findings, key=str) == sorted(expected_of(name, source.name), key=str)


@pytest.mark.nightly
def test_modes_with_a_wiped_journal_name_its_rows_in_one_finding_and_a_hole_splits_it(
    agreed: Callable[..., Report], journal_of: Callable[..., JournalSource]
) -> None:
    """The 3,000 rows fill several of the parts in which Spark looks for neighbours."""
    rows = wide_chain(3_000)
    base = journal_of(rows)

    def lacking(other: Sequence[Row], name: str) -> list[tuple[int | None, int | None, int | None]]:
        report = agreed(base, journal_of(other, name), head=rows[-1].id, bucket_bits=None)
        assert report.row_counts["lacking"] == len(rows) - len(other)
        found = [one for one in report.findings if one.kind is Kind.LACKING]
        assert report.counts["lacking"] == len(found)
        return [(one.id, one.last_id, one.rows) for one in found]

    assert lacking([], "wiped") == [(rows[0].id, rows[-1].id, len(rows))]
    assert lacking([rows[1_000]], "hole") == [
        (rows[0].id, rows[999].id, 1_000), (rows[1_001].id, rows[-1].id, 1_999),
    ]  # fmt: skip


def wide_chain(count: int) -> list[Row]:
    """A chain whose ids skip by thousands."""
    return [Row(2_000 * number, 2_000 * (number - 1)) for number in range(1, count + 1)]


@pytest.mark.parametrize("torn", ["{", *at_night(ROWS[-1].line()[:50], ROWS[-1].line())])
def test_modes_with_a_torn_end_leave_it_out(
    agreed: Callable[..., Report], journal_of: Callable[..., JournalSource], torn: str
) -> None:
    """A last line that lacks nothing but its end is a row all the same."""
    is_whole = torn == ROWS[-1].line()
    report = agreed(journal_of(ROWS[:-1], torn=torn), head=ROWS[-1 if is_whole else -2].id)
    assert report.is_clean, report.findings
    note = "the last line is incomplete, and was left out"
    assert report.sources[0].notes == (() if is_whole else (note,))


class Line:
    def __init__(self, text: str) -> None:
        self._text = text

    def line(self) -> str:
        return self._text


LINE = ROWS[30].line()
NO_ROWS = [
    "garbage", "", "[]", "\x00\x01\x02", LINE[:40], LINE + LINE, LINE + "\r", LINE + " ",
    LINE.replace('"id": ', '"id": "x'),
    LINE.replace(f'"id": {ROWS[30].id}', f'"id": "{ROWS[30].id}"'),
    LINE.replace(f'"id": {ROWS[30].id}', f'"id": {2**63}'),
    LINE.replace('"payload": "', '"payload": "*'),
]  # fmt: skip


@pytest.mark.parametrize("line", [NO_ROWS[0], *at_night(*NO_ROWS[1:])])
def test_modes_with_a_line_that_is_no_row_refuse_alike(
    spark: SparkSession, journal_of: Callable[..., JournalSource], line: str
) -> None:
    source = journal_of([*ROWS[:30], Line(line), *ROWS[31:]])
    request = VerifyRequest(chain_id=CHAIN_ID, sources=(source,))
    with pytest.raises(InputError) as by_spark:
        verify(request, spark)
    with pytest.raises(InputError) as locally:
        verify_locally(request)
    assert (str(locally.value), locally.value.line) == (str(by_spark.value), 31)
    assert (locally.value.field, by_spark.value.field) == (source.name, source.name)


@pytest.fixture
def audit(database: str, role_dsn: Callable[[str], str]) -> DatabaseSource:
    asyncio.run(store(database, ROWS))
    return DatabaseSource(database=role_dsn(AUDITOR))


def test_local_with_pages_of_few_rows_finds_an_id_that_stands_often(
    audit: DatabaseSource, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its primary key a table may hold more pages with one end than come at a time."""
    monkeypatch.setattr("chain_verifier.stored_chain._PAGES", 1)
    monkeypatch.setattr("chain_verifier.stored_chain._BYTES", 1)
    request = VerifyRequest(chain_id=CHAIN_ID, sources=(audit,))
    assert verify_locally(request).is_clean
    row_id = ROWS[9].id
    again = f"INSERT INTO chain_page SELECT * FROM chain_page WHERE {row_id} = ANY (ids)"  # noqa: S608
    asyncio.run(
        execute(database, "ALTER TABLE chain_page DROP CONSTRAINT chain_page_pkey", *[again] * 2)
    )
    (found,) = verify_locally(request).findings
    assert (found.kind, found.count) == ("duplicate", 4)
    assert (found.id or 0) <= (row_id or 0)


def test_local_with_a_database_that_breaks_off_or_cannot_be_used_is_no_verdict(
    audit: DatabaseSource, database: str, role_dsn: Callable[[str], str]
) -> None:
    def cut_off(line: str) -> None:
        if line == "checking database":
            ours = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'auditor'"
            )
            asyncio.run(execute(database, ours))

    with pytest.raises(SourceBroken, match="database: could not be read to its end"):
        verify_locally(VerifyRequest(chain_id=CHAIN_ID, sources=(audit,)), cut_off)
    with pytest.raises(ChainMissing):
        verify_locally(VerifyRequest(chain_id=CHAIN_ID + 1, sources=(audit,)))
    closed = DatabaseSource(database="postgresql://auditor:sesame@127.0.0.1:1/x")
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1") as refused:
        verify_locally(VerifyRequest(chain_id=CHAIN_ID, sources=(closed,)))
    assert "sesame" not in str(refused.value)
    asyncio.run(execute(database, f"REVOKE SELECT ON chain_page FROM {GAP_READER}"))  # noqa: S608
    barred = DatabaseSource(database=role_dsn(GAP_READER))
    with pytest.raises(
        ConnectError, match=r"member of auditor \(login gap_reader: .*permission denied"
    ):
        verify_locally(VerifyRequest(chain_id=CHAIN_ID, sources=(barred,)))
    asyncio.run(execute(database, "UPDATE schema_version SET version = 99"))
    with pytest.raises(SchemaError, match="99"):
        verify_locally(VerifyRequest(chain_id=CHAIN_ID, sources=(audit,)))
