"""Hands a chain's rows on in order, once each, whatever the broker did to them."""

from __future__ import annotations

from matcher_receiver.chain_frames import ChainFrames
from matcher_receiver.checkpoint_store import PostgresCheckpointStore
from matcher_receiver.config import (
    CheckpointConfig,
    KafkaSourceConfig,
    ReceiverConfig,
    StartAt,
)
from matcher_receiver.decisions import State
from matcher_receiver.head_reports import PostgresHeadReports
from matcher_receiver.kafka_source import KafkaFrameSource
from matcher_receiver.receiver import Receiver
from matcher_receiver.snapshot_files import FileSnapshotStore
from matcher_receiver.stats import ReceiverStats
from orderchain.gap import Gap
from orderchain.snapshot import Snapshot

__all__ = [
    "ChainFrames",
    "CheckpointConfig",
    "FileSnapshotStore",
    "Gap",
    "KafkaFrameSource",
    "KafkaSourceConfig",
    "PostgresCheckpointStore",
    "PostgresHeadReports",
    "Receiver",
    "ReceiverConfig",
    "ReceiverStats",
    "Snapshot",
    "StartAt",
    "State",
]
