"""All findings as files, however many: the local mode keeps a sample and lets the rest pass by."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain_kernel.errors import InputError, RetryError, SettingError
from chain_verifier.checks.neighbours import collected, gathered
from chain_verifier.config import FINDINGS_MAX, ParquetSource, VerifyRequest
from chain_verifier.findings import FINDING_TYPES, Finding, Kind, joined_findings
from chain_verifier.local.parquet import write_findings
from chain_verifier.local.verify import verify_chains_locally, verify_locally

if TYPE_CHECKING:
    from pathlib import Path

MANY = 24_000
PAGE = 500
MEMORY_MAX = 3 * 2**19
"""Bytes that Python may hold at a time, with pages this small; all findings together would be
twice as much."""


def write_chain(
    path: Path, key: str, chain_id: int = 7, every_second: str | None = None
) -> ParquetSource:
    """Write whole rows under `key`; every second one under another, if it is given."""
    ids = range(1, MANY + 1)
    columns = {
        "chain_id": pa.array([chain_id] * MANY, pa.int32()),
        "id": pa.array(ids, pa.int64()),
        "pid": pa.array(range(MANY), pa.int64()),
        "key": pa.array([key, every_second or key] * (MANY // 2), pa.string()),
        "event_time_ns": pa.array([0] * MANY, pa.int64()),
        "payload": pa.array([b""] * MANY, pa.binary()),
    }
    pq.write_table(pa.table(columns), path, row_group_size=2_000)
    return ParquetSource(path=str(path))


@pytest.mark.nightly
def test_findings_of_very_many_rows_are_all_written_and_few_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chain_verifier.bounded_parquet.PAGE_ROWS", PAGE)
    monkeypatch.setattr("chain_verifier.local.parquet._PAGE", PAGE)
    base = write_chain(tmp_path / "base", "a")
    own = write_chain(tmp_path / "own", "b", every_second="a")
    folder = tmp_path / "findings"
    request = VerifyRequest(chain_id=7, sources=(base, own), head=MANY, findings_folder=str(folder))
    tracemalloc.start()
    try:
        report = verify_locally(request)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_MAX
    assert (report.counts, len(report.findings)) == ({"differing": MANY // 2}, FINDINGS_MAX)
    table = pq.read_table(folder / "findings.parquet")
    assert table.num_rows == MANY // 2
    assert table["id"].to_pylist() == list(range(1, MANY + 1, 2))
    first = table.slice(0, 1).to_pylist()[0]
    assert {name: value for name, value in first.items() if value is not None} == {
        "chain": 7, "kind": "differing", "source": own.name, "against": base.name, "id": 1,
        "pid": 0, "columns": ["key"],
    }  # fmt: skip
    (lines,) = (folder / "findings.json").iterdir()
    with lines.open() as file:
        assert sum(json.loads(line)["kind"] == "differing" for line in file) == MANY // 2


def test_findings_of_neighbouring_rows_are_one_in_the_report_and_each_is_written(
    tmp_path: Path,
) -> None:
    base, own = write_chain(tmp_path / "base", "a"), write_chain(tmp_path / "own", "b")
    folder = tmp_path / "findings"
    request = VerifyRequest(chain_id=7, sources=(base, own), head=MANY, findings_folder=str(folder))
    (found,) = verify_locally(request).findings
    assert (found.id, found.last_id, found.rows) == (1, MANY, MANY)
    table = pq.read_table(folder / "findings.parquet")
    assert table["id"].to_pylist() == list(range(1, MANY + 1))


def test_findings_of_several_chains_stand_in_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "findings"
    requests = [
        VerifyRequest(
            chain_id=chain_id,
            sources=(write_chain(tmp_path / str(chain_id), "a", chain_id),),
            head=head,
            findings_folder=str(folder),
        )
        for chain_id, head in ((7, MANY + 7), (8, MANY + 8), (9, MANY))
    ]
    report = verify_chains_locally(requests)
    assert [one.counts for one in report.reports] == [{"gap": 1}, {"gap": 1}, {}]
    table = pq.read_table(folder / "findings.parquet")
    told = table.select(["chain", "until_id"]).to_pylist()
    assert sorted(told, key=str) == [
        {"chain": 7, "until_id": MANY + 7}, {"chain": 8, "until_id": MANY + 8},
    ]  # fmt: skip


def test_findings_are_not_mixed_with_those_of_another_run(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    source = write_chain(tmp_path / "rows", "a")
    request = VerifyRequest(chain_id=7, sources=(source,), findings_folder=str(tmp_path))
    with pytest.raises(InputError, match="expected an empty folder"):
        verify_locally(request)


def test_findings_that_cannot_be_written_are_an_error_that_names_the_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "findings.parquet").touch()
    with pytest.raises(RetryError, match=f"could not be written to {tmp_path}"):
        write_findings(7, gathered([Finding(kind=Kind.GAP, source="a")]), str(tmp_path))


def test_findings_have_the_same_columns_in_both_modes(tmp_path: Path) -> None:
    of_ranges = {"last_id", "rows", "batches"}
    assert [*FINDING_TYPES] == [n for n in Finding.__struct_fields__ if n not in of_ranges]
    some = [FINDING_TYPES[name] for name in ("kind", "id", "ids", "columns", "verified_at")]
    assert some == ["string", "bigint", "array<bigint>", "array<string>", "string"]
    listed = Finding(kind=Kind.FORK, source="a", pid=3, ids=(4, 5))
    passing = Finding(kind=Kind.LACKING, source="a", against="b", id=0)
    write_findings(
        7, joined_findings([gathered([listed]), collected(lambda: [passing])]), str(tmp_path)
    )
    table = pq.read_table(tmp_path / "findings.parquet")
    assert table.column_names == [*FINDING_TYPES, "chain"]
    kinds = {"string": "string", "bigint": "int64", "array<bigint>": "list<element: int64>",
             "array<string>": "list<element: string>"}  # fmt: skip
    assert [str(field.type) for field in table.schema][:-1] == [
        kinds[kind] for kind in FINDING_TYPES.values()
    ]
    told = [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]
    assert told == [
        {"kind": "fork", "source": "a", "pid": 3, "ids": [4, 5], "chain": 7},
        {"kind": "lacking", "source": "a", "against": "b", "id": 0, "chain": 7},
    ]


def test_findings_that_are_not_all_there_afterwards_leave_no_verdict(tmp_path: Path) -> None:
    """What differed is equal when it is looked for again to be written."""
    base, own = write_chain(tmp_path / "base", "a"), write_chain(tmp_path / "own", "b")
    folder = tmp_path / "findings"
    request = VerifyRequest(chain_id=7, sources=(base, own), head=MANY, findings_folder=str(folder))

    def change(line: str) -> None:
        if line.startswith("writing"):
            write_chain(tmp_path / "own", "a")

    with pytest.raises(RetryError, match=f"0 of {MANY} are there"):
        verify_locally(request, change)


@pytest.mark.parametrize("url", ["s3a://bucket/findings", "file:/tmp/findings"])
def test_findings_at_a_url_are_refused_without_spark(tmp_path: Path, url: str) -> None:
    source = write_chain(tmp_path / "base", "a")
    for request in (
        VerifyRequest(chain_id=7, sources=(source,), findings_folder=url),
        VerifyRequest(chain_id=7, sources=(ParquetSource(path=url),)),
    ):
        with pytest.raises(SettingError, match="not a URL"):
            verify_locally(request)
