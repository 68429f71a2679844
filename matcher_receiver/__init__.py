"""Delivers a chain's rows in order, once each, whatever the broker did to them."""

from __future__ import annotations

from chain_kernel.doors import needs_extra

with needs_extra("receiver", __name__):
    from chain_kernel.model import Gap, Snapshot
    from chain_kernel.start_at import StartAt
    from matcher_receiver.config import (
        CheckpointConfig,
        KafkaSourceConfig,
        ReceiverConfig,
        ReceiverTuning,
    )
    from matcher_receiver.decisions import State
    from matcher_receiver.receiver import Receiver
    from matcher_receiver.stats import ReceiverStats
    from matcher_receiver.stores.files import FileSnapshotStore
    from matcher_receiver.stores.kafka import ChainFrames, KafkaFrameSource
    from matcher_receiver.stores.postgres import PostgresCheckpointStore, PostgresHeadReports

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
    "ReceiverTuning",
    "Snapshot",
    "StartAt",
    "State",
]
