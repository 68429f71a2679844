"""Files that may have no end, or that stand for gigabytes: one line, and little memory."""

import json
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain_kernel.clients.pem import read_file
from chain_kernel.errors import InputError, SettingError
from chain_kernel.limits import PAYLOAD_BYTES_MAX
from chain_verifier.archive.manifest import Manifest, chain_folder, load_manifest, store_manifest
from chain_verifier.seal_files import SealFile, encoded, read_signing_key

Refused = Callable[..., str]

GROWTH_MAX: Final = 700 * 1024
"""KiB that a refusal may take at its peak: a column of 256 MiB, and its copy."""

UUID: Final = "00000000-0000-4000-8000-000000000000"

SEAL: Final = SealFile(
    version=1, chain_id=1, id=5, seal="ab" * 32, committed_at="2026-01-02T03:04:05Z",
    database_id=UUID, exported_at="2026-01-02T03:04:06Z", exported_by="me",
)  # fmt: skip


@pytest.fixture
def endless(tmp_path: Path) -> list[Path]:
    """A device, a pipe without a writer, and 2 GB that take no place on the disk."""
    pipe, sparse = tmp_path / "pipe", tmp_path / "sparse"
    os.mkfifo(pipe)
    with sparse.open("wb") as file:
        file.truncate(2 * 10**9)
    return [Path("/dev/zero"), pipe, sparse]


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_MAX


def test_files_without_an_end_are_refused_by_every_command_that_reads_one(
    refused: Refused, endless: list[Path]
) -> None:
    local = ("verify", "--local", "--chain", 1, "--head", 5, "--source")
    for path in endless:
        for command in (
            ("seal", "show", path),
            (*local, f"journal:{path}"),
            (*local, f"parquet:{path}"),
            ("config", "show", "--config", path),
            ("console", "--token-file", path),
        ):
            assert str(path) in refused(*command), command


def test_files_without_an_end_are_refused_as_keys_manifests_and_certificates(
    endless: list[Path], tmp_path: Path
) -> None:
    folder = chain_folder(tmp_path, 1)
    folder.mkdir()
    for path in endless:
        (folder / "_manifest.json").unlink(missing_ok=True)
        (folder / "_manifest.json").symlink_to(path)
        for read in (
            lambda: load_manifest(tmp_path, 1),
            lambda path=path: read_signing_key(path),
            lambda path=path: read_file("sslrootcert", str(path)),
        ):
            with pytest.raises((InputError, SettingError)):
                read()


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"exported_by":"\xff"}',
        encoded(msgspec.structs.replace(SEAL, exported_at="2026-01-02T03:04:06")),
        encoded(msgspec.structs.replace(SEAL, committed_at="yesterday")),
        encoded(msgspec.structs.replace(SEAL, database_id="x")),
    ],
)
def test_seal_that_holds_what_no_export_writes_is_refused(
    refused: Refused, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / SEAL.name
    path.write_bytes(content)
    assert str(path) in refused("seal", "show", path)


def test_manifest_of_no_database_is_refused(tmp_path: Path) -> None:
    chain_folder(tmp_path, 1).mkdir()
    store_manifest(tmp_path, Manifest(chain_id=1, database_id="x"))
    with pytest.raises(InputError, match="a manifest"):
        load_manifest(tmp_path, 1)


def table(payloads: Any, rows: int) -> pa.Table:
    numbers = pa.array(range(1, rows + 1), pa.int64())
    columns = {"chain_id": pa.array([1] * rows, pa.int32()), "id": numbers}
    columns["pid"] = pa.array(range(rows), pa.int64())
    columns |= {"key": pa.array(["k"] * rows), "event_time_ns": numbers, "payload": payloads}
    return pa.table(columns)


def named(size: int, rows: int) -> pa.Table:
    """Rows that all name one value of a dictionary."""
    places = pa.array([0] * rows, pa.int32())
    return table(pa.DictionaryArray.from_arrays(places, pa.array([bytes(size)])), rows)


@pytest.mark.parametrize(
    ("made", "options"),
    [
        (lambda: table(pa.array([bytes(2**20)]), 1), {"use_dictionary": False}),
        (lambda: named(PAYLOAD_BYTES_MAX + 1, 1), {"use_dictionary": False}),
        (lambda: named(20 * 2**20, 5_000), {}),
        pytest.param(
            lambda: named(PAYLOAD_BYTES_MAX, 1_100),
            {"use_dictionary": False, "data_page_size": 2**30},
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["a large value", "a value of one byte too much", "named often", "a large page"],
)
def test_parquet_that_stands_for_gigabytes_is_refused(
    refused: Refused, tmp_path: Path, made: Callable[[], pa.Table], options: dict[str, Any]
) -> None:
    path = tmp_path / "rows.parquet"
    process = os.fork()  # what it takes to make the file is not what it takes to refuse it
    if not process:
        pq.write_table(made(), path, compression="zstd", store_schema=False, **options)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0
    assert path.stat().st_size < 200_000
    line = refused("verify", "--local", "--chain", 1, "--head", 1, "--source", f"parquet:{path}")
    assert "column payload has" in line


def test_journal_with_a_payload_above_the_limit_is_refused(
    refused: Refused, tmp_path: Path
) -> None:
    path = tmp_path / "journal.jsonl"
    row = {"chain_id": 1, "id": 1, "pid": 0, "key": "k", "event_time_ns": 0}
    path.write_text(json.dumps({**row, "payload": "AAAA" * (PAYLOAD_BYTES_MAX // 3 + 1)}) + "\n")
    line = refused("verify", "--local", "--chain", 1, "--head", 1, "--source", f"journal:{path}")
    assert "a JSON object" in line
