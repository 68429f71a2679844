"""Snapshots as files: the newest whole one wins, and a crash at any point leaves one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from chain_kernel.errors import SettingError
from chain_kernel.model import Mark, Snapshot
from matcher_receiver import FileSnapshotStore
from tests.builders.chains import ids_of

from ..rig import Rig, virtual

if TYPE_CHECKING:
    from collections.abc import Callable


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


async def test_snapshot_comes_back_as_it_was_and_the_newest_one_first(
    store: FileSnapshotStore, tmp_path: Path
) -> None:
    assert await store.newest() is None
    for row_id in (5, 900, 31):
        await store.save(snapshot_at(row_id))
    assert await FileSnapshotStore(tmp_path, 7).newest() == snapshot_at(900)
    assert await FileSnapshotStore(tmp_path, 8).newest() is None
    assert store.broken == []


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


async def test_snapshot_with_any_bit_turned_is_broken(
    store: FileSnapshotStore, tmp_path: Path
) -> None:
    await store.save(snapshot_at(10))
    await store.save(snapshot_at(20))
    path = path_at(tmp_path, 20)
    whole = path.read_bytes()
    for at in range(len(whole)):
        turned = bytearray(whole)
        turned[at] ^= 1 << at % 8
        path.write_bytes(bytes(turned))
        assert await store.newest() == snapshot_at(10), at


async def test_snapshot_under_the_name_of_another_place_is_broken(
    store: FileSnapshotStore, tmp_path: Path
) -> None:
    await store.save(snapshot_at(10))
    path = path_at(tmp_path, 10)
    path.rename(path.with_name(path.name.replace("10", "99")))
    with pytest.raises(SettingError, match="1 are broken"):
        await store.newest()


async def test_snapshots_that_are_all_broken_are_no_empty_state(
    store: FileSnapshotStore, tmp_path: Path
) -> None:
    """Else a service would begin where it was asked to without a state, and might skip."""
    for row_id in (10, 20):
        await store.save(snapshot_at(row_id))
        path_at(tmp_path, row_id).write_bytes(b"")
    with pytest.raises(SettingError, match="2 are broken"):
        await store.newest()


async def test_broken_snapshots_ahead_never_push_whole_ones_out(
    store: FileSnapshotStore, tmp_path: Path
) -> None:
    await store.save(snapshot_at(10))
    for row_id in range(100, 500, 100):
        path_at(tmp_path, row_id).write_bytes(b"torn")
    assert await store.newest() == snapshot_at(10)
    await store.save(snapshot_at(20))
    assert await store.newest() == snapshot_at(20)
    await store.save(snapshot_at(500))
    assert names(tmp_path) == [300, 400, 500]


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


async def test_name_appears_only_once_its_content_was_forced_to_the_disk(
    store: FileSnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        kind = "folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file"  # noqa: PTH112
        acts.append(f"fsync {kind}")
        fsync(descriptor)

    def noted_replace(path: Path, target: Path) -> Path:
        acts.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    await store.save(snapshot_at(10))
    assert acts == ["fsync file", "rename", "fsync folder"]
    assert names(tmp_path) == [10]


async def test_what_another_process_left_half_written_is_removed(
    store: FileSnapshotStore, tmp_path: Path
) -> None:
    left = tmp_path / "chain-7-0000000000000000005.snapshot.1.writing"
    left.write_bytes(b"half")
    await store.save(snapshot_at(10))
    assert not left.exists()


@pytest.mark.parametrize("kept", [0, -1])
def test_store_that_would_keep_nothing_is_refused(tmp_path: Path, kept: int) -> None:
    with pytest.raises(SettingError, match="kept was"):
        FileSnapshotStore(tmp_path, 7, kept=kept)


def test_receiver_begins_behind_the_newest_whole_snapshot(tmp_path: Path) -> None:
    @virtual
    async def story() -> None:
        rig = Rig([4, 6, 5])
        store = FileSnapshotStore(tmp_path, rig.chain.chain_id)
        for at in (3, 9):
            mark = rig.chain.mark(rig.chain.ids[at])
            await store.save(Snapshot(mark=mark, state=b"%d rows" % (at + 1)))
        path_at(tmp_path, rig.chain.ids[9]).write_bytes(b"torn")
        rig.snapshots = store
        async with rig.receiver(until="head") as receiver:
            assert receiver.snapshot is not None
            assert receiver.snapshot.state == b"4 rows"
            assert ids_of([run async for run in receiver]) == rig.chain.ids[4:]

    story()


def test_snapshot_of_a_state_that_is_too_large_is_refused(
    store: FileSnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matcher_receiver.stores.files.STATE_BYTES_MAX", 3)
    large = msgspec.structs.replace(snapshot_at(1), state=b"four")

    @virtual
    async def story() -> None:
        with pytest.raises(SettingError, match="state was '4 bytes'"):
            await store.save(large)

    story()
