"""The files of an archive alone: what was written is proven by its seals when it is read back."""

import hashlib
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from chain_kernel.errors import InputError
from chain_verifier.archive.manifest import (
    Manifest,
    begin_manifest,
    chain_folder,
    load_manifest,
    remove_unfinished,
    store_manifest,
)
from chain_verifier.archive.part_files import verify_archive
from chain_verifier.checks.seals import SealRun
from chain_verifier.config import ParquetSource, VerifyRequest
from chain_verifier.local.verify import verify_locally
from chain_verifier.report import Verdict

from .archives import BATCHES, CHAIN, CHAIN_ID, PARTS, as_stored, write_archive

GENESIS = BATCHES[0].seal_before
HELD = BATCHES[: PARTS[-1]]
LAST_ID = HELD[-1].last_id
COUNT = sum(len(batch.rows) for batch in HELD)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive of three parts."""
    return write_archive(tmp_path, CHAIN, PARTS)


def manifest_of(archive: Path) -> Manifest:
    manifest = load_manifest(archive, CHAIN_ID)
    assert manifest is not None
    return manifest


def rewritten(archive: Path, index: int, column: str, change: Any) -> None:
    """Change one value of a part's rows, and the manifest with it, as a forger would."""
    manifest = manifest_of(archive)
    part = manifest.parts[index]
    path = chain_folder(archive, CHAIN_ID) / part.rows.name
    table = pq.read_table(path)
    at = table.schema.get_field_index(column)
    first, *others = table[column].to_pylist()
    pq.write_table(table.set_column(at, table.schema.field(at), [[change(first), *others]]), path)
    content = path.read_bytes()
    stored = replace(part.rows, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    parts = list(manifest.parts)
    parts[index] = replace(part, rows=stored)
    store_manifest(archive, replace(manifest, parts=tuple(parts)))


def test_archive_as_it_was_written_is_whole(archive: Path) -> None:
    wanted = BATCHES[4]
    report = verify_archive(archive, CHAIN_ID, wanted.last_id, wanted.last_id + 1)
    assert (report.fault, report.rows, report.parts) == (None, COUNT, 3)
    assert (report.after_id, report.last_id) == (0, LAST_ID)
    assert report.seal == HELD[-1].seal.hex()
    assert report.seals == {wanted.last_id: wanted.seal.hex(), wanted.last_id + 1: None}


def test_archive_is_a_source_of_parquet_that_holds_nothing_but_rows(archive: Path) -> None:
    source = ParquetSource(path=str(chain_folder(archive, CHAIN_ID)))
    report = verify_locally(VerifyRequest(chain_id=CHAIN_ID, sources=(source,), head=LAST_ID))
    assert (report.verdict, report.sources[0].rows) == (Verdict.COMPLETE, COUNT)


@pytest.mark.parametrize("kind", ["rows", "_batches/batches"])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_archive_with_a_file_harmed_is_not_whole(archive: Path, kind: str, harm: str) -> None:
    path = sorted(chain_folder(archive, CHAIN_ID).glob(f"{kind}-*.parquet"))[1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if harm == "remove":
        path.unlink()
    else:
        path.write_bytes(content if harm == "flip" else content[:-1])
    report = verify_archive(archive, CHAIN_ID)
    expected = "is missing" if harm == "remove" else "is not the file that was written"
    assert expected in str(report.fault)
    assert (report.parts, report.last_id) == (1, BATCHES[PARTS[0] - 1].last_id)


@pytest.mark.parametrize(
    ("column", "change", "shown"),
    [
        ("key", lambda key: key + "x", "does not have the seal of its rows"),
        ("payload", lambda payload: payload + b"x", "does not have the seal of its rows"),
        ("event_time_ns", lambda time: time + 1, "does not have the seal of its rows"),
        ("pid", lambda pid: pid - 1, "names pid"),
        ("id", lambda row_id: row_id - 1, "names pid"),
    ],
)
def test_archive_with_a_value_and_its_hash_rewritten_fails_by_links_or_seal(
    archive: Path, column: str, change: Any, shown: str
) -> None:
    rewritten(archive, 1, column, change)
    assert shown in str(verify_archive(archive, CHAIN_ID).fault)


def test_archive_without_a_part_in_between_is_not_whole(archive: Path) -> None:
    manifest = manifest_of(archive)
    store_manifest(archive, replace(manifest, parts=(manifest.parts[0], manifest.parts[2])))
    assert "does not follow" in str(verify_archive(archive, CHAIN_ID).fault)


def test_archive_of_another_database_does_not_begin_with_its_seal(archive: Path) -> None:
    store_manifest(archive, replace(manifest_of(archive), database_id=str(UUID(int=8))))
    fault = verify_archive(archive, CHAIN_ID).fault
    assert fault == "the archive does not begin with the seal of its chain and database"


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"chain_id": 8, "database_id": "x"}',
        '{"chain_id": 11, "database_id": "x", "more": 1}',
        '{"chain_id": 11, "database_id": "x", "version": 2}',
    ],
)  # fmt: skip
def test_archive_with_a_manifest_that_is_none_is_refused(archive: Path, text: str) -> None:
    (chain_folder(archive, CHAIN_ID) / "_manifest.json").write_text(text)
    with pytest.raises(InputError, match="archive was"):
        verify_archive(archive, CHAIN_ID)


def test_archive_whose_manifest_names_a_file_elsewhere_is_refused(archive: Path) -> None:
    path = chain_folder(archive, CHAIN_ID) / "_manifest.json"
    path.write_text(path.read_text().replace('"rows-', '"../rows-', 1))
    with pytest.raises(InputError, match="archive was"):
        verify_archive(archive, CHAIN_ID)


def test_archive_of_no_chain_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="an archive that holds chain 11"):
        verify_archive(tmp_path, CHAIN_ID)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prev_last_id": 1}, "follows 1, expected 0"),
        ({"row_count": 99}, "rows, expected 99"),
        ({"first_id": 1}, "holds rows"),
        ({"epoch": 99}, "does not have the seal"),
        (
            {"committed_at": BATCHES[0].committed_at + timedelta(microseconds=1)},
            "does not have the seal",
        ),
        ({"seal": bytes(32)}, "does not have the seal"),
    ],
)
def test_batch_that_does_not_fit_its_rows_is_named(change: dict[str, Any], words: str) -> None:
    batch, rows = as_stored(BATCHES[0])
    run = SealRun(CHAIN_ID, 0, GENESIS)
    assert words in str(run.fault(replace(batch, **change), rows))
    assert (run.at_id, run.seal) == (0, GENESIS)
    assert run.fault(batch, rows) is None


def test_archive_with_a_part_that_never_came_into_the_manifest_loses_it(archive: Path) -> None:
    manifest = manifest_of(archive)
    shorter = replace(manifest, parts=manifest.parts[:2])
    store_manifest(archive, shorter)
    remove_unfinished(archive, shorter)
    folder = chain_folder(archive, CHAIN_ID)
    assert len([*folder.glob("rows-*"), *folder.glob("_batches/*")]) == 4
    assert verify_archive(archive, CHAIN_ID).fault is None


def test_archive_with_a_file_before_its_end_that_nobody_names_is_refused(archive: Path) -> None:
    manifest = manifest_of(archive)
    without = replace(manifest, parts=(manifest.parts[0], manifest.parts[2]))
    with pytest.raises(InputError, match="a file that the manifest names"):
        remove_unfinished(archive, without)
    folder = chain_folder(archive, CHAIN_ID)
    assert len([*folder.glob("rows-*"), *folder.glob("_batches/*")]) == 6


@pytest.mark.parametrize("name", ["_batches/copy.parquet", "rows-copy.parquet"])
def test_archive_with_a_file_of_another_name_is_refused(archive: Path, name: str) -> None:
    (chain_folder(archive, CHAIN_ID) / name).touch()
    with pytest.raises(InputError, match=f"{name}.*a file that the manifest names"):
        remove_unfinished(archive, manifest_of(archive))


OTHER = "00000000-0000-4000-8000-000000000000"


def test_archive_that_lost_its_manifest_is_refused_and_a_new_one_begins_with_it(
    archive: Path, tmp_path: Path
) -> None:
    assert begin_manifest(archive, CHAIN_ID, OTHER) == manifest_of(archive)
    assert begin_manifest(archive, CHAIN_ID + 1, OTHER) == load_manifest(tmp_path, CHAIN_ID + 1)
    (chain_folder(archive, CHAIN_ID) / "_manifest.json").unlink()
    with pytest.raises(InputError, match="a manifest beside its files"):
        begin_manifest(archive, CHAIN_ID, OTHER)
