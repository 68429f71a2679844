"""Where the stack keeps its data and its downloads, and who can reach a folder.

Nothing here ever changes the mode or the owner of a folder that the stack did not make.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from local_stack.errors import FolderUnusable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from local_stack.service_user import Account

DIRECTORY_VARIABLE: Final = "CHAINCTL_STACK_DIR"

_SYSTEM_DATA: Final = Path("/var/lib/orderchain")
_SYSTEM_CACHE: Final = Path("/var/cache/orderchain")


def default_directory(environ: Mapping[str, str]) -> Path:
    """The stack's folder: `CHAINCTL_STACK_DIR`, else the system's place for root, else the user's
    own."""
    told = environ.get(DIRECTORY_VARIABLE)
    if told:
        return Path(told).expanduser().absolute()
    if os.geteuid() == 0:
        return _SYSTEM_DATA
    return _base(environ, "XDG_DATA_HOME", ".local/share") / "orderchain"


def default_cache_directory(environ: Mapping[str, str]) -> Path:
    """Where downloads are kept; every stack of the same user shares them."""
    if os.geteuid() == 0:
        return _SYSTEM_CACHE
    return _base(environ, "XDG_CACHE_HOME", ".cache") / "orderchain"


def _base(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    told = environ.get(variable, "")
    # The XDG rules: a relative path in these variables must be ignored.
    return Path(told) if Path(told).is_absolute() else Path.home() / below_home


def make_folder(path: Path, mode: int) -> None:
    """Make a folder of ours with this mode whatever the umask; one that exists is left as it is.

    Raises:
        FolderUnusable: it cannot be made, or something else is there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
        except FileExistsError:
            if not path.is_dir():
                raise
        else:
            path.chmod(mode)
    except OSError as error:
        raise FolderUnusable(f"cannot make the folder {path}: {error.strerror}") from error


def make_shared_folder(path: Path, account: Account) -> None:
    """Make a folder of ours that `account` can pass through: open to others only when it must
    be."""
    make_folder(path, 0o755 if account.switched else 0o700)


def make_private_folder(path: Path, account: Account) -> None:
    """Make a folder that belongs to `account` alone, as PostgreSQL demands of its data."""
    make_folder(path, 0o700)
    account.own(path)


def require_reachable(path: Path, account: Account) -> None:
    """Refuse a folder that `account` cannot pass through.

    Raises:
        FolderUnusable: names the first folder on the way that is closed.
    """
    closed = first_closed(path, account)
    if closed is not None:
        raise FolderUnusable(
            f"the system user {account.name} cannot pass through {closed} to {path}; "
            f"choose another folder by {DIRECTORY_VARIABLE}"
        )


def first_closed(path: Path, account: Account) -> Path | None:
    """The first folder from the root to `path`, itself included, that `account` cannot pass
    through."""
    if not account.switched:
        return None
    resolved = path.resolve()
    for folder in (*reversed(resolved.parents), resolved):
        if not _may_pass(folder.stat(), account):
            return folder
    return None


def _may_pass(status: os.stat_result, account: Account) -> bool:
    if status.st_uid == account.user_id:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == account.group_id:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def write_file(path: Path, text: str, mode: int, account: Account | None = None) -> None:
    """Replace a file as a whole: a reader, or a crash, sees the old text or the new, never a
    part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
    if account is not None:
        account.own(temporary)
    temporary.replace(path)
