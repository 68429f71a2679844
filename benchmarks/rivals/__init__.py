"""The engine and what a user might take instead of it, each a `benchmarks.rivals.rival.Rival`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.rivals.rival import Rival

_CLASSES = {
    "bare_pages": ("bare", "BarePages"),
    "bare_pipe": ("bare", "BarePipe"),
    "common_way": ("common_way", "CommonWay"),
    "engine": ("engine", "Engine"),
    "event_sourcing": ("event_sourcing", "EventSourcing"),
    "kafka_transactions_events": ("kafka_transactions", "KafkaTransactionsEvents"),
    "kafka_transactions_frames": ("kafka_transactions", "KafkaTransactionsFrames"),
    "nats_jetstream": ("nats_jetstream", "NatsJetStream"),
}

NAMES = tuple(_CLASSES)


def rival_of(name: str) -> Rival:
    """Return the rival `name`; its libraries are imported now, and not before."""
    module, kind = _CLASSES[name]
    made: Rival = getattr(import_module(f"benchmarks.rivals.{module}"), kind)()
    return made
