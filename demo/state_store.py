"""Where the matching service keeps what it knows: beside its checkpoint, in one transaction."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from orderchain.clients.database_config import DatabaseConfig
from orderchain.clients.session import SessionConfig, connected
from orderchain.sql import RECEIVER_WRITER, load_sql

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from matcher_receiver import Receiver
    from orderchain.clients.postgres import Connection
    from orderchain.model import Run


SQL: Final = load_sql("demo", "queries.sql")

CONNECT_SECONDS: Final = 10.0
STATEMENT_SECONDS: Final = 30.0
"""Deadline of a save: far longer than a state of many megabytes takes."""


class StoredState(Struct, frozen=True, kw_only=True):
    """A handler's state, and its place in the chain."""

    head: int
    """Id of the last row that is in it; the checkpoint has the same."""
    events: int
    """Rows that are in it."""
    journal_bytes: int
    """Length of the journal that ends with the same row."""
    state: bytes
    """What the handler has dumped."""


class StateStore:
    """The state of one receiver of one chain. Opened by `open_state_store`."""

    def __init__(self, connection: Connection, chain_id: int, receiver: str) -> None:
        self._connection = connection
        self._chain_id = chain_id
        self._receiver = receiver

    async def load(self) -> StoredState | None:
        """Return what was saved last; None when nothing ever was."""
        row = await self._connection.fetchrow(SQL["load_state"], self._chain_id, self._receiver)
        if row is None:
            return None
        head, events, journal_bytes, state = row
        return StoredState(head=head, events=events, journal_bytes=journal_bytes, state=state)

    async def save(self, receiver: Receiver, run: Run, state: StoredState) -> None:
        """Store the state after `run` and the checkpoint of `receiver`, both or neither."""
        async with self._connection.transaction():
            await self._connection.execute(
                SQL["save_state"],
                self._chain_id,
                self._receiver,
                state.head,
                state.events,
                state.journal_bytes,
                state.state,
            )
            await receiver.checkpoint(run, self._connection)


@asynccontextmanager
async def open_state_store(
    database: str | DatabaseConfig, chain_id: int, receiver: str
) -> AsyncIterator[StateStore]:
    """Hold the state store of one receiver. Raises as `orderchain.clients.session.connected`."""
    config = SessionConfig(
        database=DatabaseConfig.of(database),
        application_name="orderchain demo",
        role=RECEIVER_WRITER,
        connect_seconds=CONNECT_SECONDS,
        statement_seconds=STATEMENT_SECONDS,
    )
    async with connected(config) as connection:
        yield StateStore(connection, chain_id, receiver)
