"""The local mode alone: planted faults by exact ids, bounded memory, and not a trace of Spark."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain_kernel.errors import InputError, SettingError, SourceBroken
from chain_verifier.config import JournalSource, ParquetSource, VerifyRequest
from chain_verifier.findings import Finding, Kind
from chain_verifier.local.verify import verify_locally
from chain_verifier.report import Verdict
from chain_verifier.verification import CONTENT
from tests.integration.chain_verifier.parquet_layouts import OTHER_LAYOUTS, write_layout
from tests.integration.chain_verifier.planted_faults import (
    CHAIN_ID,
    Row,
    chain_of,
    head_of,
    plant,
    write_journal,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chain_verifier.report import Report

FAULTY_CHAINS = 60
ROWS = chain_of(random.Random(6), 60)
HEAD = head_of(ROWS)

COLUMNS = {
    "chain_id": pa.int32(), "id": pa.int64(), "pid": pa.int64(), "key": pa.string(),
    "event_time_ns": pa.int64(), "payload": pa.binary(),
}  # fmt: skip


def write_parquet(path: Path, rows: Sequence[Row], group_rows: int = 7) -> Path:
    columns = {name: pa.array([getattr(row, name) for row in rows], kind)
               for name, kind in COLUMNS.items()}  # fmt: skip
    pq.write_table(pa.table(columns), path, row_group_size=group_rows)
    return path


def verified(*sources: JournalSource | ParquetSource, **options: Any) -> Report:
    request = {"bucket_bits": 4, "leaf_bits": 3} | options
    return verify_locally(VerifyRequest(chain_id=CHAIN_ID, sources=sources, **request))


@pytest.fixture
def journal(tmp_path: Path) -> JournalSource:
    return JournalSource(path=str(tmp_path / "j.jsonl"))


@pytest.fixture
def parquet(tmp_path: Path) -> ParquetSource:
    return ParquetSource(path=str(tmp_path / "rows.parquet"))


def written(source: JournalSource | ParquetSource, rows: Sequence[Row]) -> Any:
    from pathlib import Path

    path = Path(source.path)
    if isinstance(source, JournalSource):
        write_journal(path, rows)
    else:
        write_parquet(path, rows)
    return source


@pytest.mark.invariant("S12")
@pytest.mark.parametrize("kind", ["journal", "parquet"])
def test_local_with_random_faults_finds_these_and_no_others(
    request: pytest.FixtureRequest, kind: str
) -> None:
    source = request.getfixturevalue(kind)
    for seed in range(FAULTY_CHAINS):
        rng = random.Random(seed)
        planted = plant(rng, chain_of(rng, 80), source.name)
        rows = planted.rows if kind == "journal" else rng.sample(planted.rows, len(planted.rows))
        report = verified(
            written(source, rows), head=head_of(planted.rows), bucket_bits=rng.choice([3, 5, 7])
        )
        assert sorted(report.findings, key=str) == sorted(planted.expected, key=str), seed
        assert sum(report.counts.values()) == len(planted.expected), seed


def test_local_reads_parquet_as_other_writers_lay_it_out(
    tmp_path: Path, parquet: ParquetSource
) -> None:
    """Spark accepts the same files: test_parquet.py has them for both."""
    for name in OTHER_LAYOUTS:
        folder = tmp_path / name
        write_layout(name, folder, ROWS)
        report = verified(ParquetSource(path=str(folder)), written(parquet, ROWS), head=HEAD)
        assert (report.verdict, report.sources[0].rows) == (Verdict.COMPLETE, len(ROWS)), name
        write_layout(name, folder, [*ROWS[:9], *ROWS[10:]])
        report = verified(ParquetSource(path=str(folder)), head=HEAD)
        assert report.counts == {"gap": 1}, name
    (tmp_path / "folders" / "rest.parquet").write_bytes((tmp_path / "rows.parquet").read_bytes())
    with pytest.raises(InputError, match="not every file is in a folder chain_id=N"):
        verified(ParquetSource(path=str(tmp_path / "folders")))


@pytest.mark.parametrize("kind", ["journal", "parquet"])
def test_local_with_a_clean_chain_finds_nothing(request: pytest.FixtureRequest, kind: str) -> None:
    for seed in range(20):
        rows = chain_of(random.Random(seed), seed * 5)
        source = written(request.getfixturevalue(kind), rows)
        report = verified(source, head=head_of(rows))
        assert (report.verdict, report.sources[0].rows) == (Verdict.COMPLETE, len(rows)), seed
        expected = Verdict.CONTIGUOUS if rows else Verdict.UNPROVEN
        assert verified(source).verdict is expected, seed


def test_local_with_pages_of_few_rows_gives_the_same(
    journal: JournalSource, parquet: ParquetSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chain_verifier.local.table.PAGE_ROWS", 3)
    monkeypatch.setattr("chain_verifier.bounded_parquet.PAGE_ROWS", 3)
    damaged = [*ROWS[:30], ROWS[31], ROWS[30], *ROWS[32:50], *ROWS[51:]]
    report = verified(written(journal, damaged), written(parquet, ROWS), head=HEAD)
    assert report.counts == {"gap": 1, "out_of_order": 1, "surplus": 1}


def test_local_with_a_start_does_not_open_what_lies_before_it(parquet: ParquetSource) -> None:
    damaged = [*ROWS[:3], *ROWS[5:]]
    report = verified(written(parquet, damaged), head=HEAD, start=ROWS[20].id)
    assert (report.verdict, report.sources[0].rows) == (Verdict.COMPLETE, len(ROWS) - 21)


def test_local_with_a_journal_that_shrinks_meanwhile_is_no_verdict(journal: JournalSource) -> None:
    from pathlib import Path

    written(journal, ROWS)

    def cut(line: str) -> None:
        if line.startswith("checking"):
            write_journal(Path(journal.path), ROWS[:10])

    with pytest.raises(SourceBroken, match="became shorter"):
        verify_locally(VerifyRequest(chain_id=CHAIN_ID, sources=(journal,)), cut)


def test_local_with_parquet_cut_off_or_damaged_is_no_verdict(parquet: ParquetSource) -> None:
    from pathlib import Path

    path = Path(written(parquet, ROWS).path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"^parquet was "):
        verified(parquet)
    damaged = bytearray(content)
    damaged[4 : len(content) // 3] = bytes(len(content) // 3 - 4)
    path.write_bytes(damaged)
    with pytest.raises(SourceBroken):
        verified(parquet)


def test_local_with_a_master_is_refused(journal: JournalSource) -> None:
    with pytest.raises(SettingError, match="without Spark"):
        verified(written(journal, ROWS), master="local[2]")


def test_local_with_differing_rows_names_row_and_column(
    journal: JournalSource, parquet: ParquetSource
) -> None:
    changed = [*ROWS[:8], Row(ROWS[8].id, ROWS[8].pid, "other", 5, ROWS[8].payload), *ROWS[9:]]
    report = verified(written(parquet, ROWS), written(journal, changed), head=HEAD)
    assert report.findings == (
        Finding(
            kind=Kind.DIFFERING, source=journal.name, against=parquet.name, id=ROWS[8].id,
            columns=("key", "event_time_ns"),
        ),
    )  # fmt: skip


def test_local_mode_imports_neither_pyspark_nor_py4j() -> None:
    script = (
        "import sys, chain_verifier.local.verify, chain_verifier.local.parquet;"
        "print([name for name in ('pyspark', 'py4j') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_rows_of_both_modes_have_the_columns_of_the_view_in_its_order() -> None:
    assert [*CONTENT] == [*COLUMNS]
