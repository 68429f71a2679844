"""Sends the code of this package to where Spark runs Python: workers need only what it requires.

Without it, each worker would need this package in the version of the driver.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
import zipfile
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chain_verifier.spark.own_session import is_connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

    from pyspark.sql import SparkSession

_PACKAGES: Final = ("chain_kernel", "chain_verifier", "orderchain")
_SUFFIXES: Final = (".py", ".sql")
_MADE: Final = (1980, 1, 1, 0, 0, 0)
"""One date for all files: the same code gives the same archive."""


def ship(spark: SparkSession, *modules: str) -> None:
    """Send this package, and top-level `modules` of the caller, to the workers of `spark`.

    Does nothing where workers are processes of this machine, which import what the driver imports.
    """
    if not is_connect(spark) and str(spark.conf.get("spark.master")).startswith("local"):
        return
    for names in (_PACKAGES, modules):
        if names:
            spark.addArtifacts(str(_archive_of(names)), pyfile=True)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that stays until this process ends: executors that come fetch from it."""
    return tempfile.TemporaryDirectory(prefix="chain-verifier-")


@cache
def _archive_of(modules: tuple[str, ...]) -> Path:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in modules:
            for name, content in _sources_of(module):
                archive.writestr(zipfile.ZipInfo(name, _MADE), content)
    digest = hashlib.sha256(held.getvalue()).hexdigest()[:16]
    path = Path(_folder().name) / f"orderchain-{digest}.zip"
    path.write_bytes(held.getvalue())
    return path


def _sources_of(module: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a top-level module or package, by their names in the archive."""
    spec = find_spec(module)
    if spec is not None and spec.submodule_search_locations is not None:
        yield from _files_below(files(module), module)
    elif spec is not None and spec.origin is not None:
        yield f"{module}.py", Path(spec.origin).read_bytes()


def _files_below(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for each in sorted(folder.iterdir(), key=lambda entry: entry.name):
        inner = f"{name}/{each.name}"
        if each.is_dir():
            yield from _files_below(each, inner)
        elif each.name.endswith(_SUFFIXES):
            yield inner, each.read_bytes()
