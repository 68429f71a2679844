"""Names of folders that may be URLs: those are left to whoever can read and write them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from orderchain.errors import SettingError

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")

_PATTERN: Final = re.compile(r"[\\*?\[\]{}]")


def is_url(text: str) -> bool:
    """Say whether `text` is a URL (`s3a://bucket/x`, `file:/x`), which no path may be made of."""
    return _URL.match(text) is not None


def inside(folder: str, name: str) -> str:
    """Return what is called `name` in a folder or URL."""
    return f"{folder.rstrip('/')}/{name}"


def literal_path(path: str) -> str:
    """Return `path` for a reader of Spark, which takes it for a pattern, as it is written."""
    return _PATTERN.sub(r"\\\g<0>", path)


def local_folder(option: str, text: str) -> Path:
    """Return a folder of this machine. Raises SettingError for a URL, naming the `option`."""
    if is_url(text):
        raise SettingError(option, text, "a folder of this machine, not a URL")
    return Path(text)
