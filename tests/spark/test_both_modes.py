"""The mode on Spark and the one in plain Python say the same of the same sources, word for word."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from chain_verifier.config import DatabaseSource, JournalSource, VerifyRequest
from chain_verifier.local.verify import verify_locally
from chain_verifier.verify import verify
from orderchain.errors import ChainMissing, ConnectError, InputError, SchemaError, SourceBroken
from orderchain.roles import AUDITOR, GAP_READER
from tests.spark.planting import CHAIN_ID, Row, chain_of, head_of, plant, write_journal
from tests.spark.storing import execute, store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from chain_verifier.config import ParquetSource, Source
    from chain_verifier.report import Report

ROWS = chain_of(random.Random(11), 60)
HEAD = head_of(ROWS)


def said(report: Report) -> dict[str, Any]:
    """What a report says, but for how long it took; findings in any order."""
    told = report.to_dict()
    for one in [told, *told["sources"], *told["comparisons"]]:
        one.pop("seconds")
    told.pop("spark_start_seconds")
    told["findings"] = sorted(map(str, told["findings"]))
    return told


@pytest.fixture
def agreed(spark: SparkSession) -> Callable[..., Report]:
    """Verifies by both modes, and returns the report once they agree."""

    def run(*sources: Source, **options: Any) -> Report:
        given = {"bucket_bits": 4, "leaf_bits": 3} | options
        request = VerifyRequest(chain_id=CHAIN_ID, sources=sources, **given)
        by_spark = verify(request, spark)
        assert said(verify_locally(request)) == said(by_spark)
        return by_spark

    return run


@pytest.fixture
def journal_of(tmp_path: Path) -> Callable[..., JournalSource]:
    def write(rows: Sequence[Any], name: str = "j", torn: str = "") -> JournalSource:
        return JournalSource(path=str(write_journal(tmp_path / name, rows, torn)))

    return write


def moved(rows: Sequence[Row], index: int, to: int) -> list[Row]:
    rest = [*rows[:index], *rows[index + 1 :]]
    return [*rest[:to], rows[index], *rest[to:]]


VECTORS: dict[str, tuple[Sequence[Any], int | None]] = {
    "clean": (ROWS, HEAD),
    "head not known": (ROWS[:-5], None),
    "nothing": ([], HEAD),
    "nothing of nothing": ([], 0),
    "tail missing": (ROWS[:-3], HEAD),
    "behind the head": (ROWS, ROWS[-4].id),
    "swapped": (moved(ROWS, 30, 31), HEAD),
    "moved to the front": (moved(ROWS, 30, 0), HEAD),
    "moved, and a row repeated": ([*moved(ROWS, 5, 50), ROWS[30], ROWS[31]], HEAD),
    "a stretch repeated": ([*ROWS[:40], *ROWS[30:]], HEAD),
    "backwards": (ROWS[::-1], HEAD),
    "foreign": ([*ROWS[:7], replace(ROWS[7], chain_id=8), *ROWS[7:]], HEAD),
    "null in content": (
        [*ROWS[:7], replace(ROWS[7], key=None), replace(ROWS[8], payload=None), *ROWS[9:]], HEAD,
    ),
    "null in ids": (
        [*ROWS[:7], replace(ROWS[7], id=None), *ROWS[8:20], replace(ROWS[20], pid=None),
         *ROWS[21:]], HEAD,
    ),
    "no chain": ([*ROWS[:7], replace(ROWS[7], chain_id=None), *ROWS[8:]], HEAD),
}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_modes_with_one_journal_agree(
    agreed: Callable[..., Report], journal_of: Callable[..., JournalSource], name: str
) -> None:
    rows, head = VECTORS[name]
    agreed(journal_of(rows), head=head)


@pytest.mark.parametrize("name", ["clean", "tail missing", "foreign", "null in ids", "backwards"])
def test_modes_with_parquet_agree(
    agreed: Callable[..., Report], parquet_of: Callable[[Sequence[Row]], ParquetSource], name: str
) -> None:
    rows, head = VECTORS[name]
    agreed(parquet_of(rows), head=head)


@pytest.mark.parametrize("seed", range(200, 212))
def test_modes_with_random_faults_agree_with_what_was_planted(
    agreed: Callable[..., Report], journal_of: Callable[..., JournalSource], seed: int
) -> None:
    rng = random.Random(seed)
    planted = plant(rng, chain_of(rng, 80), "")
    source = journal_of(planted.rows)
    report = agreed(source, head=head_of(planted.rows), bucket_bits=rng.choice([3, 5, 7]))
    expected = [replace(finding, source=source.name) for finding in planted.expected]
    assert sorted(report.findings, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("torn", ["", "{", ROWS[-1].line()[:50], ROWS[-1].line()])
def test_modes_with_a_torn_end_agree(
    agreed: Callable[..., Report], journal_of: Callable[..., JournalSource], torn: str
) -> None:
    agreed(journal_of(ROWS[:-1], torn=torn), head=HEAD)


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


@pytest.mark.parametrize("line", NO_ROWS)
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


@pytest.mark.parametrize(
    "own",
    [
        ROWS,
        [],
        [*ROWS[:10], *ROWS[11:21], *ROWS[20:]],
        [*ROWS[:8], replace(ROWS[8], key="é\x00", payload=b""), *ROWS[9:]],
        [*ROWS[:10], replace(ROWS[11], pid=ROWS[10].pid), *ROWS[12:]],
        [*ROWS[:8], replace(ROWS[8], key=None), replace(ROWS[8], key="a"), *ROWS[9:]],
    ],
)
def test_modes_with_two_journals_agree(
    agreed: Callable[..., Report], journal_of: Callable[..., JournalSource], own: Sequence[Row]
) -> None:
    agreed(journal_of(ROWS, "base"), journal_of(own, "own"), head=HEAD)


@pytest.fixture
def audit(database: str, role_dsn: Callable[[str], str]) -> DatabaseSource:
    asyncio.run(store(database, ROWS))
    return DatabaseSource(dsn=role_dsn(AUDITOR))


@pytest.mark.parametrize(
    "damage",
    [
        "SELECT 1",
        f"DELETE FROM chain_event WHERE id = {ROWS[20].id}",  # noqa: S608 - a number
        f"INSERT INTO chain_event VALUES ({CHAIN_ID}, {HEAD + 2}, {HEAD}, 'k', 0, '')",  # noqa: S608
        f"UPDATE chain_event SET key = 'other' WHERE id = {ROWS[5].id}",  # noqa: S608
        f"DELETE FROM chain_event WHERE id = {ROWS[20].id};"  # noqa: S608
        f"UPDATE chain_event SET pid = {ROWS[20].pid} WHERE id = {ROWS[21].id}",
    ],
)
@pytest.mark.parametrize("with_journal", [False, True])
def test_modes_with_a_database_agree(
    agreed: Callable[..., Report], audit: DatabaseSource, database: str, damage: str,
    journal_of: Callable[..., JournalSource], with_journal: bool,
) -> None:  # fmt: skip
    asyncio.run(execute(database, damage))
    others = [journal_of(ROWS)] if with_journal else []
    agreed(audit, *others)


def test_local_with_pages_of_few_rows_finds_an_id_that_stands_often(
    audit: DatabaseSource, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its primary key a table may hold one id more often than a page has rows."""
    monkeypatch.setattr("chain_verifier.local.database.PAGE_ROWS", 3)
    request = VerifyRequest(chain_id=CHAIN_ID, sources=(audit,))
    assert verify_locally(request).is_clean
    again = f"INSERT INTO chain_event SELECT * FROM chain_event WHERE id = {ROWS[9].id}"  # noqa: S608
    asyncio.run(
        execute(database, "ALTER TABLE chain_event DROP CONSTRAINT chain_event_pkey", *[again] * 2)
    )
    (found,) = verify_locally(request).findings
    assert (found.kind, found.id, found.count) == ("duplicate", ROWS[9].id, 4)


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
    closed = DatabaseSource(dsn="postgresql://auditor:sesame@127.0.0.1:1/x")
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1") as refused:
        verify_locally(VerifyRequest(chain_id=CHAIN_ID, sources=(closed,)))
    assert "sesame" not in str(refused.value)
    asyncio.run(execute(database, f"REVOKE SELECT ON chain_event FROM {GAP_READER}"))  # noqa: S608
    barred = DatabaseSource(dsn=role_dsn(GAP_READER))
    with pytest.raises(ConnectError, match="permission denied"):
        verify_locally(VerifyRequest(chain_id=CHAIN_ID, sources=(barred,)))
    asyncio.run(execute(database, "UPDATE schema_version SET version = 99"))
    with pytest.raises(SchemaError, match="99"):
        verify_locally(VerifyRequest(chain_id=CHAIN_ID, sources=(audit,)))
