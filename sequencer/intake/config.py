"""Settings of an intake from a topic."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from orderchain.clients.kafka_config import KafkaConfig
from orderchain.config import Config

Seconds = Annotated[float, Meta(gt=0, le=3600)]


class TopicIntakeConfig(Config, frozen=True, kw_only=True):
    """What an intake must know of the topic that it reads."""

    kafka: str | KafkaConfig
    """A KafkaConfig, or the plaintext bootstrap servers of the topic, `host:port[,host:port]`. They
    need not be those of the chain."""
    topic: Annotated[str, Meta(min_length=1, max_length=249)]
    """It is part of the name of every mark, and of the keys of records without a key: under another
    name the same records are new orders."""
    start: Literal["earliest", "latest"] = "earliest"
    """Where to begin with a topic that was never read before. With "latest" the records that are
    there never become orders of this chain. A partition that is added later is read from its
    beginning."""
    batch_rows: Annotated[int, Meta(ge=1, le=100_000)] = 5_000
    """Records handed over at once, at most; the sequencer's own bound applies too."""
    fetch_bytes: Annotated[int, Meta(ge=2**16, le=2**28)] = 2**20
    """Bytes to read ahead per partition. A larger record is read anyway."""
    connect_seconds: Seconds = 10.0
    request_seconds: Seconds = 10.0
    """Deadline of one request to the broker."""
    stop_seconds: Seconds = 5.0
    """How long a stop waits for the commits of what was handed over. After it they continue in the
    sequencer, which has a deadline of its own."""
