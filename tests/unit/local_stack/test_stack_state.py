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


def test_saved_state_is_loaded_again_readable_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    assert load_state(path) is None
    save_state(path, STATE)
    assert load_state(path) == STATE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "secret-one" not in repr(STATE)
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(FolderUnusable, match="has format 2, expected 1"):
        load_state(path)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "x"}', "\xff"])
def test_load_state_with_a_damaged_file_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(FolderUnusable, match="is damaged or of another version"):
        load_state(path)
