"""Every config says in one way where Kafka is, and checks it when it is constructed."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.errors import SettingError
from chain_verifier.config import TopicSource
from matcher_receiver import KafkaSourceConfig
from outbox import ConsumerConfig, RelayConfig
from outbox.callback.config import CallbackConfig
from outbox.sender.relay import FireAfterCommit
from sequencer import SequencerConfig, TopicIntakeConfig

KINDS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (SequencerConfig, {"chain_id": 1, "database": "postgresql://d"}),
    (TopicIntakeConfig, {"topic": "t"}),
    (KafkaSourceConfig, {"topic": "t"}),
    (RelayConfig, {"database": "postgresql://d"}),
    (ConsumerConfig, {"name": "c", "topics": ("t",), "database": "postgresql://d"}),
    (CallbackConfig, {"database": "postgresql://d", "check_topic": "c", "confirm_topics": ("t",)}),
    (TopicSource, {}),
]
SECRET = "open sesame"
LOGIN: dict[str, Any] = {
    "bootstrap_servers": "kafka.example:9093",
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "PLAIN",
    "sasl_username": "user",
    "sasl_password": SECRET,
}


@pytest.mark.parametrize(("kind", "fields"), KINDS)
def test_config_takes_text_and_settings_refuses_others_and_shows_no_secret(
    kind: Callable[..., Any], fields: dict[str, Any]
) -> None:
    assert kind(**fields, kafka="k:9092,[::1]:9093").kafka == "k:9092,[::1]:9093"
    given = kind(**fields, kafka=KafkaConfig(**LOGIN))
    assert given.kafka.sasl_password == SECRET
    assert SECRET not in repr(given)
    assert msgspec.convert({**fields, "kafka": LOGIN}, kind).kafka == KafkaConfig(**LOGIN)
    for wrong in ("", "k", "k:0", "k:1,", 5):
        with pytest.raises(SettingError) as refused:
            kind(**fields, kafka=wrong)
        assert refused.value.field == "kafka"


async def test_fire_after_commit_takes_both() -> None:
    FireAfterCommit("k:1", [])
    FireAfterCommit(KafkaConfig(**LOGIN), [])
    with pytest.raises(SettingError, match="kafka"):
        FireAfterCommit("k", [])
