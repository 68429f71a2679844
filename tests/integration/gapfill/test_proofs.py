"""What an owner changes in stored rows contradicts their batch's seal, and is not handed on."""

from contextlib import aclosing
from typing import Any

import asyncpg
import pytest

import gapfill.batch_proof
from chain_kernel.errors import BatchDamaged, HaltError, RowsArchived
from chain_kernel.model import Mark
from chain_kernel.seal import Batch
from gapfill import GapReader, GapReaderConfig
from tests.builders.chains import ids_of
from tests.builders.stored_chain import STORED_PAGE_ROWS, StoredChain
from tests.stored_pages import LET_TAMPER

from .conftest import CHAIN_ID, PAGE_ROWS, MakeStored

CHANGES = [
    ("a payload", "UPDATE chain_event SET payload = 'other' WHERE id = $2"),
    ("an empty payload", "UPDATE chain_event SET payload = '' WHERE id = $2"),
    ("a key", "UPDATE chain_event SET key = key || '0' WHERE id = $2"),
    ("a long key", "UPDATE chain_event SET key = repeat('k', 300) WHERE id = $2"),
    ("an empty key", "UPDATE chain_event SET key = '' WHERE id = $2"),
    ("a time", "UPDATE chain_event SET event_time_ns = event_time_ns + 1 WHERE id = $2"),
    (
        "two rows swapped",
        "UPDATE chain_event AS row SET key = other.key, payload = other.payload, "
        "event_time_ns = other.event_time_ns FROM chain_event AS other "
        "WHERE row.id IN ($1, $2) AND other.id IN ($1, $2) AND row.id <> other.id "
        "AND row.chain_id = 7 AND other.chain_id = 7",
    ),
    (
        "a row removed, its links fixed",
        "DELETE FROM chain_event WHERE id = $2; UPDATE chain_event SET pid = $1 WHERE pid = $2",
    ),
    (
        "a row added, its links fixed",
        "UPDATE chain_event SET pid = $2 + 1 WHERE pid = $2; "
        "INSERT INTO chain_event VALUES (7, $2 + 1, $2, 'key', 0, 'forged')",
    ),
    (
        "a row under another id",
        "UPDATE chain_event SET pid = $2 + 1 WHERE pid = $2; "
        "UPDATE chain_event SET id = id + 1 WHERE id = $2",
    ),
    ("the batch's seal", "UPDATE chain_batch SET seal = sha256('') WHERE last_id = $3"),
    ("its count", "UPDATE chain_batch SET row_count = row_count + 1 WHERE last_id = $3"),
    ("its first id", "UPDATE chain_batch SET first_id = first_id + 1 WHERE last_id = $3"),
    ("its epoch", "UPDATE chain_batch SET epoch = epoch + 1 WHERE last_id = $3"),
    (
        "its time",
        "UPDATE chain_batch SET committed_at = committed_at + interval '1 us' WHERE last_id = $3",
    ),
    ("no time", "UPDATE chain_batch SET committed_at = 'infinity' WHERE last_id = $3"),
]


async def tamper(admin: asyncpg.Connection, batch: Batch, change: str) -> None:
    """Change the row before a hole in the ids: $2 is its id, $1 the one before, $3 the batch."""
    events = batch.events
    at = next(n for n in range(1, len(events) - 1) if events[n + 1].id > events[n].id + 1)
    await admin.execute(LET_TAMPER)
    values = {"$1": events[at - 1].id, "$2": events[at].id, "$3": batch.last_id}
    for name, value in values.items():
        change = change.replace(name, str(value))
    await admin.execute(change)


async def fill_until_halt(
    dsn: str, after: Mark, until_id: int, page_rows: int
) -> tuple[list[int], HaltError | None]:
    """Return the ids that were handed on, and what ended that."""
    ids: list[int] = []
    config = GapReaderConfig(database=dsn, chain_id=CHAIN_ID, page_rows=page_rows)
    async with GapReader(config) as reader, aclosing(reader.runs(after, until_id)) as runs:
        try:
            async for run in runs:
                ids += ids_of([run])
        except HaltError as error:
            return ids, error
    return ids, None


def assert_names(error: HaltError | None, batch: Batch) -> None:
    assert isinstance(error, BatchDamaged), repr(error)
    assert error.chain_id == CHAIN_ID
    assert (error.first_id, error.last_id) in {
        (batch.first_id, batch.last_id),
        (batch.first_id + 1, batch.last_id),  # where that is what was changed
    }
    assert error.expected != error.found


async def three_batches(make_stored: MakeStored, rows: int) -> StoredChain:
    return await make_stored([PAGE_ROWS, rows, PAGE_ROWS])


@pytest.mark.guarantee("G11", "G13")
@pytest.mark.parametrize(("what", "change"), CHANGES, ids=[what for what, _ in CHANGES])
async def test_fill_of_whole_batches_hands_on_no_row_of_one_that_was_changed(
    make_stored: MakeStored, gap_dsn: str, admin: asyncpg.Connection, what: str, change: str
) -> None:
    del what
    stored = await three_batches(make_stored, 3 * STORED_PAGE_ROWS)
    chain, batch = stored.chain, stored.chain.batches[1]
    await tamper(admin, batch, change)
    ids, error = await fill_until_halt(gap_dsn, chain.mark(0), chain.mark().id, page_rows=100)
    assert ids == chain.ids[:PAGE_ROWS]
    assert_names(error, batch)


@pytest.mark.parametrize("page_rows", [PAGE_ROWS, 2 * PAGE_ROWS])
async def test_batch_within_page_rows_waits_for_its_proof_wherever_readings_end(
    make_stored: MakeStored, gap_dsn: str, admin: asyncpg.Connection, page_rows: int
) -> None:
    stored = await make_stored([7, page_rows - 3, page_rows, 4, page_rows, 5])
    chain, batch = stored.chain, stored.chain.batches[4]
    assert await fill_until_halt(gap_dsn, chain.mark(0), chain.mark().id, page_rows) == (
        chain.ids,
        None,
    )
    await tamper(admin, batch, "UPDATE chain_event SET payload = 'other' WHERE id = $2")
    ids, error = await fill_until_halt(gap_dsn, chain.mark(0), chain.mark().id, page_rows)
    assert ids == [row_id for row_id in chain.ids if row_id < batch.first_id]
    assert_names(error, batch)


async def test_larger_batch_is_handed_on_as_it_comes_and_proven_before_its_last_rows(
    make_stored: MakeStored, gap_dsn: str, admin: asyncpg.Connection
) -> None:
    stored = await three_batches(make_stored, 6 * STORED_PAGE_ROWS)
    chain, batch = stored.chain, stored.chain.batches[1]
    await tamper(admin, batch, "UPDATE chain_event SET payload = 'other' WHERE id = $2")
    ids, error = await fill_until_halt(gap_dsn, chain.mark(0), chain.mark().id, PAGE_ROWS)
    assert ids == chain.ids[: len(ids)]
    assert PAGE_ROWS < len(ids) < PAGE_ROWS + batch.row_count
    assert_names(error, batch)


async def test_batches_that_a_fill_begins_and_ends_within_are_not_proven(
    make_stored: MakeStored, gap_dsn: str, admin: asyncpg.Connection
) -> None:
    stored = await make_stored([20, 20, 20])
    chain = stored.chain
    for batch in (chain.batches[0], chain.batches[2]):
        await tamper(admin, batch, "UPDATE chain_event SET payload = 'other' WHERE id = $2")
    after, until_id = chain.mark(chain.ids[0]), chain.ids[-2]
    ids, error = await fill_until_halt(gap_dsn, after, until_id, page_rows=100)
    assert (ids, error) == (chain.ids[1:-1], None)
    ids, error = await fill_until_halt(gap_dsn, after, chain.ids[-1], page_rows=100)
    assert ids == chain.ids[1:40]
    assert_names(error, chain.batches[2])


async def test_page_that_goes_on_after_the_end_of_its_batch_contradicts_it(
    make_stored: MakeStored, gap_dsn: str, admin: asyncpg.Connection
) -> None:
    stored = await make_stored([6, 6])
    chain, batch = stored.chain, stored.chain.batches[0]
    await admin.execute("ALTER TABLE chain_batch DISABLE TRIGGER ALL")
    await admin.execute("UPDATE chain_batch SET last_id = $1 WHERE first_id = $2",
                        chain.ids[3], batch.first_id)  # fmt: skip
    for after_id in (0, chain.ids[0]):
        after = chain.mark(after_id)
        ids, error = await fill_until_halt(gap_dsn, after, chain.mark().id, page_rows=100)
        assert ids == []
        assert isinstance(error, BatchDamaged)
        assert (error.first_id, error.last_id) == (batch.first_id, chain.ids[3])


async def test_rows_that_are_archived_while_their_batches_are_asked_for_contradict_nothing(
    make_stored: MakeStored, reader: GapReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await make_stored([2] * 40)
    chain = stored.chain
    fetch = reader._connection.fetch

    async def archived_meanwhile(statement: str, *values: object) -> Any:
        if statement == gapfill.batch_proof._SQL["batches_after"]:
            monkeypatch.setattr(reader._connection, "fetch", fetch)
            await stored.archive_up_to(chain.batches[20])
        return await fetch(statement, *values)

    monkeypatch.setattr(reader._connection, "fetch", archived_meanwhile)
    given: list[int] = []

    async def fill() -> None:
        async with aclosing(reader.runs(chain.mark(0), chain.mark().id)) as runs:
            async for run in runs:
                given.extend(ids_of([run]))

    with pytest.raises(RowsArchived) as caught:
        await fill()
    assert given == chain.ids[: len(given)]
    last_id = given[-1] if given else 0
    assert (caught.value.after_id, caught.value.until_id) == (last_id, chain.batches[20].last_id)
