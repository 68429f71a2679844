"""What a DBA prepares, as functions, and as a test of an embedder asks the plugin for it."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from chain_kernel.errors import SettingError, TopicError
from chainctl.admin import apply_schema, create_chain, create_topic
from outbox import Destination, save_destinations
from tests.builders.topics import make_topics

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


@pytest.fixture
async def connection(orderchain_environment: dict[str, str]) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(orderchain_environment["CHAINCTL_DATABASE"])
    yield opened
    await opened.close()


@pytest.mark.orderchain(chains=[7, 8], parts=["outbox", "inbox"])
async def test_environment_has_the_chains_and_parts_that_the_marker_names(
    connection: asyncpg.Connection, orderchain_environment: dict[str, str]
) -> None:
    kafka = orderchain_environment["CHAINCTL_KAFKA"]
    found = await connection.fetch("SELECT chain_id, topic FROM chain_head ORDER BY chain_id")
    assert [row["chain_id"] for row in found] == [7, 8]
    again = await create_chain(connection, kafka, 7)
    assert (again.chain_created, again.topic_created, again.topic) == (False, False, found[0][1])
    assert await apply_schema(connection, ("chain", "outbox", "inbox", "callback")) == ["callback"]
    await save_destinations(connection, [Destination(name="a", topic="a", consumers=("a",))])
    for refused, text in (
        (create_chain(connection, kafka, 7, topic="other"), "topic of chain 7 was 'other'"),
        (create_chain(connection, kafka, 7, partition_ids=1), "partition_ids of chain 7 was 1"),
        (create_chain(connection, kafka, 9, topic=found[0][1]), "this one is chain 7's"),
        (create_chain(connection, kafka, 0), "chain_id was 0"),
        (create_chain(connection, kafka, 9, topic="a b"), "topic was 'a b'"),
        (apply_schema(connection, ["inbx"]), "parts was 'inbx', expected one of chain, outbox"),
    ):
        with pytest.raises(SettingError, match=text):
            await refused


async def test_topic_of_an_intake_is_made_once_and_checked_always(
    orderchain_environment: dict[str, str], orderchain_fresh_name: str
) -> None:
    kafka, name = orderchain_environment["CHAINCTL_KAFKA"], orderchain_fresh_name
    assert await create_topic(kafka, name, partitions=3)
    assert not await create_topic(kafka, name)
    await make_topics(kafka, f"{name}.compacted", configs={"cleanup.policy": "compact"})
    for refused, kind, text in (
        (create_topic(kafka, f"{name}.compacted"), TopicError, "compact"),
        (
            create_topic(kafka, f"{name}.2", settings={"cleanup.policy": "compact"}),
            TopicError,
            "delete",
        ),
        (create_topic(kafka, f"{name}.2", settings={"no.such": "1"}), TopicError, "no.such"),
        (create_topic(kafka, "a b"), SettingError, "topic was 'a b'"),
    ):
        with pytest.raises(kind, match=text):
            await refused
    assert await create_topic(kafka, f"{name}.2")  # no refusal has made it
