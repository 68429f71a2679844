"""What the servers did meanwhile: CPU seconds, checkpoints, write-ahead log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from benchmarks.chains import connect_to

if TYPE_CHECKING:
    from benchmarks.chains import Site

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_LOOK = """
SELECT (SELECT {checkpoints}) AS checkpoints,
       (pg_current_wal_lsn() - '0/0')::float8 AS wal_bytes,
       (SELECT count(*) FROM pg_ls_waldir()) AS wal_files
"""


_CHECKPOINTS = "num_timed + num_requested FROM pg_stat_checkpointer"
_CHECKPOINTS_BEFORE_17 = "checkpoints_timed + checkpoints_req FROM pg_stat_bgwriter"


class ServerLoad(Struct, frozen=True, kw_only=True):
    """A look at the counters, all from the start of the servers."""

    cpu_seconds: dict[str, float]
    checkpoints: int
    wal_bytes: float
    wal_files: int
    """Of 16 MB, used ones and those that are kept for reuse."""

    @classmethod
    async def now(cls, site: Site) -> ServerLoad:
        """Return the counters of this instant."""
        connection = await connect_to(site.admin)
        try:
            is_old = connection.get_server_version().major < 17
            counted = _CHECKPOINTS_BEFORE_17 if is_old else _CHECKPOINTS
            row = await connection.fetchrow(_LOOK.format(checkpoints=counted))
        finally:
            await connection.close()
        children = _children()
        return cls(
            cpu_seconds={
                name: _tree_cpu_seconds(process_id, children)
                for name, process_id in site.process_ids.items()
            },
            checkpoints=row["checkpoints"],
            wal_bytes=row["wal_bytes"],
            wal_files=row["wal_files"],
        )

    def since(self, before: ServerLoad) -> dict[str, float]:
        """Return what was used since `before`."""
        used = {
            f"{name}_cpu_seconds": seconds - before.cpu_seconds.get(name, 0.0)
            for name, seconds in self.cpu_seconds.items()
        }
        return used | {
            "checkpoints": float(self.checkpoints - before.checkpoints),
            "wal_mib": (self.wal_bytes - before.wal_bytes) / 2**20,
            # Every commit waits for a new one; fewer are there when a checkpoint has removed some.
            "wal_files_more": float(self.wal_files - before.wal_files),
        }


def _tree_cpu_seconds(process_id: int, children: dict[int, list[int]]) -> float:
    """Return the CPU seconds of a process with all that it started, ended ones included."""
    ticks = 0
    waiting = [process_id]
    while waiting:
        current = waiting.pop()
        waiting += children.get(current, [])
        fields = _fields(current)
        # 11 to 14: its own in user and system mode, then those of children that it waited for.
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / _TICKS_PER_SECOND


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and (fields := _fields(int(folder.name))):
            found.setdefault(int(fields[1]), []).append(int(folder.name))
    return found


def _fields(process_id: int) -> list[str]:
    """Return the fields of /proc/N/stat after the name, which may hold anything; empty if gone."""
    try:
        text = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
