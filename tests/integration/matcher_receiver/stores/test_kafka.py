"""Frames from a real Kafka."""

import secrets
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from chain_kernel.errors import RetryError, TopicError
from matcher_receiver import KafkaFrameSource, KafkaSourceConfig
from tests.builders.topics import make_topics, send_records
from tests.deadlines import deadline
from tests.opened import administering


@pytest.fixture
async def any_topic(bootstrap: str) -> str:
    name = f"frames-{secrets.token_hex(4)}"
    await make_topics(bootstrap, name)
    return name


def source_of(bootstrap: str, topic: str, **settings: Any) -> KafkaFrameSource:
    config = KafkaSourceConfig(kafka=bootstrap, topic=topic, **settings)
    return KafkaFrameSource(config)


async def read(source: KafkaFrameSource, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with deadline():
        while len(found) < count:
            found += await source.records(1.0)
    return found


async def test_record_larger_than_a_fetch_arrives_whole(bootstrap: str) -> None:
    name = f"frames-{secrets.token_hex(4)}"
    await make_topics(bootstrap, name, configs={"max.message.bytes": "9000000"})
    large = secrets.token_bytes(3_000_000)
    async with source_of(bootstrap, name, fetch_bytes=65_536) as source:
        await send_records(bootstrap, name, b"small", large, b"last")
        assert await read(source, 3) == [b"small", large, b"last"]


async def test_deleted_records_lead_to_the_live_end(bootstrap: str, any_topic: str) -> None:
    async with source_of(bootstrap, any_topic, fetch_bytes=1_024) as source:
        # More than the reader takes ahead, so that its offset lies in what is deleted.
        await send_records(bootstrap, any_topic, *[b"x" * 1_000] * 50)
        assert await source.records(5.0)
        async with administering(bootstrap) as admin:
            await admin.delete_records({TopicPartition(any_topic, 0): RecordsToDelete(50)})
        async with deadline():
            while await source.records(1.0):
                pass
        await send_records(bootstrap, any_topic, b"after")
        assert (await read(source, 1))[-1] == b"after"


async def test_start_with_a_topic_that_is_missing_says_so_and_makes_none(bootstrap: str) -> None:
    name = f"missing-{secrets.token_hex(4)}"
    with pytest.raises(TopicError, match=name):
        await source_of(bootstrap, name).start()
    async with administering(bootstrap) as admin:
        assert name not in await admin.list_topics()


@pytest.mark.nightly
async def test_deleted_topic_is_no_broker_away(bootstrap: str, any_topic: str) -> None:
    async with source_of(bootstrap, any_topic) as source, deadline():
        async with administering(bootstrap) as admin:
            await admin.delete_topics([any_topic])
        said = ""
        while "is not there" not in said:
            try:
                await source.records(1.0)
            except RetryError as error:
                said = str(error)
        assert any_topic in said


@pytest.mark.parametrize(
    ("made", "words"),
    [({"partitions": 2}, "2 partitions"), ({"configs": {"cleanup.policy": "compact"}}, "compact")],
)
async def test_unfit_topic_is_refused(bootstrap: str, made: dict[str, Any], words: str) -> None:
    name = f"unfit-{secrets.token_hex(4)}"
    await make_topics(bootstrap, name, **made)
    with pytest.raises(TopicError, match=words):
        await source_of(bootstrap, name).start()
