"""Two servers that both say that they are the primary: what a receiver reads, and what it says."""

from contextlib import aclosing
from copy import deepcopy
from pathlib import Path

import asyncpg
import pytest

from chain_kernel.errors import ForkFound, RetryError, SealMismatch
from chain_kernel.model import Mark, Run
from chain_kernel.ports import GapSource
from chain_kernel.sql import GAP_READER, schema_sql
from gapfill import GapReader, GapReaderConfig
from local_stack.postgres import SUPERUSER
from tests.builders.chains import ids_of
from tests.builders.standbys import pair_in
from tests.builders.stored_chain import StoredChain
from tests.deadlines import until

from .conftest import CHAIN_ID

pytestmark = pytest.mark.merge

DATABASE = "chains"
END = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1"
REPLAYED = "SELECT bool_and(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication"


async def fill(source: GapSource, after: Mark, until_id: int) -> list[Run]:
    async with aclosing(source.runs(after, until_id)) as runs:
        return [run async for run in runs]


async def test_receiver_takes_nothing_of_a_primary_that_was_replaced(server_folder: Path) -> None:
    with pair_in(server_folder) as pair:
        pair.primary.create_database(DATABASE)
        admin = await asyncpg.connect(pair.primary.dsn(SUPERUSER, DATABASE))
        async with admin.transaction():
            await admin.execute(schema_sql())
        old = await StoredChain.create(admin, CHAIN_ID)
        await old.commit(10)
        shared = old.chain.mark()
        await until(lambda: admin.fetchval(REPLAYED))
        pair.promote()
        new = StoredChain(
            await asyncpg.connect(pair.standby.dsn(SUPERUSER, DATABASE)), deepcopy(old.chain)
        )
        new.chain.add(3)  # so that ids and contents are others
        new.chain.batches.pop()
        await old.commit(5)  # never acknowledged to anybody
        await new.commit(4)

        both = GapReaderConfig(database=pair.dsn(GAP_READER, DATABASE), chain_id=CHAIN_ID)
        alone = GapReaderConfig(database=pair.primary.dsn(GAP_READER, DATABASE), chain_id=CHAIN_ID)
        async with GapReader(both) as reader, GapReader(alone) as misled:
            rows = await fill(reader, shared, new.chain.mark().id)
            assert ids_of(rows) == new.chain.ids[10:]
            # What a receiver has of the new primary, the old one cannot continue: it halts.
            with pytest.raises((SealMismatch, ForkFound)):
                await fill(misled, new.chain.mark(), old.chain.mark().id + 100)
            # One that never saw the new one reads what is there, and halts once it gets there.
            rows = await fill(misled, shared, old.chain.mark().id)
            assert ids_of(rows) == old.chain.ids[10:]
            with pytest.raises((SealMismatch, ForkFound)):
                await fill(reader, rows[-1].end, new.chain.mark().id + 100)
            # The new one is away: that is an outage, and no reason to halt, nor to read the old.
            new.admin.terminate()
            pair.standby.stop()
            with pytest.raises(RetryError):  # its session breaks
                await fill(reader, shared, old.chain.mark().id)
            with pytest.raises(RetryError, match="a primary that was replaced"):
                await fill(reader, shared, old.chain.mark().id)
        admin.terminate()
