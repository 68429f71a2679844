"""Looks for a Java that can run Spark before Spark does, whose own word would be a trace."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orderchain.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAJOR_MIN: Final = 17
"""Spark 4 does not start below it."""

MODULE: Final = "jdk.incubator.vector"
"""Spark 4 names it on Java's command line; slimmed-down runtimes lack it."""

EXPECTED: Final = (
    f"Java {MAJOR_MIN} or newer with the module {MODULE} "
    "(Debian and Ubuntu: apt-get install default-jre-headless)"
)

_VERSION: Final = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)
_MODULES: Final = re.compile(r'^MODULES="([^"]*)"', re.MULTILINE)


def require_java(environ: Mapping[str, str]) -> None:
    """Raise SettingError unless the Java that Spark would start can run it.

    Reads the `release` file of the installation; without one Spark must find out by itself.
    """
    program = _java_program(environ)
    if program is None:
        raise SettingError("java", environ.get("JAVA_HOME"), EXPECTED)
    release = program.resolve().parent.parent / "release"
    if release.is_file():
        _require_release(program, release.read_text(encoding="utf-8", errors="replace"))


def _java_program(environ: Mapping[str, str]) -> Path | None:
    """Return what Spark's launcher would run: `JAVA_HOME` first, then `PATH`."""
    home = environ.get("JAVA_HOME")
    if home:
        program = Path(home) / "bin" / "java"
        return program if program.is_file() else None
    found = shutil.which("java", path=environ.get("PATH"))
    return Path(found) if found else None


def _require_release(program: Path, release: str) -> None:
    version, modules = _VERSION.search(release), _MODULES.search(release)
    too_old = version is not None and int(version[1]) < MAJOR_MIN
    slimmed = modules is not None and MODULE not in modules[1].split()
    if too_old or slimmed:
        raise SettingError("java", str(program), EXPECTED)
