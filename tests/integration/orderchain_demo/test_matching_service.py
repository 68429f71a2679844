from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from chain_kernel.errors import CheckpointLost, ConnectError
from chain_kernel.model import Event, Mark, Run
from chain_kernel.sql import GAP_READER, RECEIVER_WRITER
from orderchain_demo.matching_service import StateStore, StoredState, open_state_store
from orderchain_demo.scenario import make_table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

CHAIN_ID = 5
RECEIVER = "matching"
STATE = StoredState(head=7, events=3, journal_bytes=99, state=b"books")
RUN = Run(
    chain_id=CHAIN_ID,
    events=[Event(7, 0, "k", 0, b"")],
    end=Mark(id=7, batch_last_id=7, seal=bytes(32), epoch=1),
)


class Checkpoints:
    """A receiver as far as a save needs one: its checkpoint joins the caller's transaction."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.is_in_transaction: bool | None = None

    async def checkpoint(self, run: Run, connection: asyncpg.Connection) -> None:
        self.is_in_transaction = connection.is_in_transaction()
        if self._error is not None:
            raise self._error


async def made(database: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        await make_table(connection)
    finally:
        await connection.close()


@pytest.fixture
async def store(database: str, role_dsn: Callable[[str], str]) -> AsyncIterator[StateStore]:
    await made(database)
    async with open_state_store(role_dsn(RECEIVER_WRITER), CHAIN_ID, RECEIVER) as opened:
        yield opened


async def save(
    store: StateStore, state: StoredState = STATE, receiver: Checkpoints | None = None
) -> None:
    given: Any = receiver or Checkpoints()
    await store.save(given, RUN, state)


async def test_load_with_nothing_saved_is_none(store: StateStore) -> None:
    assert await store.load() is None


async def test_save_then_load_returns_the_last_state(store: StateStore) -> None:
    await save(store)
    later = StoredState(head=9, events=4, journal_bytes=120, state=b"more")
    await save(store, later)
    assert await store.load() == later


async def test_save_takes_the_checkpoint_into_its_transaction(store: StateStore) -> None:
    receiver = Checkpoints()
    await save(store, receiver=receiver)
    assert receiver.is_in_transaction


async def test_save_with_a_refused_checkpoint_stores_nothing(store: StateStore) -> None:
    await save(store)
    later = StoredState(head=9, events=4, journal_bytes=120, state=b"more")
    with pytest.raises(CheckpointLost):
        await save(store, later, Checkpoints(CheckpointLost(CHAIN_ID, RECEIVER, 7, 9)))
    assert await store.load() == STATE


async def test_states_of_two_receivers_are_apart(
    store: StateStore, role_dsn: Callable[[str], str]
) -> None:
    await save(store)
    async with open_state_store(role_dsn(RECEIVER_WRITER), CHAIN_ID, "other") as other:
        assert await other.load() is None


async def test_table_made_twice_keeps_what_is_in_it(store: StateStore, database: str) -> None:
    await save(store)
    await made(database)
    assert await store.load() == STATE


async def test_table_is_closed_to_the_gap_reader(
    store: StateStore, role_dsn: Callable[[str], str]
) -> None:
    async with open_state_store(role_dsn(GAP_READER), CHAIN_ID, RECEIVER) as other:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await other.load()


async def test_open_with_a_closed_port_is_refused_without_the_password() -> None:
    with pytest.raises(ConnectError) as caught:
        async with open_state_store("postgresql://u:secret@127.0.0.1:1/d", CHAIN_ID, RECEIVER):
            pass
    assert "secret" not in str(caught.value)
