"""Journals: what was skipped, repeated, or handed on out of order, and lines that are no rows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from chain_verifier.config import JournalSource
from chain_verifier.findings import Finding, Kind
from chain_verifier.sources.journal import JournalTable
from orderchain.errors import InputError
from tests.spark.planting import Row, chain_of, head_of, plant, write_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from chain_verifier.examine import Examined

ROWS = chain_of(random.Random(3), 60)
HEAD = head_of(ROWS)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "a [1] {journal}* é%20?.jsonl"


@pytest.fixture
def examined(
    spark: SparkSession, journal: Path, examine_table: Callable[..., Examined]
) -> Callable[..., Examined]:
    """Writes rows to the journal and examines it."""

    def run(rows: Sequence[Row], head: int | None = HEAD, torn: str = "") -> Examined:
        write_journal(journal, rows, torn)
        return examine_table(JournalTable(spark, JournalSource(path=str(journal))), head)

    return run


@pytest.fixture
def name(journal: Path) -> str:
    return f"journal:{journal}"


def finding(name: str, kind: Kind, **fields: Any) -> Finding:
    return Finding(kind=kind, source=name, **fields)


def test_journal_with_a_clean_chain_has_no_findings(examined: Callable[..., Examined]) -> None:
    found = examined(ROWS)
    assert found.findings.total == 0
    assert found.rows == len(ROWS)
    assert found.notes == ()


def test_journal_with_nothing_in_it_is_clean_for_an_empty_chain(
    examined: Callable[..., Examined], name: str
) -> None:
    assert examined([], 0).findings.total == 0
    expected = finding(name, Kind.GAP, after_id=0, until_id=HEAD)
    assert examined([]).findings.kept == (expected,)


def test_journal_with_many_blocks_is_read_in_order(
    spark: SparkSession, examined: Callable[..., Examined], name: str
) -> None:
    usual = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1000")
    try:
        assert examined(ROWS).findings.total == 0
        moved = [*ROWS[:5], *ROWS[6:50], ROWS[5], *ROWS[50:]]
        expected = finding(
            name, Kind.OUT_OF_ORDER, id=ROWS[5].id, until_id=ROWS[5].id,
            after_id=ROWS[49].id, count=1,
        )  # fmt: skip
        assert examined(moved).findings.kept == (expected,)
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", usual or "128MB")


def test_journal_with_a_skipped_row_names_it(examined: Callable[..., Examined], name: str) -> None:
    found = examined([*ROWS[:30], *ROWS[31:]])
    expected = finding(name, Kind.GAP, after_id=ROWS[29].id, until_id=ROWS[30].id)
    assert found.findings.kept == (expected,)


def test_journal_with_a_repeated_row_names_it_and_nothing_else(
    examined: Callable[..., Examined], name: str
) -> None:
    expected = (finding(name, Kind.DUPLICATE, id=ROWS[30].id, count=2),)
    assert examined([*ROWS[:31], *ROWS[30:]]).findings.kept == expected
    assert examined([*ROWS, ROWS[30]]).findings.kept == expected


def test_journal_with_a_repeated_stretch_names_each_row(
    examined: Callable[..., Examined], name: str
) -> None:
    found = examined([*ROWS[:40], *ROWS[30:]])
    expected = [finding(name, Kind.DUPLICATE, id=row.id, count=2) for row in ROWS[30:40]]
    assert list(found.findings.kept) == expected


def test_journal_with_two_rows_swapped_names_the_late_one(
    examined: Callable[..., Examined], name: str
) -> None:
    swapped = [*ROWS[:30], ROWS[31], ROWS[30], *ROWS[32:]]
    expected = finding(
        name, Kind.OUT_OF_ORDER, id=ROWS[30].id, until_id=ROWS[30].id,
        after_id=ROWS[31].id, count=1,
    )  # fmt: skip
    assert examined(swapped).findings.kept == (expected,)


def test_journal_with_a_row_moved_to_the_front_names_those_behind_it(
    examined: Callable[..., Examined], name: str
) -> None:
    found = examined([ROWS[30], *ROWS[:30], *ROWS[31:]])
    expected = finding(
        name, Kind.OUT_OF_ORDER, id=ROWS[0].id, until_id=ROWS[29].id,
        after_id=ROWS[30].id, count=30,
    )  # fmt: skip
    assert found.findings.kept == (expected,)


@pytest.mark.parametrize("seed", range(100, 108))
def test_journal_with_random_faults_has_these_and_no_others(
    examined: Callable[..., Examined], name: str, seed: int
) -> None:
    rng = random.Random(seed)
    planted = plant(rng, chain_of(rng, 80), name)
    found = examined(planted.rows, head_of(planted.rows))
    assert sorted(found.findings.kept, key=str) == sorted(planted.expected, key=str)


@pytest.mark.parametrize("cut", [1, 10, 60, 100])
def test_journal_with_a_torn_last_line_is_read_without_it(
    examined: Callable[..., Examined], cut: int
) -> None:
    found = examined(ROWS[:-1], ROWS[-2].id, torn=ROWS[-1].line()[:cut])
    assert found.findings.total == 0
    assert found.notes == ("the last line is incomplete, and was left out",)


def test_journal_with_the_head_in_the_torn_line_lacks_it(
    examined: Callable[..., Examined], name: str
) -> None:
    found = examined(ROWS[:-1], torn=ROWS[-1].line()[:50])
    expected = finding(name, Kind.GAP, after_id=ROWS[-2].id, until_id=HEAD)
    assert found.findings.kept == (expected,)


LINE = ROWS[30].line()


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        "",
        "[]",
        "\x00\x01\x02",
        LINE[:40],
        LINE + LINE,
        LINE.replace('"id": ', '"id": "x'),
        LINE.replace(f'"id": {ROWS[30].id}', f'"id": "{ROWS[30].id}"'),
        LINE.replace(f'"id": {ROWS[30].id}', f'"id": {2**63}'),
        LINE.replace('"payload": "', '"payload": "*'),
    ],
)
def test_journal_with_a_line_that_is_no_row_is_refused_with_its_number(
    examined: Callable[..., Examined], journal: Path, name: str, line: str
) -> None:
    rows: list[Any] = [*ROWS[:30], _Line(line), *ROWS[31:]]
    with pytest.raises(InputError, match=r"^line 31: ") as refused:
        examined(rows)
    assert refused.value.field == name
    assert refused.value.line == 31


class _Line:
    """Stands in a journal for a row, and is none."""

    def __init__(self, text: str) -> None:
        self._text = text

    def line(self) -> str:
        return self._text


def test_journal_with_garbage_as_its_whole_last_line_is_refused(
    examined: Callable[..., Examined],
) -> None:
    rows: list[Any] = [*ROWS, _Line("garbage")]
    with pytest.raises(InputError) as refused:
        examined(rows)
    assert refused.value.line == len(ROWS) + 1


def test_journal_with_a_missing_field_has_a_null(
    examined: Callable[..., Examined], name: str
) -> None:
    without = _Line(LINE.replace('"event_time_ns"', '"other"'))
    found = examined([*ROWS[:30], without, *ROWS[31:]])
    expected = finding(
        name, Kind.NULL, id=ROWS[30].id, pid=ROWS[30].pid, columns=("event_time_ns",)
    )
    assert found.findings.kept == (expected,)


def test_journal_with_only_rows_of_another_chain_is_refused(
    examined: Callable[..., Examined],
) -> None:
    with pytest.raises(InputError, match="none of chain 7"):
        examined([replace(row, chain_id=8) for row in ROWS])


def test_journal_with_a_row_of_another_chain_names_it(
    examined: Callable[..., Examined], name: str
) -> None:
    found = examined([*ROWS[:10], replace(ROWS[10], chain_id=8), *ROWS[10:]])
    expected = finding(name, Kind.FOREIGN_CHAIN, id=ROWS[10].id, pid=ROWS[10].pid, chain_id=8)
    assert found.findings.kept == (expected,)


def test_journal_with_no_file_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        JournalTable(spark, JournalSource(path=str(tmp_path / "missing")))
    with pytest.raises(InputError, match="directory"):
        JournalTable(spark, JournalSource(path=str(tmp_path)))
    hidden = write_journal(tmp_path / "_journal", ROWS)
    with pytest.raises(InputError, match="begins with neither"):
        JournalTable(spark, JournalSource(path=str(hidden)))


def test_journal_that_grows_while_it_is_read_is_read_as_it_was(
    spark: SparkSession, journal: Path, examine_table: Callable[..., Examined]
) -> None:
    write_journal(journal, ROWS[:40], torn=ROWS[40].line()[:20])
    table = JournalTable(spark, JournalSource(path=str(journal)))
    write_journal(journal, ROWS)
    found = examine_table(table, None)
    assert found.findings.total == 0
    assert found.rows in (40, 41)
