"""Kafka transactions with one frame per record: the engine's packing without its database."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from benchmarks.rivals.kafka_transactions import KafkaTransactions
from benchmarks.rivals.records import bodies, decode_body

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.rivals.rival import Tally
    from orderchain.model import Event


class KafkaTransactionsFrames(KafkaTransactions):
    """One record per batch."""

    title: ClassVar[str] = "Kafka transactions, a frame a record"

    @staticmethod
    def records(events: list[Event]) -> Iterable[bytes]:
        """Encode the batch."""
        return bodies(events)

    @staticmethod
    def take(tally: Tally, value: bytes) -> None:
        """Decode the batch."""
        tally.take(decode_body(value))
