"""The engine and what a user might take instead of it, each a `benchmarks.rivals.rival.Rival`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.rivals.rival import Rival

_CLASSES = {
    "bare_pages": "BarePages",
    "bare_pipe": "BarePipe",
    "common_way": "CommonWay",
    "engine": "Engine",
    "event_sourcing": "EventSourcing",
    "kafka_transactions_events": "KafkaTransactionsEvents",
    "kafka_transactions_frames": "KafkaTransactionsFrames",
    "nats_jetstream": "NatsJetStream",
}

NAMES = tuple(_CLASSES)


def rival_of(name: str) -> Rival:
    """Return the rival `name`; its libraries are imported now, and not before."""
    made: Rival = getattr(import_module(f"benchmarks.rivals.{name}"), _CLASSES[name])()
    return made
