"""Files that cannot be used for a while, as when an operator or a tool replaces them."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.certificates import Files

SPOILS: Final = ("away", "unreadable", "half written")


@contextmanager
def spoiled(path: Path, how: str) -> Iterator[None]:
    """Make a file unusable during the block; then it is there again."""
    text, mode = path.read_text(), path.stat().st_mode
    path.unlink()
    if how == "half written":
        _write(path, text[: len(text) // 2], mode)
    elif how == "unreadable" and os.geteuid():
        _write(path, text, 0)
    elif how == "unreadable":
        path.mkdir()  # an administrator reads whatever the mode says
    try:
        yield
    finally:
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        _write(path, text, mode)


def _write(path: Path, text: str, mode: int) -> None:
    path.write_text(text)
    path.chmod(mode)


def copied(files: Files, folder: Path) -> Files:
    """Return copies of a certificate and its key, for a test to spoil."""
    folder.mkdir(exist_ok=True)
    return replace(
        files,
        certificate=Path(shutil.copy2(files.certificate, folder)),
        key=Path(shutil.copy2(files.key, folder)),
    )


def replaced(old: Files, new: Files, *, only: str = "") -> None:
    """Put a new certificate and its key in the place of the old ones, or `only` one of them."""
    for name in (only,) if only else ("certificate", "key"):
        there: Path = getattr(old, name)
        aside = there.with_suffix(".new")
        _write(aside, getattr(new, f"{name}_text"), 0o600)
        aside.replace(there)
