"""Rows that row security hides are not taken for missing: each part says so at its start."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest

from chain_kernel.clock import SystemClock
from chain_kernel.errors import SchemaError
from chain_kernel.sql import AUDITOR, GAP_READER, RECEIVER_WRITER, SEQUENCER_WRITER
from chain_verifier.verified_mark import read_extents
from chainctl.console.state_reader import StateReader
from chainctl.database import looked
from chainctl.settings import Settings
from chainctl.views import read_chains, read_receivers
from gapfill import GapReader, GapReaderConfig
from matcher_receiver import CheckpointConfig, PostgresCheckpointStore, ReceiverConfig
from matcher_receiver.stores.notified import NotifiedFrames, listened_to
from sequencer import SequencerConfig
from sequencer.stores.session import LeaderSession
from tests.builders.stored_chain import StoredChain

CHAIN = 7
SEEN_WHOLE = {
    "own policies": "SELECT",
    "a policy for all rows": """
        ALTER TABLE chain_lease ENABLE ROW LEVEL SECURITY;
        CREATE POLICY all_of_it ON chain_lease USING (true)""",
    "forced, and seen by its owner": """
        ALTER TABLE chain_page ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
        CREATE POLICY all_of_it ON chain_page USING (true)""",
    "a table that is not ours": """
        CREATE TABLE others (x int); ALTER TABLE others ENABLE ROW LEVEL SECURITY;
        GRANT SELECT ON others TO PUBLIC""",
}
HIDDEN = {
    "no policy": ("chain_page", "ALTER TABLE chain_page ENABLE ROW LEVEL SECURITY"),
    "some rows": (
        "chain_page",
        """ALTER TABLE chain_page ENABLE ROW LEVEL SECURITY;
        CREATE POLICY few ON chain_page USING (last_id > 1)""",
    ),
    "a restriction": (
        "chain_batch",
        "CREATE POLICY few ON chain_batch AS RESTRICTIVE USING (last_id > 1)",
    ),
    "forced on the owner, as whom functions run": (
        "chain_page",
        """ALTER TABLE chain_page ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
        CREATE POLICY logins ON chain_page
            TO sequencer_writer, gap_reader, receiver_writer, auditor USING (true)""",
    ),
    "ours is gone": ("chain_head", "DROP POLICY read_all ON chain_head"),
}


@pytest.fixture
async def admin(database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database)
    await (await StoredChain.create(connection, CHAIN)).commit(3)
    yield connection
    await connection.close()


Looks = dict[str, tuple[str, Callable[[], Awaitable[object]]]]
"""The role of each part's login, and how it first looks at the chain."""


@asynccontextmanager
async def looks_of(role_dsn: Callable[[str], str]) -> AsyncIterator[Looks]:
    """Have each part at hand, with its own login."""
    session = LeaderSession(
        SequencerConfig(chain_id=CHAIN, database=role_dsn(SEQUENCER_WRITER), kafka="localhost:1"),
        SystemClock(),
    )
    reader = GapReader(GapReaderConfig(database=role_dsn(GAP_READER), chain_id=CHAIN))
    config = CheckpointConfig(database=role_dsn(RECEIVER_WRITER), chain_id=CHAIN, name="m")
    store = PostgresCheckpointStore(config)
    received = ReceiverConfig(chain_id=CHAIN, name="m", gap_databases=(role_dsn(GAP_READER),))
    notified = NotifiedFrames(received, listened_to(received))
    settings = Settings(database=role_dsn(AUDITOR))
    console = StateReader(settings, None)
    try:
        yield {
            "leader": (SEQUENCER_WRITER, session.open),
            "fills": (GAP_READER, lambda: reader.standing(0)),
            "receiver without a broker": (GAP_READER, notified.start),
            "checkpoints": (RECEIVER_WRITER, store.load),
            "verifier": (
                AUDITOR,
                lambda: asyncio.to_thread(read_extents, role_dsn(AUDITOR), [CHAIN]),
            ),
            "status": (
                AUDITOR,
                lambda: looked(settings, CHAIN, lambda opened: read_chains(opened, CHAIN)),
            ),
            "lag": (
                AUDITOR,
                lambda: looked(settings, CHAIN, lambda opened: read_receivers(opened, CHAIN, "m")),
            ),
            "console": (AUDITOR, console.read),
        }
    finally:
        for each in (session, reader, notified, store, console):
            await each.close()


async def refusals(looks: Looks) -> dict[str, str]:
    """Look with each; return what those say that refuse to."""
    refused: dict[str, str] = {}
    for name, (_, look) in looks.items():
        try:
            await look()
        except SchemaError as error:
            refused[name] = str(error)
    return refused


@pytest.mark.parametrize("how", HIDDEN)
async def test_each_part_that_would_not_see_all_rows_refuses_to_start(
    admin: asyncpg.Connection, role_dsn: Callable[[str], str], how: str
) -> None:
    table, change = HIDDEN[how]
    await admin.execute(change)
    async with looks_of(role_dsn) as looks:
        reading = [
            name
            for name, (role, _) in looks.items()
            if await admin.fetchval(
                "SELECT has_any_column_privilege($1, $2, 'SELECT')", role, table
            )
        ]
        refused = await refusals(looks)
    assert [*refused] == reading
    assert len(refused) >= 2
    for name, text in refused.items():
        assert f"row security was 'hiding rows of {table}'" in text, name


@pytest.mark.parametrize("how", SEEN_WHOLE)
async def test_row_security_that_hides_nothing_of_ours_is_in_nobodys_way(
    admin: asyncpg.Connection, role_dsn: Callable[[str], str], how: str
) -> None:
    await admin.execute(SEEN_WHOLE[how])
    async with looks_of(role_dsn) as looks:
        assert await refusals(looks) == {}
