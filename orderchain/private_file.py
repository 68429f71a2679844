"""Files that hold orders: created so that only their user may read them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

PRIVATE_MODE: Final = 0o600
"""For journals, reports and snapshots. A file that exists already keeps its mode."""


def private_opener(path: str | Path, flags: int) -> int:
    """Open as `open(..., opener=private_opener)` asks; a file that this creates is its user's."""
    return os.open(path, flags, PRIVATE_MODE)


def write_private(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8. Raises OSError."""
    with open(path, "w", encoding="utf-8", opener=private_opener) as file:
        file.write(text)
