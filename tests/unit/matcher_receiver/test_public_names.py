"""What people who embed a receiver may rely on."""

from __future__ import annotations

import matcher_receiver


def test_public_names_are_these() -> None:
    assert sorted(matcher_receiver.__all__) == [
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
    assert all(hasattr(matcher_receiver, name) for name in matcher_receiver.__all__)
