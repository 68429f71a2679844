"""A topic of many that its login may read no longer: the intakes of other chains go on."""

import secrets
from typing import Any

from aiokafka import AIOKafkaProducer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.builders.joint_chains import joint_chains
from tests.integration.sequencer.conftest import MakeChain
from tests.log_lines import log_lines
from tests.secured_kafka import PREFIX, RECEIVER, SecuredKafka

CHAINS = 4
OTHERS = tuple(range(1, CHAINS))


def denied(topic: str) -> tuple[Any, ...]:
    """Return what forbids the receiver's login to read a topic, as the fields of a rule."""
    return (
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{RECEIVER}", "*",
        AclOperation.READ, AclPermissionType.DENY,
    )  # fmt: skip


def forbid(kafka: SecuredKafka, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.server.bootstrap})
    for done in admin.create_acls([AclBinding(*denied(topic))]).values():
        done.result()


def allow(kafka: SecuredKafka, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.server.bootstrap})
    for done in admin.delete_acls([AclBindingFilter(*denied(topic))]).values():
        done.result()


async def test_topic_that_is_forbidden_is_named_and_others_go_on(
    make_chain: MakeChain, secured_kafka: SecuredKafka
) -> None:
    chains = [await make_chain(number + 1) for number in range(CHAINS)]
    topics = [f"{PREFIX}{secrets.token_hex(6)}.{number}" for number in range(CHAINS)]
    for topic in topics:
        secured_kafka.make_topic(topic)
    producer = AIOKafkaProducer(bootstrap_servers=secured_kafka.server.bootstrap)
    refusal = f"a user '{RECEIVER}' that may read topic {topics[0]} (ACL)"
    async with producer:

        async def send(value: bytes) -> None:
            for topic in topics:
                await producer.send_and_wait(topic, value)

        await send(b"one")
        with log_lines() as log:
            async with joint_chains(chains, topics, secured_kafka.login(RECEIVER)) as joint:
                await joint.until_keys(["one"])
                forbid(secured_kafka, topics[0])
                await log.until(refusal)
                await send(b"two")
                await joint.until_keys(["one", "two"], *OTHERS)
                await joint.until_keys(["one"], 0)
                allow(secured_kafka, topics[0])
                await joint.until_keys(["one", "two"])
    again = log.naming("trying again")
    assert log.naming("trying again", topics[0], refusal) == again, "of others, or others' words"
