"""Connections to the database: how they are opened, and what their errors mean."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import asyncpg

from orderchain.errors import DurabilityError, OrderchainError, RetryError
from orderchain.reasons import reason_of
from orderchain.refusals import connect_refusal, privilege_refusal, schema_refusal, sqlstate_of
from orderchain.roles import SEQUENCER_WRITER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from sequencer.config import SequencerConfig

_Result = TypeVar("_Result")

CONNECTION_ERRORS: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # What the driver raises when the server ended the session between two of our statements.
    asyncpg.InternalClientError,
)

_PASSING_SQLSTATE_CLASSES: Final = frozenset({"08", "40", "53", "55", "57", "58"})
"""Connection, rollback, resources (disk full), object in use, intervention, system error: nothing
that the statement itself is guilty of, so the same one may succeed later."""

_SYNC_WAIT_ROUTINE: Final = "SyncRepWaitForLSN"
"""Where the server says, by a mere warning (01000) in a language of its own, that it gave up a wait
for a synchronous standby. Other warnings, as one of a trigger, or that the database must be
vacuumed, say nothing of a commit."""

_SAFE_DURABILITY: Final = {
    "fsync": {"on"},
    "full_page_writes": {"on"},
    "synchronous_commit": {"on", "local", "remote_write", "remote_apply"},
}

_CLOSE_SECONDS: Final = 1.0
"""A connection that does not close by then is dropped: the server cleans up behind it."""


class SyncWaitCancelled(ConnectionError):
    """The server gave up the wait for a synchronous standby, and answered with success.

    What was committed stands in this server alone, and may be lost with it. To be handled as an
    answer that was lost.
    """

    def __init__(self) -> None:
        super().__init__("the wait for a synchronous standby was cancelled")


def is_sync_wait_cancelled(routine: str | None) -> bool:
    """Say whether a warning with this `routine` (field R) tells of a wait that was given up."""
    return routine == _SYNC_WAIT_ROUTINE


def check_durability(settings: Mapping[str, str]) -> None:
    """Raise DurabilityError where a crash of the server may lose what was acknowledged."""
    for setting, safe in _SAFE_DURABILITY.items():
        found = settings.get(setting)
        if found is not None and found not in safe:
            raise DurabilityError(setting, found, "on (or --unsafe-durability)")


def failure_of(what: str, error: Exception, database: str) -> OrderchainError:
    """Return RetryError where the same statement may succeed later, else OrderchainError.

    ConnectError where the login of `database` may not do this.
    """
    if refusal := privilege_refusal(error, database, SEQUENCER_WRITER):
        return refusal
    state_class = sqlstate_of(error)[:2]
    if state_class and state_class not in _PASSING_SQLSTATE_CLASSES:
        return OrderchainError(f"{what} refused: {reason_of(error)}")
    return RetryError(f"{what}: {reason_of(error)}")


async def connect(config: SequencerConfig, purpose: str, **settings: str) -> asyncpg.Connection:
    """Return a new connection to the chain's database. Raises as `connect_refusal` says."""
    try:
        return await asyncpg.connect(
            config.database,
            timeout=config.connect_seconds,
            server_settings={
                "application_name": f"orderchain {purpose} {config.chain_id}",
                "jit": "off",
                **settings,
            },
        )
    except (*CONNECTION_ERRORS, ValueError) as error:
        raise connect_refusal(error, config.database) from error


async def close_connection(connection: asyncpg.Connection) -> None:
    """Close `connection` in good time, or drop it."""
    with suppress(*CONNECTION_ERRORS):
        await connection.close(timeout=_CLOSE_SECONDS)


class SideConnection:
    """A connection beside the one that commits: opened when needed, given up after an error."""

    def __init__(self, config: SequencerConfig, purpose: str, **settings: str) -> None:
        self._config = config
        self._purpose = purpose
        self._settings = settings
        self._connection: asyncpg.Connection | None = None
        self._lock = asyncio.Lock()

    async def run(
        self, what: str, work: Callable[[asyncpg.Connection], Awaitable[_Result]]
    ) -> _Result:
        """Return what `work` does on the connection, within the deadline of a commit.

        Raises RetryError, SchemaError, ConnectError or OrderchainError for what was refused.
        """
        async with self._lock:
            try:
                async with asyncio.timeout(self._config.commit_seconds):
                    if self._connection is None:
                        self._connection = await connect(
                            self._config, self._purpose, **self._settings
                        )
                    return await work(self._connection)
            except CONNECTION_ERRORS as error:
                self._drop()
                raise schema_refusal(error) or failure_of(
                    what, error, self._config.database
                ) from error
            except BaseException:
                self._drop()
                raise

    async def close(self) -> None:
        """Close; never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_connection(connection)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
