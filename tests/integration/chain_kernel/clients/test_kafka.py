"""Each client works on each listener with the right config; a wrong one is named in one line."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from chain_kernel.clients.kafka import (
    TopicPartition,
    close_client,
    make_admin,
    make_consumer,
    make_producer,
    start_client,
)
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.kafka_errors import DRIVER_ERRORS, broker_refusal, connecting
from chain_kernel.clients.topics import describe_topic, describe_topics
from chain_kernel.errors import ConnectError
from local_stack.process import free_port
from tests.certificates import Authority
from tests.deadlines import LONG_SECONDS, deadline
from tests.secured_kafka import PASSWORDS, RECEIVER, SEQUENCER, TOPIC, SecuredKafka, unsigned_token
from tests.silent_server import silent_server
from tests.sockets import no_socket_left


@asynccontextmanager
async def started(
    config: KafkaConfig, client: Any, seconds: float = LONG_SECONDS
) -> AsyncIterator[Any]:
    """Start a client as the engine does, and leave none of its connections open."""
    try:
        async with connecting(config, seconds):
            await start_client(client)
        yield client
    finally:
        await close_client(client, 5.0)


async def refused(config: KafkaConfig, seconds: float = LONG_SECONDS) -> str:
    """Return what is said of a config by which no client connects."""
    with pytest.raises(ConnectError) as found:
        async with no_socket_left(), started(config, make_admin(config, "test"), seconds):
            pass
    text = str(found.value)
    assert "\n" not in text
    assert not any(password in text for password in PASSWORDS.values())
    assert found.value.field == "kafka"
    return text


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["login", "mutual"])
async def test_right_config_works_for_every_client(secured_kafka: SecuredKafka, way: str) -> None:
    config: KafkaConfig = getattr(secured_kafka, way)(SEQUENCER)
    at, value = TopicPartition(TOPIC, 0), secrets.token_bytes(8)
    async with started(config, make_admin(config, "topics")) as admin:
        topic = await describe_topic(admin, config, TOPIC)
    assert (topic.partitions, topic.replicas) == (1, 1)
    assert topic.settings["cleanup.policy"] == "delete"
    async with started(config, make_producer(config, "publisher")) as producer:
        sent = await producer.send_and_wait(TOPIC, value, partition=0)
    async with started(config, make_consumer(config, "reader")) as consumer:
        consumer.assign([at])
        consumer.seek(at, sent.offset)
        record = await consumer.getone()
    assert record.value == value


async def test_password_file_is_read_each_time(secured_kafka: SecuredKafka, tmp_path: Any) -> None:
    file = tmp_path / "password"
    file.write_text("not yet\n")
    config = secured_kafka.login(SEQUENCER, sasl_password="", sasl_password_file=str(file))
    assert "wrong user or password" in await refused(config)
    file.write_text(PASSWORDS[SEQUENCER] + "\n")
    async with started(config, make_admin(config, "topics")):
        pass


async def test_token_is_drawn_for_each_connection(secured_kafka: SecuredKafka) -> None:
    seconds = [600]
    drawn = []

    async def draw() -> str:
        drawn.append(unsigned_token(RECEIVER, seconds[0]))
        return drawn[-1]

    config = secured_kafka.by_tokens(draw)
    async with started(config, make_admin(config, "topics")) as admin:
        assert (await describe_topic(admin, config, TOPIC)).is_there
    assert len(drawn) >= 2
    seconds[0] = -30
    assert "wrong token" in await refused(config)

    for error, said in (
        (KeyError("its service is away"), "'its service is away'"),
        (asyncio.CancelledError(), "it raised CancelledError, though its task was not cancelled"),
    ):
        fail = AsyncMock(side_effect=error)
        without = msgspec.structs.replace(config, sasl_token=fail)
        assert f"sasl_token: {said}" in await refused(without)


def wrongs(secured: SecuredKafka, folder: Path) -> dict[str, tuple[KafkaConfig, str]]:
    """What can be wrong with a config, and the words that lead to it."""
    other = Authority(folder, "other")
    files = other.client(SEQUENCER)
    clear = {"bootstrap_servers": secured.server.bootstrap, "ssl_cafile": ""}
    closed = f"127.0.0.1:{free_port()}"
    return {
        "TLS is asked for": (KafkaConfig.of(secured.at("LOGIN")), "does it ask for TLS"),
        "TLS to a port without": (
            secured.tls("PLAINTEXT", bootstrap_servers=secured.at("PLAINTEXT")), "speaks SSL"
        ),
        "a login is asked for": (KafkaConfig.of(secured.at("CLEAR")), "does it ask for TLS"),
        "a login to a port without": (
            secured.login(SEQUENCER, security_protocol="SASL_PLAINTEXT", **clear),
            "speaks SASL_PLAINTEXT",
        ),
        "another authority": (
            secured.login(SEQUENCER, ssl_cafile=str(other.path)), "unable to get local issuer"
        ),
        "another host": (secured.tls("OTHER"), "not valid for 'localhost'"),
        "expired": (secured.tls("EXPIRED"), "certificate has expired"),
        "no client certificate": (secured.tls("MUTUAL"), "bad certificate"),
        "another client certificate": (secured.mutual(SEQUENCER, files), "speaks SSL"),
        "another password": (
            secured.login(SEQUENCER, sasl_password="wrong"), "wrong user or password"
        ),
        "another user": (
            secured.login(SEQUENCER, sasl_username="nobody"), "wrong user or password"
        ),
        "another mechanism": (secured.login(SEQUENCER, sasl_mechanism="PLAIN"), "SaslMechanism"),
        "closed": (KafkaConfig.of(closed), "Connect call failed"),
        "no such host": (KafkaConfig.of("no-such-host.invalid:9092"), "not known"),
        # The address is right, and the broker names another one, which its certificate lacks.
        "another host after the first answer": (
            secured.login(SEQUENCER, bootstrap_servers=secured.at("LOGIN", "127.0.0.1")),
            "not valid for '127.0.0.1'",
        ),
    }  # fmt: skip


async def test_wrong_config_is_named(secured_kafka: SecuredKafka, tmp_path: Path) -> None:
    for what, (config, words) in wrongs(secured_kafka, tmp_path).items():
        said = await refused(config)
        assert words in said, what
        assert config.bootstrap_servers in said, what
        assert "\n" not in said, what


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
async def test_silent_broker_is_named(protocol: str) -> None:
    async with silent_server() as port:
        config = KafkaConfig(bootstrap_servers=f"127.0.0.1:{port}", security_protocol=protocol)
        assert "it is silent" in await refused(config, seconds=1.0)


async def test_receivers_login_reads_and_cannot_write(secured_kafka: SecuredKafka) -> None:
    config = secured_kafka.login(RECEIVER)
    async with started(config, make_producer(config, "test")) as producer:
        with pytest.raises(DRIVER_ERRORS) as found:
            await producer.send_and_wait(TOPIC, b"forged", partition=0)
    refusal = broker_refusal(found.value, config, doing=f"write to topic {TOPIC}")
    assert isinstance(refusal, ConnectError)
    assert f"a user 'receiver' that may write to topic {TOPIC} (ACL)" in str(refusal)
    async with started(config, make_consumer(config, "test")) as consumer:
        await consumer.beginning_offsets([TopicPartition(TOPIC, 0)])


async def test_hidden_topic_differs_from_a_missing_one(secured_kafka: SecuredKafka) -> None:
    config = secured_kafka.login(RECEIVER)
    async with started(config, make_admin(config, "test")) as admin:
        with pytest.raises(ConnectError, match="that may Describe and DescribeConfigs topic other"):
            await describe_topic(admin, config, "other")
    anonymous = KafkaConfig.of(secured_kafka.server.bootstrap)
    async with started(anonymous, make_admin(anonymous, "test")) as admin:
        described = await describe_topics(admin, anonymous, ["other", TOPIC])
    assert not described["other"].is_there
    assert described[TOPIC].is_there


async def connected_admin(secured_kafka: SecuredKafka) -> tuple[Any, Any]:
    """Return an admin client that is started over TLS, and its connection."""
    config = secured_kafka.login(SEQUENCER)
    admin = make_admin(config, "test")
    async with connecting(config, LONG_SECONDS):
        await start_client(admin)
        await admin.list_topics()
    (connection,) = admin._client._conns.values()
    return admin, connection


async def test_forgotten_connection_waits_for_no_broker(secured_kafka: SecuredKafka) -> None:
    """TLS ends with a goodbye on both sides; an event loop waits 30 s for the other side's."""
    admin, connection = await connected_admin(secured_kafka)
    await asyncio.to_thread(secured_kafka.server.freeze)
    try:
        async with deadline():
            await connection.close()
        assert not connection.connected()
    finally:
        await asyncio.to_thread(secured_kafka.server.thaw)
        await close_client(admin, 5.0)


async def test_frozen_broker_leaves_no_socket_open(secured_kafka: SecuredKafka) -> None:
    admin, connection = await connected_admin(secured_kafka)
    socket = connection._protocol._transport.get_extra_info("socket")
    assert socket.fileno() >= 0
    await asyncio.to_thread(secured_kafka.server.freeze)
    try:
        await close_client(admin, 0.1)
        assert socket.fileno() == -1
    finally:
        await asyncio.to_thread(secured_kafka.server.thaw)
