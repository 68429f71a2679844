"""Snapshots as files: the newest whole one wins, and a crash at any point leaves one."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chain_kernel.errors import SettingError
from chain_kernel.model import Mark, Snapshot
from matcher_receiver import FileSnapshotStore


class PowerCut(BaseException):
    """Nothing of the program runs on; what it had not forced to the disk may be gone."""


def snapshot_at(row_id: int, state: bytes = b"state") -> Snapshot:
    mark = Mark(id=row_id, batch_last_id=row_id, seal=bytes(range(32)), epoch=2)
    return Snapshot(mark=mark, state=state + b" at %d" % row_id)


def path_at(folder: Path, row_id: int) -> Path:
    return folder / f"chain-7-{row_id:019d}.snapshot"


def tear_what_is_being_written(folder: Path) -> None:
    for path in folder.glob("*.writing"):
        path.write_bytes(path.read_bytes()[:10])


def names(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[2].split(".")[0]) for path in folder.glob("*.snapshot"))


@pytest.fixture
def store(tmp_path: Path) -> FileSnapshotStore:
    return FileSnapshotStore(tmp_path, 7)


def test_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("missing", "file"):
        with pytest.raises(SettingError, match=f"{name}', expected a folder that exists"):
            FileSnapshotStore(str(tmp_path / name), 7)


async def test_newest_snapshot_comes_back(store: FileSnapshotStore, tmp_path: Path) -> None:
    assert await store.newest() is None
    for row_id in (5, 900, 31):
        await store.save(snapshot_at(row_id))
    assert await FileSnapshotStore(tmp_path, 7).newest() == snapshot_at(900)
    assert await FileSnapshotStore(tmp_path, 8).newest() is None
    assert store.broken == []


async def test_newest_up_to_a_row_leaves_later_ones_out(store: FileSnapshotStore) -> None:
    for at_id in (10, 20):
        await store.save(snapshot_at(at_id))
    found = [await store.newest(until_id) for until_id in (9, 10, 19, 20)]
    assert found == [None, snapshot_at(10), snapshot_at(10), snapshot_at(20)]


async def test_only_the_last_snapshots_are_kept(store: FileSnapshotStore, tmp_path: Path) -> None:
    other = FileSnapshotStore(tmp_path, 8)
    await other.save(snapshot_at(1))
    for row_id in range(10, 60, 10):
        await store.save(snapshot_at(row_id))
    assert names(tmp_path) == [1, 30, 40, 50]
    assert await other.newest() == snapshot_at(1)


@pytest.mark.parametrize("left", range(0, 200, 7))
async def test_torn_snapshot_is_reported_and_the_one_before_it_wins(
    store: FileSnapshotStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, left: int
) -> None:
    await store.save(snapshot_at(10))
    await store.save(snapshot_at(20, b"x" * 200))
    torn = path_at(tmp_path, 20)
    torn.write_bytes(torn.read_bytes()[:left])
    assert await store.newest() == snapshot_at(10)
    assert store.broken == [torn]
    assert f"snapshot {torn} is broken" in caplog.text
    assert torn.exists(), "a person may want to look at it"


async def test_broken_snapshots_are_no_empty_state(
    store: FileSnapshotStore, tmp_path: Path
) -> None:
    """Else a service would begin where it was asked to without a state, and might skip."""
    for row_id in (10, 20):
        await store.save(snapshot_at(row_id))
        path_at(tmp_path, row_id).write_bytes(b"")
    with pytest.raises(SettingError, match="2 are broken"):
        await store.newest()


async def test_snapshot_that_its_service_removes_meanwhile_is_passed_over(
    store: FileSnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for row_id in (10, 20, 30):
        await store.save(snapshot_at(row_id))
    read = store._read

    def removed_first(path: Path) -> Snapshot:
        path_at(tmp_path, 20).unlink(missing_ok=True)
        return read(path)

    monkeypatch.setattr(store, "_read", removed_first)
    assert await store.newest(25) == snapshot_at(10)
    assert store.broken == []


@pytest.mark.parametrize("step", ["write", "fsync file", "replace", "fsync folder", "unlink"])
async def test_power_cut_at_any_step_of_a_save_leaves_a_whole_newest_one(
    store: FileSnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A cut loses what was not forced to the disk: that is torn by hand here."""
    for row_id in (10, 20, 30):
        await store.save(snapshot_at(row_id))

    def cut(*_: object, **__: object) -> Any:
        raise PowerCut

    fsyncs: list[int] = []

    def counted(descriptor: int) -> None:
        fsyncs.append(descriptor)
        if len(fsyncs) == (1 if step == "fsync file" else 2 if step == "fsync folder" else 0):
            cut()

    monkeypatch.setattr(os, "fsync", counted)
    if step == "write":
        monkeypatch.setattr("matcher_receiver.stores.files.sha256", cut)
    elif step in {"replace", "unlink"}:
        monkeypatch.setattr(Path, step, _failing(getattr(Path, step), cut, step))
    with pytest.raises(PowerCut):
        await store.save(snapshot_at(40))
    monkeypatch.undo()
    tear_what_is_being_written(tmp_path)
    found = await FileSnapshotStore(tmp_path, 7).newest()
    is_renamed = step in {"fsync folder", "unlink"}
    assert found == snapshot_at(40 if is_renamed else 30)
    await store.save(snapshot_at(50))
    assert await store.newest() == snapshot_at(50)


def _failing(act: Callable[..., Any], cut: Callable[[], Any], step: str) -> Callable[..., Any]:
    def run(path: Path, *arguments: Any, **options: Any) -> Any:
        if step == "replace" or path.suffix == ".snapshot":
            cut()
        return act(path, *arguments, **options)

    return run
