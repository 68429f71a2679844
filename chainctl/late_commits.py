"""Causes of late commits on a database's machine, as far as a client can see them.

Some of it is in files: they are looked at only where they are this machine's, and this server's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from chainctl.database import SQL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chainctl.database import Connection

WAL_BYTES_MIN: Final = 2**30
"""Least `min_wal_size`: with less, a busy server makes new log files after each checkpoint."""

_CHEAP_FLUSHES: Final = {"fdatasync", "open_datasync"}
"""They flush a log file's data, and not its times, of no use here."""

_UNSEEN: Final = "cannot see: the server's files are not here, or not for this user and login"
_KERNEL: Final = Path("/proc")


class Late(NamedTuple):
    """One thing that may make commits late."""

    what: str
    found: str
    to_do: str = ""
    """Empty where it does not, where it cannot be seen, and where nothing is known to help."""


async def look_for_late_commits(connection: Connection) -> list[Late]:
    """Look at settings of the log, and, where they can be seen, at its disk and at the kernel."""
    row = await connection.fetchrow(SQL["log_settings"])
    method, size = row["sync_method"], row["min_wal_bytes"]
    cheaper = "wal_sync_method = fdatasync, or what pg_test_fsync finds the fastest"
    larger = "min_wal_size = what is written between two checkpoints: commits wait for new files"
    found = f"min_wal_size is {size // 2**20:,} MiB"
    return [
        Late("commit: flush", method, "" if method in _CHEAP_FLUSHES else cheaper),
        Late("commit: log files", found, larger if size < WAL_BYTES_MIN else ""),
        *_on_the_machine(files_of(row)),
    ]


def files_of(row: Mapping[str, object]) -> Path | None:
    """Return the server's folder if it is here: what identifies the database is in its file."""
    if row["directory"] is None:
        return None
    folder = Path(str(row["directory"]))
    try:
        control = (folder / "global" / "pg_control").read_bytes()
    except OSError:
        return None
    number = int(str(row["identifier"]))
    is_its = control[:8] in (number.to_bytes(8, "little"), number.to_bytes(8, "big"))
    return folder if is_its else None


def _on_the_machine(folder: Path | None) -> Iterator[Late]:
    disk, memory = "commit: log disk", "commit: write-back"
    if folder is None:
        yield from (Late(disk, _UNSEEN), Late(memory, _UNSEEN))
        return
    if (folder / "pg_wal").stat().st_dev == (folder / "base").stat().st_dev:
        yield Late(disk, "pg_wal is on the file system of the tables")
    else:
        yield Late(disk, "pg_wal is on a file system of its own")
    yield write_back(_KERNEL)


def write_back(kernel: Path) -> Late:
    """Return how much the kernel lets gather before it begins to write."""
    try:
        size = _number(kernel / "sys/vm/dirty_background_bytes")
        if not size:
            ratio = _number(kernel / "sys/vm/dirty_background_ratio")
            lines = (kernel / "meminfo").read_text(encoding="ascii").splitlines()
            (total,) = [line for line in lines if line.startswith("MemTotal:")]
            size = int(total.split()[1]) * 1_024 * ratio // 100
    except (OSError, ValueError):
        return Late("commit: write-back", _UNSEEN)
    found = f"the kernel lets {size // 2**20:,} MiB gather before it writes"
    return Late("commit: write-back", found)


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))
