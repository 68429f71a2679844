"""Reading what is missing, from a real PostgreSQL, with the role that may do nothing else."""

from contextlib import aclosing
from typing import Any

import asyncpg
import pytest

from chain_kernel.errors import PageDamaged, RetryError, RowsArchived, RowsMissing, SchemaError
from chain_kernel.model import Mark, Run
from gapfill import GapReader, GapReaderConfig
from tests.builders.chains import ids_of
from tests.builders.stored_chain import STORED_PAGE_ROWS
from tests.deadlines import in_time, until
from tests.stored_pages import LET_LACK_VALUES

from .conftest import MakeStored


async def fill(reader: GapReader, after: Mark, until_id: int) -> list[Run]:
    async with aclosing(reader.runs(after, until_id)) as runs:
        return [run async for run in runs]


async def fill_and_fail(
    reader: GapReader, after: Mark, until_id: int, error: type[Exception]
) -> tuple[list[int], Any]:
    """The ids that were yielded before the error, and the error."""
    ids: list[int] = []
    async with aclosing(reader.runs(after, until_id)) as runs:
        try:
            async for run in runs:
                ids += ids_of([run])
        except error as caught:
            return ids, caught
    pytest.fail(f"no {error.__name__} was raised")


async def standing_with(dsn: str, chain_id: int = 7) -> Any:
    async with GapReader(GapReaderConfig(database=dsn, chain_id=chain_id)) as reader:
        return await reader.standing(0)


async def test_standing_of_archived_rows(make_stored: MakeStored, reader: GapReader) -> None:
    stored = await make_stored([5, 5, 5])
    boundary = stored.chain.batches[1]
    await stored.archive_up_to(boundary)
    with pytest.raises(RowsArchived) as caught:
        await reader.standing(stored.chain.ids[2])
    assert caught.value.until_id == boundary.last_id
    at_boundary = await reader.standing(boundary.last_id)
    assert at_boundary.mark == stored.chain.mark(boundary.last_id)
    assert (await reader.standing(0)).mark == stored.chain.mark(0)


@pytest.mark.parametrize("rows", [3, 6, 10])
async def test_runs_with_a_gap_of_few_rows_cost_one_statement(
    make_stored: MakeStored, reader: GapReader, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    stored = await make_stored([7, 1, 4] + [1] * 20)
    chain = stored.chain
    after_id = chain.ids[4]
    # Ids skip: a range of ten ids, up to which a gap counts as short here, may hold fewer rows.
    until_id = max(id_ for id_ in chain.ids if id_ <= after_id + rows)
    asked: list[str] = []
    fetch = reader._connection.fetch

    async def counted(statement: str, *values: object) -> Any:
        asked.append(statement)
        return await fetch(statement, *values)

    monkeypatch.setattr(reader._connection, "fetch", counted)
    runs = await fill(reader, chain.mark(after_id), until_id)
    assert ids_of(runs) == [id_ for id_ in chain.ids if after_id < id_ <= until_id]
    assert [run.end for run in runs] == [chain.mark(until_id)]
    assert len(asked) == 1


async def test_pages_end_by_bytes(make_stored: MakeStored, gap_dsn: str) -> None:
    stored = await make_stored([])
    await stored.commit(40, payload_bytes=50_000)
    await stored.commit(40, payload_bytes=10)
    config = GapReaderConfig(database=gap_dsn, chain_id=7, page_bytes=200_000)
    async with GapReader(config) as reader:
        runs = await fill(reader, stored.chain.mark(0), stored.chain.mark().id)
    assert [event for run in runs for event in run.events] == stored.chain.events
    most = 200_000 + STORED_PAGE_ROWS * 50_000
    assert max(sum(len(e.payload) for e in run.events) for run in runs) <= most
    assert len(runs) >= 4


async def test_one_page_is_read_ahead(make_stored: MakeStored, reader: GapReader) -> None:
    stored = await make_stored([100])
    chain = stored.chain
    async with aclosing(reader.runs(chain.mark(0), chain.mark().id)) as runs:
        first = await anext(runs)
        # Its connection is released when the page ahead has been read.
        await until(lambda: reader._connection.session._release is not None)
        second_last = chain.ids[2 * len(first.events) - 1]
        await stored.delete_rows(*[row_id for row_id in chain.ids if row_id > second_last])
        assert (await anext(runs)).last_id == second_last
        with pytest.raises(RowsMissing):
            await anext(runs)


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("at", [0, 3, 9, 10, 17, 29])
async def test_deleted_row_is_named(make_stored: MakeStored, reader: GapReader, at: int) -> None:
    stored = await make_stored([9, 9, 9, 9])
    ids = stored.chain.ids
    await stored.delete_rows(ids[at])
    given, error = await fill_and_fail(reader, stored.chain.mark(0), ids[-1], RowsMissing)
    assert given == ids[: at // 9 * 9], "of the batch with the hole nothing proves a row"
    assert (error.after_id, error.until_id) == (ids[at - 1] if at else 0, ids[at])


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ("ids[2] = NULL", "ids [1:9] with 1 NULL; expected [1:9]"),
        ("pids[2] = NULL", "pids [1:9] with 1 NULL; expected [1:9]"),
        ("keys[2] = NULL", "keys [1:9] with 1 NULL; expected [1:9]"),
        ("event_times_ns[2] = NULL", "event_times_ns [1:9] with 1 NULL; expected [1:9]"),
        ("payloads[2] = NULL", "payloads [1:9] with 1 NULL; expected [1:9]"),
        ("keys = keys[:8], pids = pids[2:]", "pids [1:8], keys [1:8]; expected [1:9]"),
        ("payloads = payloads || payloads[1]", "payloads [1:10]; expected [1:9]"),
        ("keys = ('[0:8]=' || keys::text)::text[]", "keys [0:8]; expected [1:9]"),
        ("keys = NULL", "keys is NULL; expected [1:9]"),
        ("ids = NULL", "ids is NULL, "),
    ],
)
async def test_runs_hand_on_no_row_of_a_page_that_lacks_a_value_and_name_what_lacks(
    make_stored: MakeStored, reader: GapReader, admin: asyncpg.Connection, change: str, lacks: str
) -> None:
    stored = await make_stored([STORED_PAGE_ROWS] * 3)
    chain, ids = stored.chain, stored.chain.ids
    page = ids[STORED_PAGE_ROWS : 2 * STORED_PAGE_ROWS]
    await admin.execute(LET_LACK_VALUES)
    damage = f"UPDATE chain_page SET {change} WHERE last_id = $1"  # noqa: S608 - of this list
    await admin.execute(damage, page[-1])
    given, error = await fill_and_fail(reader, chain.mark(0), ids[-1], PageDamaged)
    assert given == ids[:STORED_PAGE_ROWS]
    assert (error.chain_id, error.first_id, error.last_id) == (7, page[0], page[-1])
    assert error.lacks.startswith(lacks)
    # Also of a range within the page, in which nothing lacks.
    if not change.startswith("ids"):
        given, error = await fill_and_fail(reader, chain.mark(page[3]), page[5], PageDamaged)
        assert (given, error.first_id, error.last_id) == ([], page[0], page[-1])


async def test_database_without_a_schema_is_reported(empty_database: str) -> None:
    with pytest.raises(SchemaError, match="chainctl schema apply"):
        await standing_with(empty_database)


async def test_schema_of_another_version_is_shown(gap_dsn: str, admin: asyncpg.Connection) -> None:
    await admin.execute("UPDATE schema_version SET version = 99")
    with pytest.raises(SchemaError, match="99"):
        await standing_with(gap_dsn)


async def connections(admin: asyncpg.Connection) -> list[int]:
    rows = await admin.fetch(
        "SELECT pid FROM pg_stat_activity WHERE usename = 'gap_reader' "
        "AND datname = current_database()"
    )
    return [pid for (pid,) in rows]


@pytest.mark.guarantee("G11")
async def test_backend_killed_between_pages_hands_on_a_prefix_and_the_next_fill_works(
    make_stored: MakeStored, reader: GapReader, admin: asyncpg.Connection
) -> None:
    stored = await make_stored([100])
    chain = stored.chain
    handed_on: list[int] = []

    async def fill_while_killed() -> None:
        async with aclosing(reader.runs(chain.mark(0), chain.mark().id)) as runs:
            async for run in runs:
                handed_on.extend(event.id for event in run.events)
                for pid in await connections(admin):
                    await admin.execute("SELECT pg_terminate_backend($1, 5000)", pid)

    # A read that is cut off is a retry; a backend that ended between two reads is replaced without
    # a word. Which one it is depends on when the page ahead was read.
    try:
        await fill_while_killed()
    except RetryError:
        assert handed_on == chain.ids[: len(handed_on)]
        assert 0 < len(handed_on) < len(chain.ids)
    else:
        assert handed_on == chain.ids
    assert ids_of(await fill(reader, chain.mark(0), chain.mark().id)) == chain.ids


async def test_close_with_a_fill_under_way_ends_in_time_and_lets_the_connection_go(
    make_stored: MakeStored, gap_dsn: str, admin: asyncpg.Connection
) -> None:
    stored = await make_stored([100])
    reader = GapReader(GapReaderConfig(database=gap_dsn, chain_id=7, page_rows=10))
    runs = reader.runs(stored.chain.mark(0), stored.chain.mark().id)
    await anext(runs)
    assert await connections(admin)
    await runs.aclose()
    await in_time(reader.close())

    async def none_is_left() -> bool:
        return not await connections(admin)

    await until(none_is_left)
