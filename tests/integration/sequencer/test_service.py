"""A sequencer on the real PostgreSQL and the real Kafka."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.errors import (
    ChainMissing,
    ConnectError,
    DurabilityError,
    Fenced,
    SchemaError,
    TopicError,
)
from chain_kernel.frame import FrameHeader, decode_header
from chain_kernel.model import Event, IntakeMark, is_linked
from chain_kernel.seal import event_pages, genesis_seal, next_seal
from chain_kernel.sql import SCHEMA_VERSION
from sequencer import SequencerConfig, open_sequencer
from tests.builders.created_chain import Chain
from tests.builders.orders import make_orders
from tests.builders.topics import make_topics
from tests.deadlines import deadline

from .conftest import MakeChain

orders = partial(make_orders, prefix="client#")


def assert_frames_are_the_rows(
    frames: list[tuple[FrameHeader, list[Event]]], rows: list[Event]
) -> None:
    published = [event for _, events in frames for event in events]
    assert published == rows


async def test_idle_chain_says_that_everything_is_published(make_chain: MakeChain) -> None:
    chain = await make_chain()
    async with open_sequencer(chain.config) as sequencer, deadline():
        ack = await sequencer.submit("a", b"one")
        # No commit follows, which would store it. Another process has to see it: there is no event.
        while (await chain.head())["published_id"] != ack.id:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert sequencer.stats().head_published == ack.id


async def test_seal_of_a_commit_can_be_recomputed(make_chain: MakeChain) -> None:
    chain = await make_chain()
    async with open_sequencer(chain.config) as sequencer:
        acks = await sequencer.submit_many(orders(500))
    genesis, batch = await chain.fetch("SELECT * FROM chain_batch ORDER BY last_id")
    assert (batch["first_id"], batch["last_id"]) == (acks[0].id, acks[-1].id)
    assert (batch["prev_last_id"], batch["row_count"]) == (0, 500)
    database_id = await chain.admin.fetchval("SELECT database_id FROM schema_version")
    assert genesis["seal"] == genesis_seal(database_id, chain.chain_id)
    committed_at_us = await chain.admin.fetchval(
        "SELECT (extract(epoch FROM committed_at) * 1000000)::bigint FROM chain_batch "
        "WHERE last_id = $1",
        batch["last_id"],
    )
    assert batch["seal"] == next_seal(
        genesis["seal"],
        epoch=batch["epoch"],
        first_id=batch["first_id"],
        last_id=batch["last_id"],
        row_count=500,
        committed_at_us=committed_at_us,
        pages=event_pages(await chain.rows()),
    )
    head = await chain.head()
    assert head["last_seal"] == batch["seal"]
    assert head["published_id"] == head["last_id"] == batch["last_id"]


async def test_restart_skips_ids_and_goes_on_with_the_chain(make_chain: MakeChain) -> None:
    chain = await make_chain(takeover_skip_ids=5_000)
    async with open_sequencer(chain.config) as sequencer:
        await sequencer.submit_many(orders(10))
        before = sequencer.stats()
    async with open_sequencer(chain.config) as sequencer:
        ack = await sequencer.submit("later", b"x")
        after = sequencer.stats()
    assert ack.pid == before.head_persisted
    assert ack.id > before.head_persisted + 5_000
    assert after.epoch == before.epoch + 1
    rows = await chain.rows()
    assert is_linked(0, rows)
    assert_frames_are_the_rows(await chain.frames(), rows)


async def test_long_unpublished_tail_is_skipped_on_record(make_chain: MakeChain) -> None:
    chain = await make_chain(tail_rows_max=50)
    async with open_sequencer(chain.config) as sequencer:
        await sequencer.submit_many(orders(100))
    frames_before = len(await chain.frames())
    await chain.admin.execute("UPDATE chain_head SET published_id = 0")
    async with open_sequencer(chain.config):
        pass
    skip = await chain.admin.fetchrow("SELECT after_id, until_id FROM chain_skip")
    last_id = (await chain.rows())[-1].id
    assert tuple(skip) == (0, last_id)
    assert (await chain.head())["published_id"] == last_id
    assert len(await chain.frames()) == frames_before


async def test_standby_takes_over_at_once_when_the_leader_stops(make_chain: MakeChain) -> None:
    chain = await make_chain(lease_seconds=60, standby=True)
    async with open_sequencer(chain.config) as leader:
        await leader.submit("a", b"1")
        standby = open_sequencer(chain.config)
        waiting = asyncio.create_task(standby.__aenter__())
    await waiting
    await standby.submit("b", b"2")
    await standby.__aexit__(None, None, None)
    rows = await chain.rows()
    assert [row.key for row in rows] == ["a", "b"]
    assert is_linked(0, rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("nonce = substr(sha256(''), 1, 16)", "and the chain is no longer as this process left it"),
        ("epoch = epoch + 1, owner = 'pit-2'", "another process took it over: pit-2, in epoch 2"),
    ],
)
async def test_fenced_leader_cannot_commit(make_chain: MakeChain, change: str, words: str) -> None:
    chain = await make_chain()
    sequencer = await open_sequencer(chain.config).__aenter__()
    await sequencer.submit("a", b"1")
    await chain.admin.execute(f"UPDATE chain_head SET {change}")  # noqa: S608 - of this test
    with pytest.raises(Fenced, match=f"our epoch was 1, {words}"):
        await sequencer.submit("b", b"2")
    with pytest.raises(Fenced):
        await sequencer.submit("c", b"3")
    with pytest.raises(Fenced):
        await sequencer.__aexit__(None, None, None)
    assert [row.key for row in await chain.rows()] == ["a"]


async def test_backend_ended_costs_an_intake_no_answer(make_chain: MakeChain) -> None:
    chain = await make_chain()
    mark = IntakeMark(source="topic:t:0", position=7, digest=b"")
    async with open_sequencer(chain.config) as sequencer:
        await sequencer.submit_many(orders(2), intake=mark)
        await chain.admin.execute("SELECT pg_terminate_backend(backend_pid) FROM chain_head")
        assert await sequencer.intake(mark.source) == mark
        assert sequencer.stats().take_overs == 2
        await sequencer.submit("b", b"2")
    assert is_linked(0, await chain.rows())


async def test_idle_sequencer_publishes_heartbeats_of_its_head(make_chain: MakeChain) -> None:
    chain = await make_chain(heartbeat_seconds=0.01)
    async with open_sequencer(chain.config) as sequencer:
        ack = await sequencer.submit("a", b"1")
        before = sequencer.stats().heartbeats
        while sequencer.stats().heartbeats < before + 3:  # noqa: ASYNC110 - only the counter shows it
            await asyncio.sleep(0.005)
    headers = [decode_header(record) for record in await chain.records()]
    heartbeats = [header for header in headers if header.is_heartbeat]
    assert len(heartbeats) >= 3
    assert {header.last_id for header in heartbeats} <= {0, ack.id}
    assert heartbeats[-1].last_id == ack.id


async def other_version(chain: Chain) -> None:
    await chain.admin.execute("UPDATE schema_version SET version = 999")


async def unsafe(chain: Chain) -> None:
    name = await chain.admin.fetchval("SELECT current_database()")
    await chain.admin.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')


async def compacted(chain: Chain) -> None:
    configs = {"cleanup.policy": "compact"}
    await make_topics(str(chain.config.kafka), chain.topic, configs=configs)


async def nothing(chain: Chain) -> None:
    del chain


NO_TOPIC: dict[str, Any] = {"copies": 0}
UNFIT = [
    (nothing, {}, {"chain_id": 77}, ChainMissing, "chainctl chain create 77"),
    (other_version, {}, {}, SchemaError, f"was 999, expected {SCHEMA_VERSION}"),
    (unsafe, {}, {}, DurabilityError, "synchronous_commit was 'off'"),
    (nothing, NO_TOPIC, {}, TopicError, "a topic that exists"),
    (compacted, NO_TOPIC, {}, TopicError, "no compaction"),
    (nothing, {}, {"kafka": "127.0.0.1:1"}, ConnectError, "kafka"),
]


@pytest.mark.parametrize(("spoil", "made", "settings", "error", "words"), UNFIT)
async def test_start_on_what_is_unfit_is_refused(
    make_chain: MakeChain,
    spoil: Callable[[Chain], Awaitable[None]],
    made: dict[str, Any],
    settings: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    chain = await make_chain(**made)
    await spoil(chain)
    with pytest.raises(error, match=words):
        await open_sequencer(replace(chain.config, **settings)).__aenter__()


async def test_start_on_a_database_without_schema_is_refused(empty_database: str) -> None:
    config = SequencerConfig(chain_id=1, database=empty_database, kafka="127.0.0.1:1")
    with pytest.raises(SchemaError, match="chainctl schema apply"):
        await open_sequencer(config).__aenter__()


@pytest.mark.parametrize("is_gone", [True, False])
async def test_passfile_that_cannot_be_read_for_a_while_ends_no_leader(
    make_chain: MakeChain, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_gone: bool
) -> None:
    chain = await make_chain()
    known = DatabaseConfig.of(chain.config.database)
    file = tmp_path / "passfile"
    file.touch(mode=0o600)
    file.write_text(f"*:*:*:*:{known.password}\n")
    database = replace(known, password="", passfile=str(file))
    aside = tmp_path / "aside"
    async with open_sequencer(replace(chain.config, database=database)) as sequencer, deadline():
        await sequencer.submit("a", b"one")
        if is_gone:
            file.rename(aside)
        else:
            file.chmod(0o644)
        cut = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = "
        ours = "current_database() AND application_name LIKE 'orderchain %'"
        await chain.fetch(cut + ours)
        waiting = asyncio.create_task(sequencer.submit("b", b"two"))
        while "passfile was" not in caplog.text:  # noqa: ASYNC110 - only the log shows it
            await asyncio.sleep(0.01)
        if is_gone:
            aside.rename(file)
        else:
            file.chmod(0o600)
        assert (await waiting).id > 0
    assert [row.key for row in await chain.rows()] == ["a", "b"]
