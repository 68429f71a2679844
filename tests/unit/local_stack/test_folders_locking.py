from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from local_stack.errors import FolderUnusable
from local_stack.folders import exclusive

if TYPE_CHECKING:
    from pathlib import Path


def test_exclusive_with_a_holder_reports_once_and_gives_up_at_the_deadline(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    shown: list[str] = []
    with (
        exclusive(lock, deadline_s=1),
        pytest.raises(FolderUnusable, match="another process has held"),
        exclusive(lock, deadline_s=0.3, progress=shown.append),
    ):
        pass
    assert len(shown) == 1


def test_exclusive_waits_until_the_holder_lets_go(tmp_path: Path) -> None:
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


def test_exclusive_in_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(FolderUnusable, match="cannot open"),
        exclusive(tmp_path / "no/lock", deadline_s=1),
    ):
        pass
