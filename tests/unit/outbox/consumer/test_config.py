import msgspec
import pytest

from outbox import ConsumerConfig, RedisFilterConfig
from outbox.callback.config import CallbackConfig
from outbox.sender.store import RETRY_SLACK_SECONDS

GIVEN = {
    "name": "clearing",
    "topics": ["trades"],
    "kafka": "127.0.0.1:9092",
    "database": "postgresql://clearing:secret@db:5432/ledger",
}


def config(**settings: object) -> ConsumerConfig:
    return msgspec.convert(GIVEN | settings, ConsumerConfig)


def test_no_password_is_shown() -> None:
    assert "secret" not in repr(config())
    filtering = RedisFilterConfig(url="redis://anna:secret@redis:6379/0", consumer="clearing")
    assert "secret" not in repr(filtering)
    assert "redis:6379" in repr(filtering)


def test_consumer_of_no_topic_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        config(topics=[])


def test_senders_wait_for_longer_than_a_retry_may_take() -> None:
    """Otherwise a handler that hangs until its deadline would use up the tries of its message."""
    given = {"check_topic": "checks", "confirm_topics": ["trades.confirms"]}
    shared = {name: GIVEN[name] for name in ("database", "kafka")}
    callback = msgspec.convert(shared | given, CallbackConfig)
    assert config().handler_seconds * 2 <= RETRY_SLACK_SECONDS == callback.late_seconds
