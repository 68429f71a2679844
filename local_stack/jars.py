"""Fetches Apache Kafka from its published jars, once.

`kafka.lock` names each jar and its hash, so that every machine runs the same bytes;
`python tools/kafka_jars.py VERSION` writes that file. `python -m local_stack.jars` fetches before
the first start; `make setup` runs it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from chain_kernel.text import not_installed, reason_of, silent
from local_stack.errors import FetchFailed, SetupNeeded, StackError
from local_stack.folders import (
    ShowLine,
    default_cache_directory,
    exclusive,
    first_closed,
    make_folder,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jgo.maven import MavenContext

    from local_stack.folders import Account

# -- Java ------------------------------------------------------------------------------------------
# It must be the system's own: the runtimes that come as Python wheels lack the module
# jdk.incubator.vector, without which Spark 4 does not start.

MAJOR_MIN: Final = 17
"""Spark 4 and Kafka 4 need it."""

_INSTALLED: Final = Path("/usr/lib/jvm")
_VERSION_DEADLINE_S: Final = 30.0
_VERSION: Final = re.compile(r'version "(?:1\.)?([0-9]+)')


def find_java(environ: Mapping[str, str], account: Account | None = None) -> Path:
    """The first Java of the required version: `JAVA_HOME`, then `PATH`, then what the system
    installed.

    With `account`, one that this account cannot reach is skipped.

    Raises:
        SetupNeeded: there is none.
    """
    for program in _candidates(environ):
        if _major(program) < MAJOR_MIN:
            continue
        if account is None or first_closed(program.resolve().parent, account) is None:
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


# -- Kafka -----------------------------------------------------------------------------------------

KAFKA_VERSION: Final = "4.1.1"
SCALA_VERSION: Final = "2.13"

REPOSITORY_VARIABLE: Final = "ORDERCHAIN_MAVEN_REPOSITORY"
"""The URL of a mirror in the layout of Maven, for networks that reach no other."""

JARS_VARIABLE: Final = "ORDERCHAIN_KAFKA"
"""A folder with the jars of another Kafka, 3.7 or newer; then none is fetched."""

_WORK_PREFIX: Final = ".fetching-"
_TRIES: Final = 3
_TRY_DEADLINE_S: Final = 60.0
"""Time that a server may send nothing."""
_FETCH_DEADLINE_S: Final = 1800.0
_AT_ONCE: Final = 8
"""Jars in the air: 45 small files wait for answers most of the time."""
_PAUSE_S: Final = 2.0


class Jar(msgspec.Struct, frozen=True):
    """One published file: its Maven coordinate, such as `org.slf4j:slf4j-api:1.7.36`, and hash."""

    coordinate: str
    sha256: str


def locked_jars() -> list[Jar]:
    """The jars of `kafka.lock`."""
    text = resources.files(__package__).joinpath("kafka.lock").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [Jar(*line.split()) for line in lines]


def kafka_folder(cache: Path) -> Path:
    """The folder of Kafka's jars, once they are fetched. It exists only when it is complete."""
    return cache / f"kafka_{SCALA_VERSION}-{KAFKA_VERSION}"


def fetch_kafka(cache: Path, *, environ: Mapping[str, str], progress: ShowLine = silent) -> Path:
    """The folder with Kafka's jars, fetched (43 MB, a few seconds) when it is not there yet.

    They come from Maven Central, or from the mirror that `ORDERCHAIN_MAVEN_REPOSITORY` names;
    `ORDERCHAIN_KAFKA` names a folder that is there.
    Concurrent starts fetch once. An interrupted fetch leaves only the jars that it has, which the
    next one checks and uses.

    Raises:
        FetchFailed: no answer, or not the bytes that `kafka.lock` names.
        SetupNeeded: the package that fetches is missing, or the named folder has no Kafka.
    """
    if named := environ.get(JARS_VARIABLE):
        if not any(Path(named).glob("kafka_2.*.jar")):
            raise SetupNeeded(f"{JARS_VARIABLE}={named} has no jar of a Kafka broker")
        return Path(named)
    folder = kafka_folder(cache)
    if folder.is_dir():
        return folder
    make_folder(cache, 0o755)
    with exclusive(cache / ".kafka.lock", deadline_s=_FETCH_DEADLINE_S, progress=progress):
        if not folder.is_dir():
            _fetch(cache, folder, environ, progress)
    return folder


def _fetch(cache: Path, folder: Path, environ: Mapping[str, str], progress: ShowLine) -> None:
    kept = cache / ".jars"
    context = _open_repository(kept, environ)
    progress(f"Fetching Apache Kafka {KAFKA_VERSION} (43 MB, once)")
    for left_over in cache.glob(f"{_WORK_PREFIX}*"):  # of a killed fetch; we hold the lock
        shutil.rmtree(left_over, ignore_errors=True)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fetch-kafka") as pool:
        paths = list(pool.map(lambda jar: _fetch_jar(context, jar), locked_jars()))
    with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=cache) as temporary:
        staged = Path(temporary) / "libs"
        staged.mkdir()
        for path in paths:
            path.rename(staged / path.name)
        # Our own folder is readable for the servers' account, whatever the umask.
        staged.chmod(0o755)
        for jar in staged.iterdir():
            jar.chmod(0o644)
        staged.rename(folder)
    shutil.rmtree(kept, ignore_errors=True)
    progress(f"Apache Kafka {KAFKA_VERSION} is here, later starts are offline")


def _open_repository(kept: Path, environ: Mapping[str, str]) -> MavenContext:
    try:
        from jgo.maven import MavenContext  # a third of a second, paid by the first start alone
    except ModuleNotFoundError as error:
        raise SetupNeeded(not_installed(error.name or "jgo", "stack")) from error
    mirror = environ.get(REPOSITORY_VARIABLE)
    repositories = {"mirror": mirror.rstrip("/")} if mirror else None
    return MavenContext(repo_cache=kept, remote_repos=repositories, timeout=int(_TRY_DEADLINE_S))


def _fetch_jar(context: MavenContext, jar: Jar) -> Path:
    """Fetch one jar, or take the one that an earlier fetch left, and check its bytes."""
    artifact = context.create_dependency(jar.coordinate).artifact
    reason = ""
    for attempt in range(1, _TRIES + 1):
        try:
            path = artifact.resolve()
            if hashlib.sha256(path.read_bytes()).hexdigest() == jar.sha256:
                return path
            reason = "its bytes are not those of kafka.lock"
        except (OSError, RuntimeError) as error:  # no answer, broken off; not there
            reason = reason_of(error)
        if artifact.cached_path is not None:
            artifact.cached_path.unlink(missing_ok=True)  # a part of it would count as all of it
        if attempt < _TRIES:
            time.sleep(_PAUSE_S * attempt)
    raise FetchFailed(
        f"Apache Kafka {KAFKA_VERSION} could not be fetched, is there a network? "
        f"({jar.coordinate}: {reason})"
    )


# -- as a program ----------------------------------------------------------------------------------


def _report(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> int:
    """Fetch Kafka for later starts. Returns 0, 2 when something must be installed, 3 when it could
    not be fetched."""
    try:
        fetch_kafka(default_cache_directory(os.environ), environ=os.environ, progress=_report)
    except SetupNeeded as error:
        _report(str(error))
        return 2
    except StackError as error:
        _report(str(error))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
