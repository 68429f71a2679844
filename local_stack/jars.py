"""Fetches Apache Kafka from its published jars, once, with the resolver that is in PySpark's wheel.

`python -m local_stack.jars` does it ahead of the first start; `make setup` runs it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from local_stack.errors import FetchFailed, SetupNeeded, StackError
from local_stack.folders import (
    Progress,
    default_cache_directory,
    exclusive,
    first_closed,
    make_folder,
    silent,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from local_stack.folders import Account

# -- Java ------------------------------------------------------------------------------------------
# It must be the system's own: the runtimes that come as Python wheels lack the module
# jdk.incubator.vector, without which Spark 4 does not start.

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


# -- Kafka -----------------------------------------------------------------------------------------

KAFKA_VERSION: Final = "4.1.1"

_SCALA_VERSION: Final = "2.13"
_LOGGING_VERSION: Final = "1.7.36"
"""Kafka's own jars have no logging binding, so the broker would log nothing when it fails. This one
prints, and has the version of the logging interface that Kafka requires."""

_MODULES: Final = f"""\
<ivy-module version="2.0">
  <info organisation="orderchain" module="local-stack"/>
  <dependencies>
    <dependency conf="default"
      org="org.apache.kafka" name="kafka_{_SCALA_VERSION}" rev="{KAFKA_VERSION}"/>
    <dependency conf="default" org="org.slf4j" name="slf4j-simple" rev="{_LOGGING_VERSION}"/>
  </dependencies>
</ivy-module>
"""

_WORK_PREFIX: Final = ".fetching-"
_TRIES: Final = 3
"""What was fetched before stays in the resolver's cache, so a retry continues where the last try
broke off."""
_TRY_DEADLINE_S: Final = 600.0
_LOCK_DEADLINE_S: Final = _TRIES * _TRY_DEADLINE_S
_PAUSE_S: Final = 2.0
_POLL_S: Final = 0.2
_TELL_EVERY_S: Final = 3.0


def kafka_folder(cache: Path) -> Path:
    """Where Kafka's jars are, once they are fetched. The folder exists only when it is
    complete."""
    return cache / f"kafka_{_SCALA_VERSION}-{KAFKA_VERSION}"


def fetch_kafka(cache: Path, *, environ: Mapping[str, str], progress: Progress = silent) -> Path:
    """The folder with Kafka's jars, fetched (43 MB, half a minute) when it is not there yet.

    Concurrent starts fetch once. An interrupted fetch leaves only the resolver's cache, which the
    next one uses.

    Raises:
        FetchFailed: no answer, or not all of it.
        SetupNeeded: Java or the resolver is missing.
    """
    folder = kafka_folder(cache)
    if folder.is_dir():
        return folder
    make_folder(cache, 0o755)
    with exclusive(cache / ".kafka.lock", deadline_s=_LOCK_DEADLINE_S, progress=progress):
        if not folder.is_dir():
            _fetch(cache, folder, environ, progress)
    return folder


def _fetch(cache: Path, folder: Path, environ: Mapping[str, str], progress: Progress) -> None:
    java, resolver = find_java(environ), _find_resolver()
    progress(f"Fetching Apache Kafka {KAFKA_VERSION} (43 MB, once)")
    kept = cache / ".resolver"
    for left_over in cache.glob(f"{_WORK_PREFIX}*"):  # of a killed fetch; we hold the lock
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=cache) as temporary:
        work = Path(temporary)
        command = _command(java, resolver, kept=kept, work=work)
        for attempt in range(1, _TRIES + 1):
            if _resolve(command, kept, work / "resolver.log", progress):
                break
            if attempt == _TRIES:
                raise FetchFailed(_reason(work / "resolver.log"))
            progress("The fetch broke off, trying again")
            time.sleep(_PAUSE_S * attempt)
        staged = work / "libs"
        _open_for_all(staged)
        staged.rename(folder)
    shutil.rmtree(kept, ignore_errors=True)
    progress(f"Apache Kafka {KAFKA_VERSION} is here, later starts are offline")


def _find_resolver() -> Path:
    found = importlib.util.find_spec("pyspark")  # finds the package without running it
    places = list(found.submodule_search_locations or []) if found is not None else []
    jars = sorted(jar for place in places for jar in Path(place).glob("jars/ivy-*.jar"))
    if not jars:
        raise SetupNeeded("pyspark is not installed: pip install 'orderchain[stack]'")
    return jars[-1]


def _command(java: Path, resolver: Path, *, kept: Path, work: Path) -> list[str | Path]:
    modules = work / "ivy.xml"
    modules.write_text(_MODULES, encoding="utf-8")
    pattern = f"{work}/libs/[artifact]-[revision].[ext]"
    return [
        *(java, "-jar", resolver, "-cache", kept, "-ivy", modules),
        *("-confs", "default", "-types", "jar", "bundle", "-retrieve", pattern),
    ]


def _resolve(command: list[str | Path], kept: Path, log_path: Path, progress: Progress) -> bool:
    """Run the resolver once, and report how far it is. Returns whether it has everything."""
    with (
        log_path.open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as resolver,
    ):
        try:
            return _follow(resolver, kept, progress)
        finally:
            resolver.kill()  # no effect once it has ended


def _follow(resolver: subprocess.Popen[bytes], kept: Path, progress: Progress) -> bool:
    end = time.monotonic() + _TRY_DEADLINE_S
    next_line = time.monotonic() + _TELL_EVERY_S
    while resolver.poll() is None:
        if time.monotonic() > end:
            return False
        if time.monotonic() > next_line:
            next_line += _TELL_EVERY_S
            progress(_how_far(kept))
        time.sleep(_POLL_S)
    return resolver.returncode == 0


def _how_far(kept: Path) -> str:
    try:
        modules = sum(1 for _ in kept.rglob("ivy-*.xml"))
        sizes = [jar.stat().st_size for jar in kept.rglob("*.jar")]
    except OSError:  # the resolver renames what it has fetched
        return f"Fetching Apache Kafka {KAFKA_VERSION}"
    found = f"{modules} modules looked up, {len(sizes)} jars, {sum(sizes) // 1_000_000} MB"
    return f"Fetching Apache Kafka {KAFKA_VERSION}: {found}"


def _reason(log_path: Path) -> str:
    text = log_path.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip(" \t:") for line in text.splitlines()]
    named = [line for line in lines if "#" in line and ("not found" in line or "FAILED" in line)]
    said = named[0] if named else "the resolver said no more"
    return f"Apache Kafka {KAFKA_VERSION} could not be fetched, is there a network? ({said})"


def _open_for_all(folder: Path) -> None:
    """Make our own folder readable for the servers' account, whatever the umask."""
    folder.chmod(0o755)
    for jar in folder.iterdir():
        jar.chmod(0o644)


# -- as a program ----------------------------------------------------------------------------------


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> int:
    """Fetch Kafka for later starts. Returns 0, 2 when something must be installed, 3 when it could
    not be fetched."""
    try:
        fetch_kafka(default_cache_directory(os.environ), environ=os.environ, progress=_tell)
    except SetupNeeded as error:
        _tell(str(error))
        return 2
    except StackError as error:
        _tell(str(error))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
