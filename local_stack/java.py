"""Finds a Java that can run Kafka and Spark.

It must be the system's own: the runtimes that come as Python wheels lack the module
jdk.incubator.vector, without which Spark 4 does not start.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from local_stack.errors import SetupNeeded
from local_stack.folders import first_closed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from local_stack.service_user import Account

MAJOR_MIN: Final = 17
"""Spark 4 and Kafka 4 need it."""

_INSTALLED: Final = Path("/usr/lib/jvm")
_VERSION_DEADLINE_S: Final = 30.0
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


def find_java(environ: Mapping[str, str], account: Account | None = None) -> Path:
    """The first Java of the required version: `JAVA_HOME`, then `PATH`, then what the system
    installed.

    With `account`, one that this account cannot reach is skipped.

    Raises:
        SetupNeeded: there is none.
    """
    for program in _candidates(environ):
        if _major(program) >= MAJOR_MIN and _within_reach(program, account):
            return program
    raise SetupNeeded(
        f"Java {MAJOR_MIN} or newer is needed: run `make setup` as root, "
        "or install it (Debian and Ubuntu: apt-get install default-jre-headless)"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    home = environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin/java"
    on_path = shutil.which("java", path=environ.get("PATH"))
    if on_path:
        yield Path(on_path)
    yield from sorted(_INSTALLED.glob("*/bin/java"))


def _within_reach(program: Path, account: Account | None) -> bool:
    return account is None or first_closed(program.resolve().parent, account) is None


def _major(program: Path) -> int:
    """The major version of a Java, 0 when it is not there or does not run."""
    try:
        done = subprocess.run(
            [program, "-version"],
            check=False,
            capture_output=True,
            text=True,
            timeout=_VERSION_DEADLINE_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found.group(1)) if found else 0
