"""What people who embed a receiver may rely on."""

from __future__ import annotations

import matcher_receiver


def test_public_names_are_these() -> None:
    assert sorted(matcher_receiver.__all__) == [
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
    assert all(hasattr(matcher_receiver, name) for name in matcher_receiver.__all__)
