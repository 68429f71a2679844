"""Reading what is missing, from a real PostgreSQL, with the role that may do nothing else."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from chain_kernel.errors import (
    ConnectError,
    ForkFound,
    PageDamaged,
    RetryError,
    RowsArchived,
    RowsMissing,
    SchemaError,
    SettingError,
)
from gapfill import GapReader, GapReaderConfig
from local_stack.process import free_port
from tests.builders.chains import ids_of
from tests.builders.stored_chain import STORED_PAGE_ROWS
from tests.deadlines import deadline, in_time
from tests.silent_server import silent_server
from tests.stored_pages import LET_LACK_VALUES, LET_TAMPER

from .conftest import PAGE_ROWS

if TYPE_CHECKING:
    from chain_kernel.model import Mark, Run

    from .conftest import MakeStored

PASSWORD = "a-password-nobody-may-see"


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


def with_parts(dsn: str, **parts: str) -> str:
    return urlunsplit(urlsplit(dsn)._replace(**parts))


async def standing_with(dsn: str, chain_id: int = 7) -> Any:
    async with GapReader(GapReaderConfig(database=dsn, chain_id=chain_id)) as reader:
        return await reader.standing(0)


# -- standing -------------------------------------------------------------------------------------


async def test_standing_behind_the_archives_boundary_says_so(
    make_stored: MakeStored, reader: GapReader
) -> None:
    stored = await make_stored([5, 5, 5])
    boundary = stored.chain.batches[1]
    await stored.archive_up_to(boundary)
    with pytest.raises(RowsArchived) as caught:
        await reader.standing(stored.chain.ids[2])
    assert caught.value.until_id == boundary.last_id
    at_boundary = await reader.standing(boundary.last_id)
    assert at_boundary.mark == stored.chain.mark(boundary.last_id)
    assert (await reader.standing(0)).mark == stored.chain.mark(0)


# -- runs -----------------------------------------------------------------------------------------


async def test_runs_with_many_pages_give_every_row_byte_for_byte(
    make_stored: MakeStored, reader: GapReader
) -> None:
    stored = await make_stored([5, 37, 1, 20])
    runs = await fill(reader, stored.chain.mark(0), stored.chain.mark().id)
    assert [event for run in runs for event in run.events] == stored.chain.events
    assert len(runs) >= 4
    assert max(len(run.events) for run in runs) < PAGE_ROWS + STORED_PAGE_ROWS
    assert [run.end for run in runs] == [stored.chain.mark(run.last_id) for run in runs]


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


async def test_runs_with_a_short_gap_whose_row_is_missing_name_it(
    make_stored: MakeStored, reader: GapReader
) -> None:
    stored = await make_stored([8, 8])
    ids = stored.chain.ids
    await stored.delete_rows(ids[7])
    given, error = await fill_and_fail(reader, stored.chain.mark(ids[5]), ids[8], RowsMissing)
    assert given == []
    assert (error.after_id, error.until_id) == (ids[6], ids[7])


async def test_runs_with_an_empty_range_give_nothing(
    make_stored: MakeStored, reader: GapReader
) -> None:
    stored = await make_stored([3])
    assert await fill(reader, stored.chain.mark(), stored.chain.mark().id) == []


async def test_runs_with_large_payloads_end_their_pages_by_bytes(
    make_stored: MakeStored, gap_dsn: str
) -> None:
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


async def test_runs_with_a_stored_page_larger_than_a_page_still_give_it(
    make_stored: MakeStored, gap_dsn: str
) -> None:
    stored = await make_stored([])
    await stored.commit(3 * STORED_PAGE_ROWS, payload_bytes=5_000)
    config = GapReaderConfig(database=gap_dsn, chain_id=7, page_bytes=1)
    async with GapReader(config) as reader:
        runs = await fill(reader, stored.chain.mark(0), stored.chain.mark().id)
    assert ids_of(runs) == stored.chain.ids
    assert len(runs) == 3


async def test_runs_read_at_most_one_page_ahead_of_the_caller(
    make_stored: MakeStored, reader: GapReader
) -> None:
    stored = await make_stored([100])
    chain = stored.chain
    async with aclosing(reader.runs(chain.mark(0), chain.mark().id)) as runs:
        first = await anext(runs)
        # Its connection is released when the page ahead has been read.
        while reader._connection._release is None:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)
        second_last = chain.ids[2 * len(first.events) - 1]
        await stored.delete_rows(*[row_id for row_id in chain.ids if row_id > second_last])
        assert (await anext(runs)).last_id == second_last
        with pytest.raises(RowsMissing):
            await anext(runs)


# -- rows that are not there ----------------------------------------------------------------------


@pytest.mark.invariant("S11")
@pytest.mark.parametrize("at", [0, 3, 9, 10, 17, 29])
async def test_runs_with_a_deleted_row_name_exactly_its_range(
    make_stored: MakeStored, reader: GapReader, at: int
) -> None:
    stored = await make_stored([9, 9, 9, 9])
    ids = stored.chain.ids
    await stored.delete_rows(ids[at])
    given, error = await fill_and_fail(reader, stored.chain.mark(0), ids[-1], RowsMissing)
    assert given == ids[: at // 9 * 9], "of the batch with the hole nothing proves a row"
    assert (error.after_id, error.until_id) == (ids[at - 1] if at else 0, ids[at])


async def test_runs_with_several_rows_deleted_name_the_first_hole(
    make_stored: MakeStored, reader: GapReader
) -> None:
    stored = await make_stored([30])
    ids = stored.chain.ids
    await stored.delete_rows(*ids[4:8], ids[20])
    given, error = await fill_and_fail(reader, stored.chain.mark(0), ids[-1], RowsMissing)
    assert given == []
    assert (error.after_id, error.until_id) == (ids[3], ids[7])


async def test_runs_from_behind_the_archives_boundary_say_so(
    make_stored: MakeStored, reader: GapReader
) -> None:
    stored = await make_stored([5, 5, 5])
    boundary = stored.chain.batches[1]
    await stored.archive_up_to(boundary)
    head = stored.chain.mark().id
    given, error = await fill_and_fail(reader, stored.chain.mark(0), head, RowsArchived)
    assert given == []
    assert (error.after_id, error.until_id) == (0, boundary.last_id)
    runs = await fill(reader, stored.chain.mark(boundary.last_id), head)
    assert ids_of(runs) == stored.chain.ids[10:]


async def test_runs_with_two_rows_of_one_parent_are_a_fork(
    make_stored: MakeStored, reader: GapReader, admin: asyncpg.Connection
) -> None:
    stored = await make_stored([6])
    ids = stored.chain.ids
    await admin.execute(LET_TAMPER)
    await admin.execute(
        "UPDATE chain_event SET pid = $2 WHERE chain_id = 7 AND id = $1", ids[4], ids[2]
    )
    given, error = await fill_and_fail(reader, stored.chain.mark(0), ids[-1], ForkFound)
    assert given == []
    assert (error.pid, error.delivered_id, error.found_id) == (ids[2], ids[3], ids[4])


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


async def test_runs_up_to_an_id_that_no_row_has_name_what_lacks(
    make_stored: MakeStored, reader: GapReader
) -> None:
    stored = await make_stored([STORED_PAGE_ROWS])
    ids = stored.chain.ids
    at = next(n for n in range(1, len(ids)) if ids[n] > ids[n - 1] + 1)
    given, error = await fill_and_fail(
        reader, stored.chain.mark(ids[at - 1]), ids[at] - 1, RowsMissing
    )
    assert (given, error.after_id, error.until_id) == ([], ids[at - 1], ids[at] - 1)


# -- what is refused ------------------------------------------------------------------------------


async def test_database_without_a_schema_is_reported(empty_database: str) -> None:
    with pytest.raises(SchemaError, match="chainctl schema apply"):
        await standing_with(empty_database)


async def test_schema_of_another_version_is_shown(gap_dsn: str, admin: asyncpg.Connection) -> None:
    await admin.execute("UPDATE schema_version SET version = 99")
    with pytest.raises(SchemaError, match="99"):
        await standing_with(gap_dsn)


async def test_wrong_password_is_reported_and_never_shown(gap_dsn: str) -> None:
    parts = urlsplit(gap_dsn)
    dsn = with_parts(gap_dsn, netloc=f"gap_reader:{PASSWORD}@{parts.hostname}:{parts.port}")
    with pytest.raises(ConnectError, match="password") as caught:
        await standing_with(dsn)
    assert PASSWORD not in str(caught.value)
    assert PASSWORD not in repr(GapReaderConfig(database=dsn, chain_id=7))


async def test_closed_port_is_reported(gap_dsn: str) -> None:
    parts = urlsplit(gap_dsn)
    port = free_port()
    dsn = with_parts(gap_dsn, netloc=f"gap_reader:{PASSWORD}@{parts.hostname}:{port}")
    with pytest.raises(ConnectError, match=str(port)) as caught:
        await standing_with(dsn)
    assert PASSWORD not in str(caught.value)


async def test_silent_server_ends_by_the_deadline() -> None:
    async with silent_server() as port:
        config = GapReaderConfig(
            database=f"postgresql://x@127.0.0.1:{port}/x", chain_id=7, connect_seconds=0.3
        )
        async with GapReader(config) as reader:
            with pytest.raises(ConnectError, match="silent"):
                await in_time(reader.standing(0))


async def test_dsn_that_is_none_is_reported() -> None:
    with pytest.raises(SettingError):
        await standing_with("postgresql://[half")


# -- connections ----------------------------------------------------------------------------------


async def connections(admin: asyncpg.Connection) -> list[int]:
    rows = await admin.fetch(
        "SELECT pid FROM pg_stat_activity WHERE usename = 'gap_reader' "
        "AND datname = current_database()"
    )
    return [pid for (pid,) in rows]


async def test_connection_is_let_go_after_the_last_read(
    make_stored: MakeStored, gap_dsn: str, admin: asyncpg.Connection
) -> None:
    stored = await make_stored([3])
    config = GapReaderConfig(database=gap_dsn, chain_id=7, linger_seconds=0.0)
    async with GapReader(config) as reader:
        await reader.standing(0)
        async with deadline():
            while await connections(admin):  # noqa: ASYNC110 - another process's doing
                await asyncio.sleep(0.01)
        # The next read makes a new one.
        assert (await reader.standing(0)).head.last_id == stored.chain.mark().id


@pytest.mark.invariant("S11")
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


async def test_statement_that_hangs_ends_by_the_deadline(
    make_stored: MakeStored, gap_dsn: str, admin: asyncpg.Connection
) -> None:
    await make_stored([3])
    config = GapReaderConfig(database=gap_dsn, chain_id=7, statement_seconds=0.3)
    async with GapReader(config) as reader, admin.transaction():
        await admin.execute("LOCK TABLE chain_head IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(RetryError, match="no answer"):
            await in_time(reader.standing(0))


async def test_role_without_a_free_connection_is_waited_for(
    make_stored: MakeStored, gap_dsn: str, admin: asyncpg.Connection
) -> None:
    await make_stored([3])
    limit = await admin.fetchval("SELECT rolconnlimit FROM pg_roles WHERE rolname = 'gap_reader'")
    taken = [await asyncpg.connect(gap_dsn) for _ in range(limit)]
    impatient = GapReaderConfig(database=gap_dsn, chain_id=7, busy_seconds=0.2)
    patient = GapReaderConfig(database=gap_dsn, chain_id=7, busy_seconds=20.0)
    async with GapReader(impatient) as reader, GapReader(patient) as waiting:
        with pytest.raises(RetryError, match="not ready"):
            await reader.standing(0)
        read = asyncio.ensure_future(waiting.standing(0))
        await asyncio.sleep(0)
        await taken.pop().close()
        assert (await in_time(read)).is_primary
    for connection in taken:
        await connection.close()


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
    async with deadline():
        while await connections(admin):  # noqa: ASYNC110 - another process's doing
            await asyncio.sleep(0.01)
