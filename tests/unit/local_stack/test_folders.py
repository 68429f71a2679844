from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from local_stack.errors import FolderUnusable
from local_stack.folders import (
    Account,
    default_cache_directory,
    default_directory,
    first_closed,
    make_folder,
    require_reachable,
    write_file,
)

if TYPE_CHECKING:
    from pathlib import Path

SOMEBODY = Account(name="somebody", user_id=54_321, group_id=54_321, switched=True)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_folder(server_folder: Path) -> Path:
    """A folder below which only our own folders decide who may pass."""
    if first_closed(server_folder, SOMEBODY) is not None:
        pytest.skip("the temporary folder of this machine is closed to other users")
    return server_folder


def test_default_directory_with_the_variable_is_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert str(default_directory({"CHAINCTL_STACK_DIR": "/srv/stack"})) == "/srv/stack"


def test_default_directory_as_root_is_the_systems_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert str(default_directory({"XDG_DATA_HOME": "/x"})) == "/var/lib/orderchain"
    assert str(default_cache_directory({"XDG_CACHE_HOME": "/x"})) == "/var/cache/orderchain"


def test_default_directory_as_a_user_follows_the_xdg_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/me")
    assert str(default_directory({"XDG_DATA_HOME": "/data"})) == "/data/orderchain"
    assert str(default_directory({})) == "/home/me/.local/share/orderchain"
    assert str(default_directory({"XDG_DATA_HOME": "relative"})) == (
        "/home/me/.local/share/orderchain"
    )
    assert str(default_cache_directory({})) == "/home/me/.cache/orderchain"


def test_make_folder_with_a_narrow_umask_has_the_mode_asked_for(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        make_folder(tmp_path / "new", 0o755)
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "new") == 0o755


def test_make_folder_that_exists_leaves_it_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o711)
    make_folder(theirs, 0o755)
    assert mode_of(theirs) == 0o711


def test_make_folder_where_a_file_stands_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FolderUnusable, match="cannot make the folder"):
        make_folder(tmp_path / "file", 0o755)


def test_first_closed_names_the_closed_parent(open_folder: Path) -> None:
    closed = open_folder / "closed"
    inner = closed / "inner"
    inner.mkdir(parents=True)
    closed.chmod(0o700)
    inner.chmod(0o755)
    assert first_closed(inner, SOMEBODY) == closed.resolve()
    with pytest.raises(FolderUnusable, match="the system user somebody cannot pass through"):
        require_reachable(inner, SOMEBODY)


def test_first_closed_with_every_parent_open_is_none(open_folder: Path) -> None:
    assert first_closed(open_folder, SOMEBODY) is None


def test_first_closed_for_ourselves_asks_nothing(tmp_path: Path) -> None:
    ourselves = Account(name="me", user_id=1, group_id=1, switched=False)
    assert first_closed(tmp_path / "missing", ourselves) is None


def test_write_file_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    write_file(path, "a long first text\n", 0o644)
    write_file(path, "short\n", 0o600)
    assert path.read_text() == "short\n"
    assert mode_of(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]
