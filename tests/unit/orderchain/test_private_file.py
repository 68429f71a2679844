from __future__ import annotations

from typing import TYPE_CHECKING

from orderchain.private_file import write_private

if TYPE_CHECKING:
    from pathlib import Path


def test_file_is_its_users_alone_and_holds_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_private(path, "größe")
    assert path.stat().st_mode & 0o777 == 0o600
    write_private(path, "x")
    assert path.read_bytes() == b"x"
