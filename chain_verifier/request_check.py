"""Refuses what cannot be verified, before Spark takes seconds to start. Reads no source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chain_verifier.config import DatabaseSource, JournalSource
from chain_verifier.places import is_url
from orderchain.errors import InputError, SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_verifier.config import VerifyRequest


def require_sound(requests: Sequence[VerifyRequest]) -> None:
    """Raise SettingError for sources that do not go together, InputError for a file that cannot
    be read, or a folder of findings that holds something.
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
    """Findings of another run would not be told from those of this one."""
    try:
        is_free = not folder.exists() or not any(folder.iterdir())
    except OSError as error:
        raise InputError("findings", str(folder), f"an empty folder ({error.strerror})") from error
    if not is_free:
        raise InputError("findings", str(folder), "an empty folder, or one that does not exist")
