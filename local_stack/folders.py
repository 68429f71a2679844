"""Folders of the stack's data and downloads: who owns them, and who works in them now.

Nothing here ever changes the mode or the owner of a folder that the stack did not make.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from chain_kernel.errors import SettingError
from chain_kernel.files import home_folder
from chain_kernel.text import silent
from local_stack.errors import FolderUnusable, SetupNeeded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# -- the account that the servers run as -----------------------------------------------------------
# PostgreSQL refuses to run as root, and rightly so. Root therefore runs both servers as a system
# user of our own; any other user runs them under their own account.

SERVICE_USER: Final = "orderchain"

_USERADD_DEADLINE_S: Final = 30.0
_USERADD_LOCK: Final = Path("/run/orderchain-useradd.lock")


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The account that a server runs as."""

    name: str
    user_id: int
    group_id: int
    switched: bool
    """True if this differs from the account that we run as: then files must be handed over, and
    programs started as another user."""

    def popen_arguments(self) -> dict[str, Any]:
        """Arguments of `subprocess` to start a program as this account, with none of the caller's
        groups."""
        if not self.switched:
            return {}
        return {"user": self.user_id, "group": self.group_id, "extra_groups": ()}

    def own(self, path: Path) -> None:
        """Hand a file or folder that we made over to this account."""
        if self.switched:
            os.chown(path, self.user_id, self.group_id, follow_symlinks=False)


def service_account() -> Account:
    """Our own account; or, for root, the system user, which is made when it is missing.

    Raises:
        SetupNeeded: root has no way to make the user.
        FolderUnusable: another process has been making it for too long.
    """
    if os.geteuid() != 0:
        return _current_account()
    entry = _look_up(SERVICE_USER) or _make_user(SERVICE_USER)
    if entry is None or entry.pw_uid == 0:
        raise SetupNeeded(
            f"add a system user to run the servers as: useradd --system {SERVICE_USER}"
        )
    return Account(name=SERVICE_USER, user_id=entry.pw_uid, group_id=entry.pw_gid, switched=True)


def _current_account() -> Account:
    user_id = os.geteuid()
    try:
        name = pwd.getpwuid(user_id).pw_name
    except KeyError:  # a container may run under a number that has no name
        name = str(user_id)
    return Account(name=name, user_id=user_id, group_id=os.getegid(), switched=False)


def _look_up(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _make_user(name: str) -> pwd.struct_passwd | None:
    """Make the user, one start at a time.

    `useradd` looks for the name before it locks the file of users. Two at once therefore both make
    it, each with a number of its own, and the last one's entry stays: the other start would own its
    files by a number that has no name, which PostgreSQL refuses.
    """
    program = shutil.which("useradd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        return None
    command = [program, "--system", "--user-group", "--no-create-home"]
    command += ["--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin", name]
    with exclusive(_USERADD_LOCK, deadline_s=_USERADD_DEADLINE_S):
        if _look_up(name) is None:
            subprocess.run(command, check=False, capture_output=True, timeout=_USERADD_DEADLINE_S)
        return _look_up(name)


# -- folders ---------------------------------------------------------------------------------------

DIRECTORY_VARIABLE: Final = "CHAINCTL_STACK_DIR"

_SYSTEM_DATA: Final = Path("/var/lib/orderchain")
_SYSTEM_CACHE: Final = Path("/var/cache/orderchain")


def default_directory(environ: Mapping[str, str]) -> Path:
    """The stack's folder: `CHAINCTL_STACK_DIR`, else the system's place for root, else the user's
    own."""
    named = environ.get(DIRECTORY_VARIABLE)
    if named:
        try:
            return Path(named).expanduser().absolute()
        except RuntimeError:  # there is no such user, or this account has no home
            raise SettingError("stack_dir", named, "a folder that is there without ~") from None
    if os.geteuid() == 0:
        return _SYSTEM_DATA
    return _base(environ, "XDG_DATA_HOME", ".local/share") / "orderchain"


def default_cache_directory(environ: Mapping[str, str]) -> Path:
    """The folder of downloads; every stack of the same user shares it."""
    if os.geteuid() == 0:
        return _SYSTEM_CACHE
    return _base(environ, "XDG_CACHE_HOME", ".cache") / "orderchain"


def _base(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    named = environ.get(variable, "")
    # The XDG rules: a relative path in these variables must be ignored.
    if Path(named).is_absolute():
        return Path(named)
    if (home := home_folder(environ)) is None:
        raise SettingError(variable, named, "an absolute folder: this account has no home folder")
    return home / below_home


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


# -- a lock between processes, and how a start reports its progress --------------------------------

ShowLine = Callable[[str], None]
"""Takes one line, without a newline. Called from the thread that called the stack."""


_POLL_S: Final = 0.1


@contextmanager
def exclusive(path: Path, *, deadline_s: float, progress: ShowLine = silent) -> Iterator[None]:
    """Hold the lock file `path` (made when missing, never removed: removing it would allow two
    holders).

    The kernel releases it when the process ends, however it ends.

    Raises:
        FolderUnusable: the file cannot be opened, or another process held it for `deadline_s`.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FolderUnusable(f"cannot open {path}: {error.strerror}") from error
    try:
        _acquire(descriptor, path, deadline_s, progress)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path, deadline_s: float, progress: ShowLine) -> None:
    end = time.monotonic() + deadline_s
    is_reported = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise FolderUnusable(
                    f"another process has held {path} for {deadline_s:.0f} s"
                ) from None
            if not is_reported:
                progress(f"Waiting for another process that holds {path}")
                is_reported = True
            time.sleep(_POLL_S)
        else:
            return
