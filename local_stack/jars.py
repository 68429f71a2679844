"""Fetches Apache Kafka from its published jars, once, with the resolver that is in PySpark's
wheel.

`python -m local_stack.fetch` does it ahead of the first start.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from local_stack.errors import FetchFailed, SetupNeeded
from local_stack.folders import make_folder
from local_stack.java import find_java
from local_stack.locking import Progress, exclusive, silent

if TYPE_CHECKING:
    from collections.abc import Mapping

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
