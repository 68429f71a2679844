"""Journals: what was skipped, repeated, or handed on out of order, and lines that are no rows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from chain_kernel.errors import InputError
from chain_verifier.config import JournalSource
from chain_verifier.findings import Finding, Kind
from chain_verifier.spark.files import JournalTable
from tests.integration.chain_verifier.planted_faults import Row, chain_of, head_of, write_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from chain_verifier.verification import ScannedSource

ROWS = chain_of(random.Random(3), 60)
HEAD = head_of(ROWS)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "a [1] {journal}* é%20?.jsonl"


@pytest.fixture
def scanned(
    spark: SparkSession, journal: Path, examine_table: Callable[..., ScannedSource]
) -> Callable[..., ScannedSource]:
    """Writes rows to the journal and examines it."""

    def run(rows: Sequence[Row], head: int | None = HEAD, torn: str = "") -> ScannedSource:
        write_journal(journal, rows, torn)
        return examine_table(JournalTable(spark, JournalSource(path=str(journal))), head)

    return run


@pytest.fixture
def name(journal: Path) -> str:
    return f"journal:{journal}"


def finding(name: str, kind: Kind, **fields: Any) -> Finding:
    return Finding(kind=kind, source=name, **fields)


@pytest.mark.merge
def test_journal_with_many_blocks_is_read_in_order(
    spark: SparkSession, scanned: Callable[..., ScannedSource], name: str
) -> None:
    usual = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1000")
    try:
        assert scanned(ROWS).findings.total == 0
        moved = [*ROWS[:5], *ROWS[6:50], ROWS[5], *ROWS[50:]]
        expected = finding(
            name, Kind.OUT_OF_ORDER, id=ROWS[5].id, until_id=ROWS[5].id,
            after_id=ROWS[49].id, count=1,
        )  # fmt: skip
        assert scanned(moved).findings.kept == (expected,)
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", usual or "128MB")


def test_journal_with_the_head_in_the_torn_line_lacks_it(
    scanned: Callable[..., ScannedSource], name: str
) -> None:
    found = scanned(ROWS[:-1], torn=ROWS[-1].line()[:50])
    expected = finding(name, Kind.GAP, after_id=ROWS[-2].id, until_id=HEAD)
    assert found.findings.kept == (expected,)


LINE = ROWS[30].line()


class _Line:
    """It is in a journal like a row, and is none."""

    def __init__(self, text: str) -> None:
        self._text = text

    def line(self) -> str:
        return self._text


def test_journal_with_garbage_as_its_whole_last_line_is_refused(
    scanned: Callable[..., ScannedSource],
) -> None:
    rows: list[Any] = [*ROWS, _Line("garbage")]
    with pytest.raises(InputError) as refused:
        scanned(rows)
    assert refused.value.line == len(ROWS) + 1


def test_journal_with_a_missing_field_has_a_null(
    scanned: Callable[..., ScannedSource], name: str
) -> None:
    without = _Line(LINE.replace('"event_time_ns"', '"other"'))
    found = scanned([*ROWS[:30], without, *ROWS[31:]])
    expected = finding(
        name, Kind.NULL, id=ROWS[30].id, pid=ROWS[30].pid, columns=("event_time_ns",)
    )
    assert found.findings.kept == (expected,)


def test_journal_with_only_rows_of_another_chain_is_refused(
    scanned: Callable[..., ScannedSource],
) -> None:
    with pytest.raises(InputError, match="none of chain 7"):
        scanned([replace(row, chain_id=8) for row in ROWS])


def test_journal_with_no_file_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        JournalTable(spark, JournalSource(path=str(tmp_path / "missing")))
    with pytest.raises(InputError, match="it is a folder"):
        JournalTable(spark, JournalSource(path=str(tmp_path)))
    hidden = write_journal(tmp_path / "_journal", ROWS)
    with pytest.raises(InputError, match="begins with neither"):
        JournalTable(spark, JournalSource(path=str(hidden)))


def test_journal_that_grows_while_it_is_read_is_read_as_it_was(
    spark: SparkSession, journal: Path, examine_table: Callable[..., ScannedSource]
) -> None:
    write_journal(journal, ROWS[:40], torn=ROWS[40].line()[:20])
    table = JournalTable(spark, JournalSource(path=str(journal)))
    write_journal(journal, ROWS)
    found = examine_table(table, None)
    assert found.findings.total == 0
    assert found.rows in (40, 41)
