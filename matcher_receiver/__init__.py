"""Hands a chain's rows on in order, once each, whatever the broker did to them."""

from __future__ import annotations

from matcher_receiver.checkpoint_store import PostgresCheckpointStore
from matcher_receiver.config import (
    CheckpointConfig,
    KafkaSourceConfig,
    ReceiverConfig,
    StartAt,
)
from matcher_receiver.decisions import State
from matcher_receiver.kafka_source import KafkaFrameSource
from matcher_receiver.receiver import Receiver
from matcher_receiver.stats import ReceiverStats
from orderchain.gap import Gap

__all__ = [
    "CheckpointConfig",
    "Gap",
    "KafkaFrameSource",
    "KafkaSourceConfig",
    "PostgresCheckpointStore",
    "Receiver",
    "ReceiverConfig",
    "ReceiverStats",
    "StartAt",
    "State",
]
