from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from local_stack.errors import FolderUnusable
from local_stack.process import ProcessIdentity
from local_stack.stack import StackState, load_state, save_state

if TYPE_CHECKING:
    from pathlib import Path

STATE = StackState(
    postgres_port=20_001,
    kafka_port=20_002,
    kafka_controller_port=20_003,
    passwords={"postgres": "secret-one"},
    postgres=ProcessIdentity(process_id=7, started="then"),
)


def test_save_state_then_load_state_gives_it_back(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    save_state(path, STATE)
    assert load_state(path) == STATE


def test_save_state_is_readable_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    save_state(path, STATE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_load_state_without_a_file_is_none(tmp_path: Path) -> None:
    assert load_state(tmp_path / "state.json") is None


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "x"}', "\xff"])
def test_load_state_with_a_damaged_file_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(FolderUnusable, match="is damaged or of another version"):
        load_state(path)


def test_load_state_with_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    save_state(path, STATE)
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(FolderUnusable, match="has format 2, expected 1"):
        load_state(path)


def test_repr_of_the_state_hides_passwords() -> None:
    assert "secret-one" not in repr(STATE)
