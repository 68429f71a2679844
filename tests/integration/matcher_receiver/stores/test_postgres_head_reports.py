"""Reports of receivers that keep their place elsewhere, in a real database."""

from collections.abc import Callable

import asyncpg
import pytest

from chain_kernel.errors import CheckpointLost, SettingError
from chain_kernel.model import Gap
from chain_kernel.sql import RECEIVER_WRITER
from matcher_receiver import CheckpointConfig, PostgresCheckpointStore, PostgresHeadReports
from tests.builders.stored_chain import StoredChain
from tests.integration.matcher_receiver.conftest import RoleDsn


@pytest.fixture
def config(role_dsn: RoleDsn, chain_id: int) -> Callable[[str], CheckpointConfig]:
    return lambda name: CheckpointConfig(
        database=role_dsn(RECEIVER_WRITER), chain_id=chain_id, name=name
    )


async def test_reported_head_stands_beside_the_checkpoints_and_may_fall(
    stored: StoredChain, admin: asyncpg.Connection, config: Callable[[str], CheckpointConfig]
) -> None:
    await stored.commit(4)
    last = stored.chain.mark()
    for place in (last, stored.chain.mark(0)):  # a journal that was removed begins again
        async with PostgresHeadReports(config("journal")) as reports:
            await reports.load()
            await reports.save(0, place)
        row = await admin.fetchrow("SELECT * FROM receiver_checkpoint")
        assert (row["receiver"], row["head_delivered"]) == ("journal", place.id)
        assert (row["is_report"], row["seal"]) == (True, place.seal)
        assert row["database_id"] is not None


async def test_report_and_checkpoint_of_one_name_never_take_each_others_row(
    stored: StoredChain, admin: asyncpg.Connection, config: Callable[[str], CheckpointConfig]
) -> None:
    """A receiver that started from the other one's row would skip what is not in its own state."""
    await stored.commit(4)
    last = stored.chain.mark()
    async with PostgresHeadReports(config("a")) as reports:
        await reports.save(0, last)
    async with PostgresCheckpointStore(config("a")) as store:
        with pytest.raises(SettingError, match="receiver's name was 'a'"):
            await store.load()
        with pytest.raises(CheckpointLost):
            await store.save(last.id, last)
    async with PostgresCheckpointStore(config("b")) as store:
        await store.save(0, stored.chain.mark(0))
    async with PostgresHeadReports(config("b")) as reports:
        with pytest.raises(SettingError, match="receiver's name was 'b'"):
            await reports.load()
        await reports.save(0, last)
    rows = await admin.fetch("SELECT receiver, head_delivered FROM receiver_checkpoint")
    assert dict(map(tuple, rows)) == {"a": last.id, "b": 0}


async def test_receiver_that_reports_gaps_alone_leaves_no_head(
    stored: StoredChain, admin: asyncpg.Connection, config: Callable[[str], CheckpointConfig]
) -> None:
    await stored.commit(4)
    async with PostgresHeadReports(config("once"), reports_head=False) as reports:
        await reports.load()
        await reports.save(0, stored.chain.mark())
        reports.record_gap(
            Gap(chain_id=1, after_id=1, until_id=2, cause="frame", source="primary", rows=1,
                found_at_ns=1, duration_ns=1)
        )  # fmt: skip
    assert await admin.fetchval("SELECT count(*) FROM receiver_checkpoint") == 0
    assert await admin.fetchval("SELECT receiver FROM receiver_gap") == "once"
