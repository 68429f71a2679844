"""What every CheckpointStore must do, shown in memory and on the real PostgreSQL alike."""

import pytest

from chain_kernel.errors import CheckpointLost, SettingError

from .conftest import OpenCheckpoints, OpenTransaction, mark_at


async def test_load_before_anything_was_saved_is_none(open_checkpoints: OpenCheckpoints) -> None:
    assert await open_checkpoints().load() is None


async def test_saved_place_comes_back_as_it_was(open_checkpoints: OpenCheckpoints) -> None:
    store = open_checkpoints()
    await store.save(0, mark_at(0))
    await store.save(0, mark_at(25))
    assert await open_checkpoints().load() == mark_at(25)


async def test_places_of_two_receivers_are_apart(open_checkpoints: OpenCheckpoints) -> None:
    await open_checkpoints("a").save(0, mark_at(5))
    assert await open_checkpoints("b").load() is None


async def test_save_from_a_moved_place_is_refused(open_checkpoints: OpenCheckpoints) -> None:
    mine, theirs = open_checkpoints(), open_checkpoints()
    await mine.save(0, mark_at(0))
    await theirs.save(0, mark_at(5))
    with pytest.raises(CheckpointLost) as caught:
        await mine.save(0, mark_at(7))
    assert caught.value.expected_id == 0
    assert await mine.load() == mark_at(5)


async def test_save_in_the_callers_transaction_stands_with_it(
    open_checkpoints: OpenCheckpoints, open_transaction: OpenTransaction
) -> None:
    store = open_checkpoints()
    await store.save(0, mark_at(0))
    async with open_transaction() as connection:
        await store.save(0, mark_at(5), connection)
        assert await open_checkpoints().load() == mark_at(0)
    assert await store.load() == mark_at(5)


async def test_save_over_a_connection_outside_of_a_transaction_is_refused_and_stores_nothing(
    open_checkpoints: OpenCheckpoints, open_transaction: OpenTransaction
) -> None:
    """Stored at once, the place would be ahead of an effect that a crash takes back."""
    store = open_checkpoints()
    await store.save(0, mark_at(0))
    async with open_transaction() as connection:
        pass
    with pytest.raises(SettingError, match="connection was 'outside of a transaction'"):
        await store.save(0, mark_at(5), connection)
    assert await store.load() == mark_at(0)


async def test_save_in_the_callers_transaction_falls_with_it(
    open_checkpoints: OpenCheckpoints, open_transaction: OpenTransaction
) -> None:
    store = open_checkpoints()
    await store.save(0, mark_at(0))

    async def roll_back() -> None:
        async with open_transaction() as connection:
            await store.save(0, mark_at(5), connection)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await roll_back()
    assert await store.load() == mark_at(0)
    async with open_transaction() as connection:
        await store.save(0, mark_at(6), connection)
    assert await store.load() == mark_at(6)


async def test_save_in_a_transaction_from_a_place_that_was_moved_is_refused(
    open_checkpoints: OpenCheckpoints, open_transaction: OpenTransaction
) -> None:
    store = open_checkpoints()
    await store.save(0, mark_at(5))
    with pytest.raises(CheckpointLost):
        async with open_transaction() as connection:
            await open_checkpoints().save(0, mark_at(7), connection)
    assert await store.load() == mark_at(5)


async def test_save_never_moves_back(open_checkpoints: OpenCheckpoints) -> None:
    store = open_checkpoints()
    await store.save(0, mark_at(2))
    with pytest.raises(SettingError, match="was 1, expected a place from 2 on"):
        await store.save(2, mark_at(1))
    assert await store.load() == mark_at(2)


async def test_save_from_another_place_than_the_stored_one_is_refused_and_says_where_it_is(
    open_checkpoints: OpenCheckpoints, open_transaction: OpenTransaction
) -> None:
    store = open_checkpoints()
    await store.save(0, mark_at(5))
    for first_pid in (3, 7):
        with pytest.raises(CheckpointLost, match=f"was at 5, expected {first_pid}: ") as caught:
            await store.save(first_pid, mark_at(9))
        assert (caught.value.expected_id, caught.value.found_id) == (first_pid, 5)
        with pytest.raises(CheckpointLost, match=f"was at 5, expected {first_pid}: "):
            async with open_transaction() as connection:
                await store.save(first_pid, mark_at(9), connection)
    assert await store.load() == mark_at(5)


async def test_save_from_a_place_that_is_gone_is_refused(
    open_checkpoints: OpenCheckpoints, open_transaction: OpenTransaction
) -> None:
    """A database was restored from a backup that is older than the receiver."""
    store = open_checkpoints()
    causes = (
        r"another receiver works .*, the database was restored .*, or a commit of this receiver"
    )
    with pytest.raises(CheckpointLost, match=f"is gone, expected 5: {causes}"):
        await store.save(5, mark_at(9))
    with pytest.raises(CheckpointLost, match="is gone"):
        async with open_transaction() as connection:
            await store.save(5, mark_at(9), connection)
    assert await store.load() is None


async def test_first_save_of_a_start_anywhere_is_taken(open_checkpoints: OpenCheckpoints) -> None:
    store = open_checkpoints()
    await store.save(25, mark_at(25))
    await store.save(25, mark_at(25))
    assert await store.load() == mark_at(25)


async def test_store_says_whose_place_it_keeps(open_checkpoints: OpenCheckpoints) -> None:
    store = open_checkpoints("matching")
    assert (store.chain_id, store.receiver) == (1, "matching")
