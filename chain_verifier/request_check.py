"""Refuses what cannot be verified, before Spark takes seconds to start. Reads no source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chain_verifier.config import DatabaseSource, JournalSource
from orderchain.errors import InputError, SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_verifier.config import VerifyRequest


_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")

_PATTERN: Final = re.compile(r"[\\*?\[\]{}]")


def is_url(text: str) -> bool:
    """Return whether `text` is a URL (`s3a://bucket/x`, `file:/x`), which is no path."""
    return _URL.match(text) is not None


def inside(folder: str, name: str) -> str:
    """Return the path of `name` in a folder or URL."""
    return f"{folder.rstrip('/')}/{name}"


def literal_path(path: str) -> str:
    """Return `path` escaped for a reader of Spark, which takes it for a pattern."""
    return _PATTERN.sub(r"\\\g<0>", path)


def local_folder(option: str, text: str) -> Path:
    """Return a folder of this machine. Raises SettingError for a URL, naming the `option`."""
    if is_url(text):
        raise SettingError(option, text, "a folder of this machine, not a URL")
    return Path(text)


def require_sound(requests: Sequence[VerifyRequest]) -> None:
    """Raise SettingError for sources that do not fit together, InputError for a file that cannot
    be read, or a folder of findings that is not empty.
    """
    for request in requests:
        _require_distinct(request)
        is_database = any(isinstance(source, DatabaseSource) for source in request.sources)
        if request.checks_seals and not is_database:
            raise SettingError("source", None, "the database, whose seals are to be checked")
        for source in request.sources:
            if isinstance(source, JournalSource):
                require_readable(source)
    for folder in {request.findings_folder for request in requests}:
        if folder is not None and not is_url(folder):
            _require_free(Path(folder))


def require_readable(source: JournalSource) -> None:
    """Raise InputError unless there is a file that can be read."""
    try:
        with Path(source.path).open("rb"):
            pass
    except OSError as error:
        raise InputError("journal", source.path, f"a readable file ({error.strerror})") from error


def _require_distinct(request: VerifyRequest) -> None:
    names = [source.name for source in request.sources]
    if not names:
        raise SettingError("source", None, "at least one source")
    for name in names:
        if names.count(name) > 1:
            raise SettingError("source", name, "each source once")


def _require_free(folder: Path) -> None:
    """Require an empty folder: findings of another run would look like those of this one."""
    try:
        is_free = not folder.exists() or not any(folder.iterdir())
    except OSError as error:
        raise InputError("findings", str(folder), f"an empty folder ({error.strerror})") from error
    if not is_free:
        raise InputError("findings", str(folder), "an empty folder, or one that does not exist")
