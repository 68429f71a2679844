"""Delivers a chain's rows in order, once each, whatever the broker did to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chain_kernel.doors import imported, needs_extra, without_missing

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
    from matcher_receiver.stores.chain_frames import ChainFrames
    from matcher_receiver.stores.files import FileSnapshotStore
    from matcher_receiver.stores.postgres import PostgresCheckpointStore, PostgresHeadReports
    from matcher_receiver.stores.shadow import PostgresShadowStore

if TYPE_CHECKING:
    from matcher_receiver.stores.kafka import KafkaFrameSource

__all__ = [
    "ChainFrames",
    "CheckpointConfig",
    "FileSnapshotStore",
    "Gap",
    "KafkaFrameSource",
    "KafkaSourceConfig",
    "PostgresCheckpointStore",
    "PostgresHeadReports",
    "PostgresShadowStore",
    "Receiver",
    "ReceiverConfig",
    "ReceiverStats",
    "ReceiverTuning",
    "Snapshot",
    "StartAt",
    "State",
]

_OF_KAFKA = {"KafkaFrameSource": "matcher_receiver.stores.kafka"}

if not TYPE_CHECKING:  # otherwise type checkers would accept a misspelt name
    __all__ = without_missing(__all__, _OF_KAFKA, "aiokafka")

    def __getattr__(name: str) -> object:
        """Import, at its first use, what needs a client of Kafka."""
        found = globals()[name] = imported(__name__, name, _OF_KAFKA, {"matcher_receiver": "kafka"})
        return found
