"""Filling from a real streaming standby: what it lacks is not yet there, never a hole."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import asyncpg
import pytest

from chain_kernel.errors import ConnectError, NotYetReadable
from chain_kernel.model import Mark, Run
from chain_kernel.ports import GapSource
from chain_kernel.sql import GAP_READER
from gapfill import GapReader, GapReaderConfig, PreferenceConfig, PreferredSources
from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER
from local_stack.process import free_port
from tests.builders.chains import ids_of
from tests.builders.standbys import standby_of
from tests.deadlines import deadline

from .conftest import MakeStored


@pytest.fixture
async def standby(
    postgres_server: PostgresServer, database_name: str, server_folder: Path
) -> AsyncIterator[PostgresServer]:
    server = await asyncio.to_thread(standby_of, postgres_server, server_folder / "standby")
    with server:
        yield server


async def test_standby_that_lags_says_not_yet_and_then_gives_the_rows(
    make_stored: MakeStored, standby: PostgresServer, database_name: str
) -> None:
    stored = await make_stored([5, 5])
    look = await asyncpg.connect(standby.dsn(SUPERUSER, database_name))
    config = GapReaderConfig(database=standby.dsn(GAP_READER, database_name), chain_id=7)
    async with GapReader(config) as reader:
        await replayed(look, stored.chain.mark().id)
        await look.execute("SELECT pg_wal_replay_pause()")
        before = stored.chain.mark()
        await stored.commit(5)

        standing = await reader.standing(before.id)
        assert not standing.is_primary
        assert standing.mark == before
        with pytest.raises(NotYetReadable):
            await fill(reader, before, stored.chain.mark().id)
        with pytest.raises(NotYetReadable):
            await fill(reader, stored.chain.mark(), stored.chain.mark().id + 9)

        await look.execute("SELECT pg_wal_replay_resume()")
        await replayed(look, stored.chain.mark().id)
        assert ids_of(await fill(reader, before, stored.chain.mark().id)) == stored.chain.ids[10:]
        with pytest.raises(NotYetReadable):
            await anext(reader.runs(before, stored.chain.mark().id, from_primary=True))
    await look.close()


async def test_standby_that_is_paused_is_waited_for_and_then_the_primary_fills(
    make_stored: MakeStored, standby: PostgresServer, database_name: str, gap_dsn: str
) -> None:
    stored = await make_stored([5, 5])
    look = await asyncpg.connect(standby.dsn(SUPERUSER, database_name))
    await replayed(look, stored.chain.mark().id)
    await look.execute("SELECT pg_wal_replay_pause()")
    before = stored.chain.mark(stored.chain.ids[3])
    await stored.commit(5)

    sources = PreferredSources.of_databases(
        GapReaderConfig(database=gap_dsn, chain_id=7, page_rows=3),
        [standby.dsn(GAP_READER, database_name)],
        PreferenceConfig(standby_seconds=0.5),
    )
    async with sources:
        head = (await sources.standing(before.id)).head
        assert head.last_id == stored.chain.mark().id  # the primary's word
        runs = await fill(sources, before, head.last_id)
        assert ids_of(runs) == [row_id for row_id in stored.chain.ids if row_id > before.id]
        # What the standby had came from it, the rest from the primary, with no hole and no repeat.
        assert [run.source for run in runs][:: len(runs) - 1] == ["standby", "primary"]

        await look.execute("SELECT pg_wal_replay_resume()")
        await replayed(look, stored.chain.mark().id)
        assert {run.source for run in await fill(sources, before, head.last_id)} == {"standby"}

        await asyncio.to_thread(standby.stop)
        assert {run.source for run in await fill(sources, before, head.last_id)} == {"primary"}
    look.terminate()


async def test_standby_promoted_between_two_tries_of_a_fill_gives_the_rows(
    make_stored: MakeStored, standby: PostgresServer, database_name: str
) -> None:
    stored = await make_stored([5, 5])
    look = await asyncpg.connect(standby.dsn(SUPERUSER, database_name))
    await replayed(look, stored.chain.mark().id)
    await look.execute("SELECT pg_promote()")
    await look.close()
    gone = f"postgresql://{GAP_READER}@127.0.0.1:{free_port()}/{database_name}"
    sources = PreferredSources.of_databases(
        GapReaderConfig(database=gone, chain_id=7), [standby.dsn(GAP_READER, database_name)]
    )
    async with sources:
        after, head_id = stored.chain.mark(0), stored.chain.mark().id
        with pytest.raises(ConnectError):
            await fill(sources, after, head_id)
        assert ids_of(await fill(sources, after, head_id)) == stored.chain.ids


async def fill(reader: GapSource, after: Mark, until_id: int) -> list[Run]:
    async with aclosing(reader.runs(after, until_id)) as runs:
        return [run async for run in runs]


async def replayed(look: asyncpg.Connection, last_id: int) -> None:
    found = 0
    async with deadline():
        while found < last_id:
            found = await look.fetchval("SELECT last_id FROM chain_head WHERE chain_id = 7") or 0
