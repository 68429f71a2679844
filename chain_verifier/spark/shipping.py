"""Sends the code of this package to where Spark runs Python: workers need only what it requires.

Without it, each worker would need this package in the version of the driver.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from contextlib import contextmanager
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chain_kernel.errors import SettingError
from chain_kernel.sql import schema_sql
from chain_verifier.spark.own_session import is_connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from importlib.resources.abc import Traversable

    from pyspark.sql import SparkSession

_PACKAGES: Final = ("chain_kernel", "chain_verifier", "orderchain")
_SUFFIXES: Final = (".py", ".sql")
_MADE: Final = (1980, 1, 1, 0, 0, 0)
"""One date for all files: the same code gives the same archive."""
_PATH: Final = "PYTHONPATH"

_SENT: Final[dict[tuple[str, str | None], str]] = {}
"""The archive of each module that was sent, by its Spark; None: this package."""


def ship(spark: SparkSession, *modules: str) -> None:
    """Send this package, and top-level `modules` of the caller, to the workers of `spark`.

    Does nothing where workers are processes of this machine, which import what the driver imports.
    Raises SettingError for a module that has changed since it was sent: workers keep what they have
    imported.
    """
    if not _is_remote(spark):
        return
    own: Any = spark  # only a session over Connect has an id, and workers of its own
    place: str = own.session_id if is_connect(spark) else own.sparkContext.applicationId
    for module, path in zip((None, *modules), _archives(modules), strict=True):
        if _SENT.setdefault((place, module), path) != path:
            expected = "as it was when it was sent to the workers: its new code needs a new session"
            raise SettingError("module", module, expected)
        spark.addArtifacts(path, pyfile=True)


@contextmanager
def on_driver(spark: SparkSession, *modules: str) -> Iterator[None]:
    """Functions that are given to Spark in the block find the same in a Python on the driver, too.

    Spark asks a stream's source and opens its state there, and gives that Python nothing that was
    added. Over Connect, the driver is elsewhere.
    """
    if is_connect(spark) or not _is_remote(spark):
        yield
        return
    environment = spark.sparkContext.environment
    usual = environment.get(_PATH)
    environment[_PATH] = os.pathsep.join([*_archives(modules), *([usual] if usual else [])])
    try:
        yield
    finally:
        del environment[_PATH]
        environment.update({_PATH: usual} if usual else {})


def _is_remote(spark: SparkSession) -> bool:
    return is_connect(spark) or not str(spark.conf.get("spark.master")).startswith("local")


def _archives(modules: tuple[str, ...]) -> list[str]:
    return [_own_archive(), *(_archive_of([module]) for module in modules)]


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that stays until this process ends: executors that come fetch from it."""
    return tempfile.TemporaryDirectory(prefix="chain-verifier-")


@cache
def _own_archive() -> str:
    # In a checkout, this one is elsewhere.
    return _archive_of(_PACKAGES, {"chain_kernel/schema.sql": schema_sql().encode()})


def _archive_of(modules: Sequence[str], more: Mapping[str, bytes] | None = None) -> str:
    """Make an archive of modules as they are now, and `more` files; its name shows its content."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        sources = dict(each for module in modules for each in _sources_of(module))
        for name, content in (sources | dict(more or {})).items():
            archive.writestr(zipfile.ZipInfo(name, _MADE), content)
    digest = hashlib.sha256(held.getvalue()).hexdigest()[:16]
    path = Path(_folder().name) / f"orderchain-{digest}.zip"
    if not path.exists():  # else a worker may be fetching it
        path.write_bytes(held.getvalue())
    return str(path)


def _sources_of(module: str) -> list[tuple[str, bytes]]:
    """Return the files of a top-level module or package, by their names in the archive.

    None of one that has compiled parts: workers must have it installed.
    """
    spec = find_spec(module)
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        found = dict(_files_below(files(module), module))
    else:
        origin = Path(spec.origin or "")
        found = {f"{module}{origin.suffix}": origin} if origin.is_file() else {}
    if any(name.endswith(tuple(EXTENSION_SUFFIXES)) for name in found):
        return []
    return [(name, each.read_bytes()) for name, each in found.items() if name.endswith(_SUFFIXES)]


def _files_below(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    for each in sorted(folder.iterdir(), key=lambda entry: entry.name):
        inner = f"{name}/{each.name}"
        if each.is_dir():
            yield from _files_below(each, inner)
        else:
            yield inner, each
