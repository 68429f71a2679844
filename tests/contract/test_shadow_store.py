"""What every ShadowStore must do, shown in memory and on the real PostgreSQL alike."""

import pytest

from chain_kernel.errors import CheckpointLost, SettingError
from chain_kernel.model import StoredState
from chain_kernel.ports import CheckpointStore

from .conftest import OpenCheckpoints, OpenShadow, OpenTransaction, mark_at

A, B = b"\1" * 32, b"\2" * 32


async def stored(store: CheckpointStore) -> None:
    """States after 5 and 9, and a place after 12."""
    await store.save(0, mark_at(0))
    await store.save(0, mark_at(5), states={"ALPHA": A, "": B})
    await store.save(5, mark_at(9), states={"ALPHA": B})
    await store.save(9, mark_at(12))


async def test_shadow_sees_the_states_and_the_place_of_the_other(
    open_checkpoints: OpenCheckpoints, open_shadow: OpenShadow
) -> None:
    await stored(open_checkpoints("r"))
    shadow = open_shadow("s", "r")
    assert await shadow.load() is None
    until_id, states = 0, list[StoredState]()
    while until_id < 12:  # in parts, as large as the store likes
        seen = await shadow.other_states(until_id)
        assert seen.until_id > until_id
        until_id = seen.until_id
        states += seen.states
    assert until_id == 12
    assert states == [
        StoredState(5, "", B), StoredState(5, "ALPHA", A), StoredState(9, "ALPHA", B),
    ]  # fmt: skip
    assert (await shadow.other_states(5)).states == (StoredState(9, "ALPHA", B),)
    assert (await shadow.other_states(9)).states == ()


async def test_states_of_a_save_that_was_refused_are_not_stored(
    open_checkpoints: OpenCheckpoints, open_shadow: OpenShadow
) -> None:
    store = open_checkpoints("r")
    await stored(store)
    with pytest.raises(CheckpointLost):
        await store.save(3, mark_at(12), states={"ALPHA": A})
    assert (await open_shadow("s", "r").other_states(9)).states == ()


async def test_states_stand_and_fall_with_the_callers_transaction(
    open_checkpoints: OpenCheckpoints, open_shadow: OpenShadow, open_transaction: OpenTransaction
) -> None:
    store, shadow = open_checkpoints("r"), open_shadow("s", "r")
    await store.save(0, mark_at(0))

    async def roll_back() -> None:
        async with open_transaction() as connection:
            await store.save(0, mark_at(5), connection, {"ALPHA": A})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await roll_back()
    assert (await shadow.other_states(0)).states == ()
    async with open_transaction() as connection:
        await store.save(0, mark_at(5), connection, {"ALPHA": B})
        assert (await shadow.other_states(0)).until_id == 0
    seen = await shadow.other_states(0)
    assert (seen.until_id, seen.states) == (5, (StoredState(5, "ALPHA", B),))


async def test_shadow_of_a_receiver_without_a_place_is_refused(
    open_checkpoints: OpenCheckpoints, open_shadow: OpenShadow
) -> None:
    await stored(open_checkpoints("r"))
    with pytest.raises(SettingError, match="shadow_of was 'q', expected a receiver of chain 1"):
        await open_shadow("s", "q").other_states(0)


async def test_shadow_of_a_name_that_keeps_a_place_is_refused(
    open_checkpoints: OpenCheckpoints, open_shadow: OpenShadow
) -> None:
    await stored(open_checkpoints("r"))
    with pytest.raises(SettingError, match="under which no receiver keeps its checkpoint"):
        await open_shadow("r", "q").load()


async def test_shadow_never_moves_a_place(
    open_checkpoints: OpenCheckpoints, open_shadow: OpenShadow
) -> None:
    await stored(open_checkpoints("r"))
    shadow = open_shadow("s", "r")
    await shadow.save(0, mark_at(20))
    assert await shadow.load() is None
    assert await open_checkpoints("s").load() is None
    assert await open_checkpoints("r").load() == mark_at(12)


async def test_states_of_one_order_come_together_however_many(
    open_checkpoints: OpenCheckpoints, open_shadow: OpenShadow
) -> None:
    many = {f"{number:04}": A for number in range(1_500)}
    store = open_checkpoints("r")
    await store.save(0, mark_at(0))
    await store.save(0, mark_at(5), states=many)
    seen = await open_shadow("s", "r").other_states(0)
    assert seen.states == tuple(StoredState(5, group, A) for group in many)
    assert seen.until_id == 5
