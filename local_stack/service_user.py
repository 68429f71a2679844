"""The account that the servers run as.

PostgreSQL refuses to run as root, and rightly so. Root therefore runs both servers as a system user
of our own; any other user runs them under their own account.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, Final

import msgspec

from local_stack.errors import SetupNeeded

if TYPE_CHECKING:
    from pathlib import Path

SERVICE_USER: Final = "orderchain"

_USERADD_DEADLINE_S: Final = 30.0


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The account that a server runs as."""

    name: str
    user_id: int
    group_id: int
    switched: bool
    """Whether this differs from the account that we run as: then files must be handed over, and
    programs started as another user."""

    def popen_arguments(self) -> dict[str, Any]:
        """What `subprocess` needs to start a program as this account, with none of the caller's
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
    """
    if os.geteuid() != 0:
        return _current_account()
    entry = _look_up(SERVICE_USER)
    if entry is None:
        _make_user(SERVICE_USER)
        entry = _look_up(SERVICE_USER)
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


def _make_user(name: str) -> None:
    program = shutil.which("useradd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        return
    command = [program, "--system", "--user-group", "--no-create-home"]
    command += ["--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin", name]
    # It fails when a start at the same moment made the user; the look-up that follows shows it.
    subprocess.run(command, check=False, capture_output=True, timeout=_USERADD_DEADLINE_S)
