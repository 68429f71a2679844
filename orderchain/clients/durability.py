"""How durable a commit is: settings that are safe, and waits for a standby that were given up.

A server without `fsync`, `full_page_writes` or `synchronous_commit` may lose what it has committed.
A server that waits for a standby may be ordered to stop waiting, and then answers with success.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from orderchain.errors import DurabilityError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from orderchain.clients.postgres import Connection, LogMessage

_SAFE: Final = {
    "fsync": {"on"},
    "full_page_writes": {"on"},
    "synchronous_commit": {"on", "local", "remote_write", "remote_apply"},
}

_SYNC_WAIT_ROUTINE: Final = "SyncRepWaitForLSN"
"""Where the server reports, only by a warning (01000) in its own language, that it gave up a wait
for a synchronous standby. Other warnings, such as one of a trigger, or that the database must be
vacuumed, mean nothing for a commit."""


class SyncWaitCancelled(ConnectionError):
    """The server gave up the wait for a synchronous standby, and answered with success.

    What was committed is on this server only, and may be lost with it. Handle it like an answer
    that was lost.
    """

    def __init__(self) -> None:
        super().__init__("the wait for a synchronous standby was cancelled")


def is_durable(synchronous_commit: str) -> bool:
    """Return whether a commit under this setting is on disk when it returns."""
    return synchronous_commit in _SAFE["synchronous_commit"]


def check_durability(settings: Mapping[str, str]) -> None:
    """Raise DurabilityError where a crash of the server may lose what was acknowledged.

    It checks those settings of a server that it knows and finds.
    """
    for setting, safe in _SAFE.items():
        found = settings.get(setting)
        if found is not None and found not in safe:
            raise DurabilityError(setting, found, "on (or --unsafe-durability)")


def is_sync_wait_cancelled(routine: str | None) -> bool:
    """Return whether a warning with this `routine` (field R) reports a wait that was given up."""
    return routine == _SYNC_WAIT_ROUTINE


def listen_for_cancelled_waits(
    connection: Connection, on_cancelled: Callable[[Connection], None]
) -> None:
    """Call `on_cancelled` for each wait of this connection for a standby that was given up.

    It is called before the driver returns the result that comes after the warning.
    """
    connection.add_log_listener(_listener(on_cancelled))


@contextmanager
def watch_for_cancelled_waits(connection: Connection) -> Iterator[Callable[[], bool]]:
    """Listen during the block; the yielded function returns whether a standby wait was given up.

    For a connection of the caller.
    """
    found: list[Connection] = []
    listener = _listener(found.append)
    connection.add_log_listener(listener)
    try:
        yield lambda: bool(found)
    finally:
        if not connection.is_closed():
            connection.remove_log_listener(listener)


def _listener(
    on_cancelled: Callable[[Connection], None],
) -> Callable[[Connection, LogMessage], None]:
    def heard(sender: Connection, message: LogMessage) -> None:
        if is_sync_wait_cancelled(getattr(message, "server_source_function", None)):
            on_cancelled(sender)

    return heard
