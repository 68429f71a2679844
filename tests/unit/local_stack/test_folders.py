import os
import stat
import threading
from pathlib import Path

import pytest

from local_stack.errors import FolderUnusable
from local_stack.folders import (
    Account,
    default_cache_directory,
    default_directory,
    exclusive,
    first_closed,
    make_folder,
    require_reachable,
    write_file,
)
from local_stack.stack import load_state

SOMEBODY = Account(name="somebody", user_id=54_321, group_id=54_321, switched=True)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("user_id", "environ", "data", "cache"),
    [
        (0, {}, "/var/lib/orderchain", "/var/cache/orderchain"),
        (0, {"XDG_DATA_HOME": "/x"}, "/var/lib/orderchain", "/var/cache/orderchain"),
        (0, {"CHAINCTL_STACK_DIR": "/srv/stack"}, "/srv/stack", "/var/cache/orderchain"),
        (1000, {}, "/home/me/.local/share/orderchain", "/home/me/.cache/orderchain"),
        (1000, {"XDG_DATA_HOME": "/data"}, "/data/orderchain", "/home/me/.cache/orderchain"),
        (1000, {"XDG_DATA_HOME": "relative"}, "/home/me/.local/share/orderchain",
         "/home/me/.cache/orderchain"),
    ],
)  # fmt: skip
def test_default_directories_are_the_systems_or_follow_the_xdg_rules(
    user_id: int, environ: dict[str, str], data: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user_id)
    monkeypatch.setenv("HOME", "/home/me")
    assert str(default_directory(environ)) == data
    assert str(default_cache_directory(environ)) == cache


def test_make_folder_gives_a_new_one_its_mode_and_leaves_an_old_one_alone(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        make_folder(tmp_path / "new", 0o755)
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "new") == 0o755
    make_folder(tmp_path / "new", 0o700)
    assert mode_of(tmp_path / "new") == 0o755
    (tmp_path / "file").touch()
    with pytest.raises(FolderUnusable, match="cannot make the folder"):
        make_folder(tmp_path / "file", 0o755)


def test_first_closed_names_the_closed_parent_and_asks_nothing_for_ourselves(
    server_folder: Path,
) -> None:
    if first_closed(server_folder, SOMEBODY) is not None:
        pytest.skip("the temporary folder of this machine is closed to other users")
    closed = server_folder / "closed"
    inner = closed / "inner"
    inner.mkdir(parents=True)
    closed.chmod(0o700)
    inner.chmod(0o755)
    assert first_closed(inner, SOMEBODY) == closed.resolve()
    with pytest.raises(FolderUnusable, match="the system user somebody cannot pass through"):
        require_reachable(inner, SOMEBODY)
    ourselves = Account(name="me", user_id=1, group_id=1, switched=False)
    assert first_closed(server_folder / "missing", ourselves) is None


def test_write_file_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    write_file(path, "a long first text\n", 0o644)
    write_file(path, "short\n", 0o600)
    assert path.read_text() == "short\n"
    assert mode_of(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_exclusive_with_a_holder_says_so_once_and_gives_up_at_the_deadline(tmp_path: Path) -> None:
    lines: list[str] = []
    with (
        exclusive(tmp_path / "lock", deadline_s=1),
        pytest.raises(FolderUnusable, match="another process has held"),
        exclusive(tmp_path / "lock", deadline_s=0.3, progress=lines.append),
    ):
        pass
    assert len(lines) == 1
    with (
        pytest.raises(FolderUnusable, match="cannot open"),
        exclusive(tmp_path / "no/lock", deadline_s=1),
    ):
        pass


def test_exclusive_waits_until_the_holder_is_done(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    waiting, got = threading.Event(), threading.Event()

    def second() -> None:
        with exclusive(lock, deadline_s=30, progress=lambda _: waiting.set()):
            got.set()

    thread = threading.Thread(target=second)
    with exclusive(lock, deadline_s=1):
        thread.start()
        assert waiting.wait()
        assert not got.is_set()
    thread.join()
    assert got.is_set()


OTHER_FORMAT = (
    '{"format":2,"postgres_port":1,"kafka_port":2,"kafka_controller_port":3,"passwords":{}}'
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "is damaged or of another version") for text in ("", "{}", "[1]", "\xff")),
        ('{"format": "x"}', "is damaged or of another version"),
        (OTHER_FORMAT, "has format 2, expected 1"),
    ],
)
def test_state_that_is_damaged_or_of_another_version_is_refused(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(FolderUnusable, match=said):
        load_state(path)
