"""A real Kafka that asks for TLS and logins, with listeners that are wrong in one way each."""

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from benchmarks.rivals.librdkafka import librdkafka_options
from chain_kernel.clients.kafka_config import KafkaConfig
from local_stack import KafkaServer
from local_stack import KafkaServerConfig as StackConfig
from local_stack.process import free_port
from tests.builders.listeners import Listener, with_listeners
from tests.certificates import HOST, Authority, Files
from tests.deadlines import deadline

SEQUENCER: Final = "sequencer"
RECEIVER: Final = "receiver"
OPERATOR: Final = "operator"
"""May do anything, with any topic."""
PASSWORDS: Final = {SEQUENCER: 'se"same, \\open=1', RECEIVER: "only to read", OPERATOR: "any topic"}
"""For the SCRAM users; one holds what quoting and SCRAM's own escapes have to get right."""

TOPIC: Final = "orders.1"
PREFIX: Final = "path."
"""Topics and groups that tests make begin with it: the sequencer may do anything with those, the
receiver may read."""
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_TOKENS: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
    'unsecuredLoginStringClaim_sub="broker";'
)
"""With Kafka's own check of tokens, which takes unsigned ones."""


def unsigned_token(user: str, seconds: int = 600) -> str:
    """Return a token as Kafka's own check takes it (RFC 7519, without a signature)."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": user, "iat": now - 60, "exp": now + seconds})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return b".".join([*encoded, b""]).decode()


@dataclass(frozen=True)
class SecuredKafka:
    """The server, the ports of its listeners, and what clients need to know."""

    server: KafkaServer
    ports: dict[str, int]
    authority: Authority
    folder: Path

    def at(self, listener: str, host: str = HOST) -> str:
        """Return the address of a listener."""
        return f"{host}:{self.ports[listener]}"

    def login(self, user: str, **changed: Any) -> KafkaConfig:
        """Return the right config for SASL_SSL with SCRAM, but for what is changed."""
        given: dict[str, Any] = {
            "bootstrap_servers": self.at("LOGIN"),
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": user,
            "sasl_password": PASSWORDS[user],
            "ssl_cafile": str(self.authority.path),
        }
        return KafkaConfig(**{**given, **changed})

    def by_tokens(self, draw: Callable[[], Awaitable[str]]) -> KafkaConfig:
        """Return the right config for logins by tokens, which `draw` returns."""
        return KafkaConfig(
            bootstrap_servers=self.at("CLEAR"),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_token=draw,
        )

    def mutual(self, user: str, files: Files | None = None, **changed: Any) -> KafkaConfig:
        """Return the right config for TLS with a client certificate, but for what is changed."""
        files = files or self.authority.client(user)
        given: dict[str, Any] = {
            "bootstrap_servers": self.at("MUTUAL"),
            "security_protocol": "SSL",
            "ssl_cafile": str(self.authority.path),
            "ssl_certfile": str(files.certificate),
            "ssl_keyfile": str(files.key),
        }
        return KafkaConfig(**{**given, **changed})

    def set_password(self, user: str, password: str) -> None:
        """Give a SCRAM user a password; it comes into force soon after."""
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        given = UserScramCredentialUpsertion(user, scram, password.encode())
        admin = AdminClient({"bootstrap.servers": self.server.bootstrap})
        _wait(admin.alter_user_scram_credentials([given]))

    def make_topic(self, name: str, partitions: int = 1) -> None:
        """Make a topic, as the user who may do anything."""
        admin = AdminClient({"bootstrap.servers": self.server.bootstrap})
        _wait(admin.create_topics([NewTopic(name, partitions, 1)]))

    def tls(self, listener: str, **changed: Any) -> KafkaConfig:
        """Return a config for TLS without a login."""
        given: dict[str, Any] = {
            "bootstrap_servers": self.at(listener),
            "security_protocol": "SSL",
            "ssl_cafile": str(self.authority.path),
        }
        return KafkaConfig(**{**given, **changed})


@contextmanager
def secured_kafka_in(folder: Path) -> Iterator[SecuredKafka]:
    """Start it, with its users, a topic and who may do what there; stop it at the end."""
    authority = Authority(folder)
    ports: list[int] = []
    while len(ports) < 7:
        ports.append(free_port(ports))
    names = ("PLAINTEXT", "CONTROLLER", "LOGIN", "MUTUAL", "EXPIRED", "CLEAR", "OTHER")
    port = dict(zip(names, ports, strict=True))
    store = _store(authority.server())
    mutual = {
        **store,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority.text,
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]*).*$/$1/",
    }
    scram = {"sasl.enabled.mechanisms": "SCRAM-SHA-512", "scram-sha-512.sasl.jaas.config": _SCRAM}
    clear = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN,OAUTHBEARER",
        "scram-sha-512.sasl.jaas.config": _SCRAM,
        "plain.sasl.jaas.config": f'{_PLAIN} user_{RECEIVER}="{PASSWORDS[RECEIVER]}";',
        "oauthbearer.sasl.jaas.config": _TOKENS,
    }
    expired = _store(authority.server(name="expired", has_expired=True))
    other = _store(authority.server("other.example", name="other"))
    config = StackConfig(
        directory=folder / "secured-kafka",
        port=port["PLAINTEXT"],
        controller_port=port["CONTROLLER"],
        is_long_run=False,
        settings={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # Clients without TLS, whose listener is for the test itself.
            "super.users": f"User:ANONYMOUS;User:{OPERATOR}",
        },
    )
    config = with_listeners(
        config,
        _listener("LOGIN", "SASL_SSL", port, {**store, **scram}),
        _listener("MUTUAL", "SSL", port, mutual),
        _listener("EXPIRED", "SSL", port, expired),
        _listener("CLEAR", "SASL_PLAINTEXT", port, clear),
        _listener("OTHER", "SSL", port, other),
    )
    with KafkaServer(config) as server:
        kafka = SecuredKafka(server, port, authority, folder)
        _set_up(kafka)
        yield kafka


def _listener(name: str, protocol: str, port: dict[str, int], settings: dict[str, str]) -> Listener:
    advertised = f"{HOST}:{port[name]}"
    return Listener(
        name=name, port=port[name], protocol=protocol, advertised=advertised, settings=settings
    )


def _store(files: Files) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": files.certificate_text,
        "ssl.keystore.key": files.key_text,
    }


def _set_up(kafka: SecuredKafka) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.server.bootstrap})
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    users: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(user, scram, password.encode())
        for user, password in PASSWORDS.items()
    ]
    _wait(admin.alter_user_scram_credentials(users))
    _wait(admin.create_topics([NewTopic(TOPIC, 1, 1)]))
    reading = (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    # First those that are not waited for: rights come into force in the order they are stored in.
    _wait(admin.create_acls([_allow(SEQUENCER, AclOperation.ALL, PREFIX)]))
    _wait(admin.create_acls([_allow(SEQUENCER, AclOperation.READ, PREFIX, ResourceType.GROUP)]))
    _wait(admin.create_acls([_allow(RECEIVER, operation, PREFIX) for operation in reading]))
    _wait(admin.create_acls([_allow(SEQUENCER, AclOperation.ALL, TOPIC)]))
    _wait(admin.create_acls([_allow(RECEIVER, operation, TOPIC) for operation in reading]))
    # Users and rights come into force soon after they are stored.
    for user in PASSWORDS:
        asyncio.run(_until_it_sees_the_topic(kafka.login(user)))


async def _until_it_sees_the_topic(config: KafkaConfig) -> None:
    async with deadline():
        while True:
            admin = AdminClient({**librdkafka_options(config)})
            try:
                found = await asyncio.to_thread(admin.list_topics, timeout=5)
            except KafkaException:
                continue  # it waits by itself: up to the timeout for a connection
            if TOPIC in found.topics:
                return


def _allow(
    user: str, operation: AclOperation, name: str, kind: ResourceType = ResourceType.TOPIC
) -> AclBinding:
    is_prefix = name == PREFIX
    return AclBinding(
        kind,
        name,
        ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )


def _wait(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result()
