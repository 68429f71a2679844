"""The local mode alone: clean exactly if the chain is, the first break by its ids, no Spark."""

import random
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chain_kernel.errors import InputError, SettingError, SourceBroken
from chain_verifier.checks.buckets import Link, find_faults
from chain_verifier.config import JournalSource, ParquetSource, VerifyRequest
from chain_verifier.findings import FINDING_TYPES, Finding, Kind
from chain_verifier.local.verify import FIRST_ONLY, verify_locally
from chain_verifier.report import Report, Verdict
from chain_verifier.sources.content import CONTENT
from tests.integration.chain_verifier.agreement import LINKS, require_first
from tests.integration.chain_verifier.planted_faults import (
    CHAIN_ID,
    Row,
    chain_of,
    head_of,
    write_journal,
)
from tests.integration.chain_verifier.seeded_rows import PARQUET, plant_rows, write_parquet
from tests.programs import output_of

FAULTY_CHAINS = 60
ROWS = chain_of(random.Random(6), 60)
HEAD = head_of(ROWS)


def written(source: Any, rows: Sequence[Row]) -> Any:
    if isinstance(source, JournalSource):
        write_journal(Path(source.path), rows)
    else:
        write_parquet(Path(source.path), rows, group_rows=7)
    return source


def verified(*sources: JournalSource | ParquetSource, **options: Any) -> Report:
    return verify_locally(VerifyRequest(chain_id=CHAIN_ID, sources=sources, **options))


@pytest.fixture
def journal(tmp_path: Path) -> JournalSource:
    return JournalSource(path=str(tmp_path / "j.jsonl"))


@pytest.fixture
def parquet(tmp_path: Path) -> ParquetSource:
    return ParquetSource(path=str(tmp_path / "rows.parquet"))


LINKED = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=9)


@pytest.mark.guarantee("G12")
@given(links=LINKED, head=st.none() | st.just(9))
def test_local_is_clean_exactly_if_no_link_is_wrong_and_names_one_that_is(
    tmp_path_factory: pytest.TempPathFactory, links: list[tuple[int, int]], head: int | None
) -> None:
    """Over any links at all, beside the search that Spark uses for every fault."""
    rows = [Row(row_id, pid) for row_id, pid in links]
    path = tmp_path_factory.getbasetemp() / "links.jsonl"
    report = verified(JournalSource(path=str(write_journal(path, rows))), head=head)
    found = [one for one in report.findings if one.kind in LINKS]
    faults = find_faults(f"journal:{path}", [Link(pid, i, i) for i, pid in links], 0, head)
    assert len(found) == bool(faults)
    # The pid of a duplicate only serves to join neighbours.
    known = [replace(one, pid=None) if one.kind is Kind.DUPLICATE else one for one in faults]
    assert all(one in known for one in found)


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("kind", ["journal", "parquet"])
def test_local_with_random_faults_names_the_first(
    request: pytest.FixtureRequest, kind: str
) -> None:
    source = request.getfixturevalue(kind)
    for seed in range(FAULTY_CHAINS):
        planted = plant_rows(seed, has_order=kind == "journal")
        rng, rows = random.Random(seed), planted.rows
        rows = rows if kind == "journal" else rng.sample(rows, len(rows))
        report = verified(written(source, rows), head=planted.head)
        require_first(report.findings, planted.findings(source.name))
        assert report.verdict is Verdict.BROKEN, seed
        assert report.sources[0].notes == (FIRST_ONLY,)


def test_local_holds_few_rows_at_a_time(
    parquet: ParquetSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in no order, of which one source has others: both go through a table on disk."""
    monkeypatch.setattr("chain_verifier.sources.bounded_parquet.PAGE_ROWS", 50)
    rows = [Row(number, number - 1, payload=bytes(1_000)) for number in range(1, 6_001)]
    other = ParquetSource(path=str(tmp_path / "other.parquet"))
    write_parquet(Path(parquet.path), rows[::-1])
    write_parquet(Path(other.path), [*rows[:0:-1], Row(1, 0)])
    tracemalloc.start()
    try:
        report = verified(parquet, other, head=len(rows))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [(one.kind, one.id) for one in report.findings] == [(Kind.DIFFERING, 1)]
    assert peak < len(rows) * 1_000 / 4


def test_local_with_a_source_that_breaks_off_is_no_verdict(
    journal: JournalSource, parquet: ParquetSource
) -> None:
    written(journal, ROWS)

    def cut(line: str) -> None:
        if line.startswith("checking"):
            write_journal(Path(journal.path), ROWS[:10])

    with pytest.raises(SourceBroken, match="became shorter"):
        verify_locally(VerifyRequest(chain_id=CHAIN_ID, sources=(journal,)), cut)

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


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"master": "local[2]"}, "without Spark"),
        ({"findings_folder": "found"}, "the local mode names the first fault, Spark writes all"),
    ],
)
def test_local_refuses_what_only_spark_can_do(
    journal: JournalSource, options: dict[str, Any], shown: str
) -> None:
    with pytest.raises(SettingError, match=shown):
        verified(written(journal, ROWS), **options)
    with pytest.raises(SettingError, match="not a URL"):
        verified(ParquetSource(path="s3a://bucket/rows"))


def test_local_mode_imports_neither_pyspark_nor_py4j() -> None:
    script = (
        "import sys, chain_verifier.local.verify, chain_verifier.sources.parquet;"
        "print([name for name in ('pyspark', 'py4j') if name in sys.modules])"
    )
    assert output_of(sys.executable, "-c", script) == "[]\n"


def test_rows_of_both_modes_have_the_columns_of_the_view_in_its_order() -> None:
    assert [*CONTENT] == PARQUET.names


def test_findings_are_written_with_every_field_but_those_of_ranges() -> None:
    of_ranges = {"last_id", "rows", "batches"}
    assert [*FINDING_TYPES] == [n for n in Finding.__struct_fields__ if n not in of_ranges]
    some = [FINDING_TYPES[name] for name in ("kind", "id", "ids", "columns", "verified_at")]
    assert some == ["string", "bigint", "array<bigint>", "array<string>", "string"]
