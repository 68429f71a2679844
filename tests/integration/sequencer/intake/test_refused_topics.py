"""One look at the topics of many chains: one that is missing ends the look at no other."""

import secrets
from typing import Any

import pytest

from chain_kernel.clients.topics import describe_topics
from chain_kernel.errors import TopicError
from local_stack import KafkaServer
from sequencer import TopicIntakeConfig, refused_topics
from tests.builders.topics import make_topics
from tests.deadlines import deadline


@pytest.mark.parametrize("is_made", [True, False])
async def test_missing_topic_alone_is_asked_for_again(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    kafka, asked = kafka_server.bootstrap, list[set[str]]()
    there, late = (f"{name}-{secrets.token_hex(4)}" for name in ("there", "late"))
    await make_topics(kafka, there)

    async def described(admin: Any, config: Any, names: Any) -> Any:
        asked.append(set(names))
        if is_made and len(asked) == 3:
            await make_topics(kafka, late)
        return await describe_topics(admin, config, names)

    monkeypatch.setattr("sequencer.intake.reader.describe_topics", described)
    # Less time to connect than topics are asked for again.
    configs = [
        TopicIntakeConfig(kafka=kafka, topic=name, connect_seconds=4.0) for name in (there, late)
    ]
    async with deadline():
        refused = await refused_topics(configs)
    assert [(name, type(error)) for name, error in refused.items()] == (
        [] if is_made else [(late, TopicError)]
    )
    assert asked[0] == {there, late}
    assert len(asked) >= 3
    assert all(names == {late} for names in asked[1:])
