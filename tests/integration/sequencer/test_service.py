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
from chain_kernel.frame import decode_header
from chain_kernel.model import IntakeMark, is_linked
from chain_kernel.sql import SCHEMA_VERSION
from sequencer import SequencerConfig, open_sequencer
from tests.builders.created_chain import Chain
from tests.builders.orders import make_orders
from tests.builders.topics import make_topics
from tests.deadlines import deadline, until

from .conftest import MakeChain

orders = partial(make_orders, prefix="client#")


async def test_idle_chain_says_that_everything_is_published(make_chain: MakeChain) -> None:
    chain = await make_chain()
    async with open_sequencer(chain.config) as sequencer, deadline():
        ack = await sequencer.submit("a", b"one")
        # No commit follows, which would store it. Another process has to see it: there is no event.
        published = "SELECT published_id = $1 FROM chain_head"
        await until(lambda: chain.value(published, ack.id))
        assert sequencer.stats().head_published == ack.id


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
        await until(lambda: sequencer.stats().heartbeats >= before + 3)
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
        await until(lambda: "passfile was" in caplog.text)
        if is_gone:
            aside.rename(file)
        else:
            file.chmod(0o600)
        assert (await waiting).id > 0
    assert [row.key for row in await chain.rows()] == ["a", "b"]
