"""What a commit of the outbox promises, and how that is kept: settings, cut waits, barriers.

A server that runs without `fsync`, `full_page_writes` or `synchronous_commit` may lose what it has
committed. So sessions of ours refuse such a server, and keep their own `synchronous_commit` as they
have found it, whatever is reloaded meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from orderchain.errors import DurabilityError
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_SQL: Final = load_sql("outbox", "durability.sql")

PIN: Final = _SQL["pin"]
BARRIER: Final = _SQL["barrier"]
SYNCHRONOUS: Final = _SQL["synchronous"]

_SAFE: Final = {
    "fsync": {"on"},
    "full_page_writes": {"on"},
    "synchronous_commit": {"on", "local", "remote_write", "remote_apply"},
}

_WARNING: Final = "01000"
_WAITING_FUNCTION: Final = "SyncRepWaitForLSN"
"""Where PostgreSQL waits for a standby. Any trigger may raise a warning of the same code, and the
warning's text is in the server's language: only its source tells."""


def check_durability(settings: Mapping[str, str], *, unsafe: bool) -> None:
    """Raise DurabilityError where a crash of the server may lose what it has committed."""
    if unsafe:
        return
    for name, safe in _SAFE.items():
        if settings[name] not in safe:
            raise DurabilityError(name, settings[name], "on (or --unsafe-durability)")


def is_durable(synchronous_commit: str) -> bool:
    """Say whether a commit under this setting is on disk when it returns."""
    return synchronous_commit in _SAFE["synchronous_commit"]


def is_cut_wait(message: Any) -> bool:  # noqa: ANN401 - a log message of the driver's, untyped
    """Say whether a notice of the server tells that a wait for a standby was cut off.

    It is handed to listeners before the commit returns: both are called in turn by the loop, and
    the server sends the notice first.
    """
    return bool(
        message.sqlstate == _WARNING and message.server_source_function == _WAITING_FUNCTION
    )


class _Listened(Protocol):
    def add_log_listener(self, callback: Callable[[Any, Any], None]) -> None: ...


def listen_for_cut_waits(connection: _Listened, told: Callable[[], None]) -> None:
    """Call `told` at each wait of this connection for a standby that was cut off."""

    def heard(_: object, message: Any) -> None:  # noqa: ANN401 - as above
        if is_cut_wait(message):
            told()

    connection.add_log_listener(heard)
