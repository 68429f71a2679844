"""Kafka transactions with one event per record: what most people write."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from benchmarks.rivals.kafka_transactions import KafkaTransactions
from benchmarks.rivals.records import decode_event, encode_event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.rivals.rival import Tally
    from orderchain.model import Event


class KafkaTransactionsEvents(KafkaTransactions):
    """One record per order."""

    title: ClassVar[str] = "Kafka transactions, an event a record"

    @staticmethod
    def records(events: list[Event]) -> Iterable[bytes]:
        """Encode each order."""
        return map(encode_event, events)

    @staticmethod
    def take(tally: Tally, value: bytes) -> None:
        """Decode one order."""
        tally.take((decode_event(value),))
