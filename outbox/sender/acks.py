"""Writes the results of sends to the database: many at once, a moment later.

An acknowledgement waits `ack_linger_seconds` at least, and twice that at most. If the consumer's
confirm overtakes it, it need not be written at all. A crash during the wait costs a resend, as does
a crash just before it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from outbox.sender.store import BrokerAck

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from outbox.destination import Destination
    from outbox.sender.message_sender import Sent
    from outbox.sender.relay_config import RelayConfig
    from outbox.sender.sending import Claims
    from outbox.sender.stats import RelayStats
    from outbox.sender.store import RelayStore


class AckWriter:
    """The relay's settlement: collects results, and writes each kind in one statement."""

    def __init__(self, config: RelayConfig, store: RelayStore, stats: RelayStats) -> None:
        self._config = config
        self._store = store
        self._stats = stats
        self._young: dict[UUID, BrokerAck] = {}
        self._old: dict[UUID, BrokerAck] = {}  # those that have waited for long enough
        self._shared: list[BrokerAck] = []
        self._finals: list[BrokerAck] = []
        self._failures: list[tuple[UUID, UUID, str]] = []
        self._releases: list[tuple[UUID, UUID, str | None]] = []
        self._waiting = asyncio.Event()
        self._written = asyncio.Lock()

    def sent(self, destination: Destination, sent: Sent, claims: Claims) -> None:
        """Keep acknowledgements, to be written unless a confirm overtakes them."""
        self._stats.sent += len(claims)
        topic, partition, first = sent.topic, sent.partition, sent.first_offset
        acks = [
            BrokerAck(message_id, token, topic, partition, first + place)
            for place, (message_id, token) in enumerate(claims)
        ]
        if destination.confirm == "none":
            self._finals += acks
        elif len(destination.consumers) == 1:
            self._young.update((ack.message_id, ack) for ack in acks)
        else:
            # The confirm of one consumer says nothing about the others: always written.
            self._shared += acks
        self._waiting.set()

    def failed(self, claims: Claims, reason: str) -> None:
        """Keep failures, which count as a try."""
        self._failures += [(message_id, token, reason) for message_id, token in claims]
        self._waiting.set()

    def released(self, claims: Claims, reason: str, *, is_noted: bool = False) -> None:
        """Keep claims to be given back; the reason goes with each if it `is_noted`."""
        noted = reason if is_noted else None
        self._releases += [(message_id, token, noted) for message_id, token in claims]
        self._waiting.set()

    def cut_off(self, claims: Claims) -> None:
        """Leave them claimed until their time: the sweep finds them then."""

    def overtaken(self, message_ids: Iterable[UUID]) -> None:
        """Forget acknowledgements of messages whose only consumer has confirmed."""
        before = len(self._young) + len(self._old)
        for message_id in message_ids:
            if self._young.pop(message_id, None) is None:
                self._old.pop(message_id, None)
        self._stats.acks_overtaken += before - len(self._young) - len(self._old)

    async def run(self) -> None:
        """Write incoming results, until cancelled. Raises RetryError: then call it again."""
        while True:
            await self._waiting.wait()
            lingers = self._config.ack_linger_seconds > 0
            if lingers:
                await asyncio.sleep(self._config.ack_linger_seconds)
            await self.write(spares_young=lingers)

    async def write(self, *, spares_young: bool = False) -> None:
        """Write everything that waits. What could not be written keeps waiting; raises RetryError.

        `spares_young`: leave out the acknowledgements that have come since the last such write.
        """
        async with self._written:
            self._waiting.clear()
            try:
                await self._write_all(spares_young=spares_young)
            except BaseException:
                self._waiting.set()
                raise
            if self._young or self._old:
                self._waiting.set()

    async def _write_all(self, *, spares_young: bool) -> None:
        # Each list is emptied only after it is written. A repeat finds no token, and writes
        # nothing.
        if self._releases:
            releases = list(self._releases)
            await self._store.release(releases)
            del self._releases[: len(releases)]
            self._stats.released += len(releases)
        if self._failures:
            failures = list(self._failures)
            await self._store.write_failures(failures)
            del self._failures[: len(failures)]
            self._stats.failed += len(failures)
        if self._finals:
            finals = list(self._finals)
            self._stats.done_by_broker += await self._store.finish_by_broker(finals)
            del self._finals[: len(finals)]
        acks = self._old if spares_young else self._old | self._young
        self._old, self._young = (self._young if spares_young else {}), {}
        if acks or self._shared:
            shared = list(self._shared)
            try:
                written = await self._store.write_acks([*acks.values(), *shared])
            except BaseException:
                self._old = acks | self._old
                raise
            del self._shared[: len(shared)]
            self._stats.acks_written += written
