"""Settles a consumer's deliveries: stores what they came to, confirms them, and finishes them.

A delivery is finished, and reported to its sender, once what it came to is durable, never before.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from orderchain.text import printable
from outbox.consumer.decisions import GiveUp, after_failure
from outbox.consumer.inbox import REFUSED, TOO_OLD, TRIES_USED_UP, shown
from outbox.records import APPLIED, RETRYING, Confirm, proof_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from orderchain.clients.postgres import Connection
    from orderchain.clock import Clock
    from outbox.consumer.config import ConsumerConfig
    from outbox.consumer.confirm_loop import ConfirmSender
    from outbox.consumer.delivery import Delivery
    from outbox.consumer.inbox import Inbox
    from outbox.consumer.offsets import ConsumeProgress
    from outbox.consumer.pace import ConsumerStats
    from outbox.session import ConsumerConnections


_log = logging.getLogger(__name__)


class Refused(Exception):
    """Raised by a handler when no retry can help: the message is a dead letter at once."""


class _Failure(NamedTuple):
    """What follows from a failure of a handler."""

    failures: int
    error: str
    due_ns: int | None
    """When it is retried; None if it becomes a dead letter."""
    reason: str
    """Why it becomes a dead letter."""


class Outcomes:
    """What the deliveries of one consumer come to.

    The methods that store something raise the errors of a database that is away; then nothing is
    counted, confirmed or finished.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        *,
        inbox: Inbox,
        connections: ConsumerConnections,
        clock: Clock,
        progress: ConsumeProgress,
        confirms: ConfirmSender,
        stats: ConsumerStats,
    ) -> None:
        self._config = config
        self._inbox = inbox
        self._connections = connections
        self._clock = clock
        self._progress = progress
        self._confirms = confirms
        self._stats = stats

    # -- applied ---------------------------------------------------------------------------------

    def applied(self, deliveries: Sequence[Delivery]) -> None:
        """Count messages whose effect has just committed; confirm and finish them."""
        self._stats.applied += len(deliveries)
        self.confirm(deliveries)

    def repeated(self, deliveries: Sequence[Delivery]) -> None:
        """Count messages that came again after they were applied; confirm and finish them."""
        self._stats.repeated += len(deliveries)
        self.confirm(deliveries)

    def confirm(self, deliveries: Iterable[Delivery]) -> None:
        """Confirm messages that are applied, now or before, and finish them."""
        for delivery in deliveries:
            self._report(delivery, APPLIED, 0)
            self.finish(delivery)

    def finish(self, delivery: Delivery) -> None:
        """Allow the committed offset to move past a message."""
        held = self._progress.of(delivery.place)
        if held is not None:
            held.finish(delivery.offset)

    # -- failed ----------------------------------------------------------------------------------

    async def store_failure(self, delivery: Delivery, error: BaseException) -> None:
        """Park a received message whose handler has raised `error`, or make it a dead letter."""
        now_ns = self._clock.wall_ns()
        failure = self._after(delivery, error, now_ns)
        until: Mapping[UUID, int] = {}
        async with self._connections.transaction() as connection:
            if failure.due_ns is None:
                await self._bury(connection, delivery, failure)
            else:
                await self._inbox.park(
                    connection, delivery,
                    failures=failure.failures, due_ns=failure.due_ns, error=failure.error,
                )  # fmt: skip
                until = await self._inbox.parked_until(connection, [delivery])
        self._stats.failures += 1
        if failure.due_ns is None:
            self._stats.dead += 1
            _log_dead(delivery, failure.reason, failure.error)
            self.finish(delivery)
            return
        self._stats.parked += 1
        _log.warning(
            "message %s has failed, and is parked: %s",
            delivery.message_id,
            printable(failure.error),
        )
        self._parked(delivery, until.get(delivery.message_id, now_ns))

    async def store_failure_again(
        self, connection: Connection, delivery: Delivery, error: BaseException
    ) -> int | None:
        """Store, in an open transaction, that a parked message has failed again.

        Returns until when (ns) it is parked; None if it is a dead letter now. Once that has
        committed, call `failed_again` with it.
        """
        now_ns = self._clock.wall_ns()
        failure = self._after(delivery, error, now_ns)
        if failure.due_ns is None:
            await self._bury(connection, delivery, failure)
            await self._inbox.unpark(connection, delivery, now_ns)
            _log_dead(delivery, failure.reason, failure.error)
        else:
            await self._inbox.park_again(
                connection, delivery,
                failures=failure.failures, due_ns=failure.due_ns, error=failure.error,
            )  # fmt: skip
        return failure.due_ns

    def failed_again(self, delivery: Delivery, until_ns: int | None) -> None:
        """Count a stored failure of a parked message; `until_ns` as `store_failure_again`."""
        self._stats.failures += 1
        if until_ns is None:
            self._stats.dead += 1
        else:
            self._parked(delivery, until_ns)

    async def unpark(self, connection: Connection, delivery: Delivery) -> None:
        """Remove a parked message that is applied, in the open transaction."""
        await self._inbox.unpark(connection, delivery, self._clock.wall_ns())

    # -- not worked on ---------------------------------------------------------------------------

    async def park_in_turn(self, deliveries: Sequence[Delivery]) -> None:
        """Park messages after earlier ones of their keys, which are parked."""
        now_ns = self._clock.wall_ns()
        async with self._connections.transaction() as connection:
            await self._inbox.park_in_turn(connection, deliveries, now_ns)
            until = await self._inbox.parked_until(connection, deliveries)
        self._stats.parked += len(deliveries)
        for delivery in deliveries:
            self._parked(delivery, until.get(delivery.message_id, now_ns))

    async def report_parked(self, deliveries: Sequence[Delivery]) -> None:
        """Report to the senders of parked messages until when they are parked."""
        now_ns = self._clock.wall_ns()
        async with self._connections.transaction() as connection:
            until = await self._inbox.parked_until(connection, deliveries)
        for delivery in deliveries:
            self._parked(delivery, until.get(delivery.message_id, now_ns))

    async def bury_too_old(self, deliveries: Sequence[Delivery]) -> None:
        """Make dead letters of messages that are older than the inbox."""
        error = "whether it was applied is no longer known"
        failure = _Failure(0, error, None, TOO_OLD)
        async with self._connections.transaction() as connection:
            for delivery in deliveries:
                await self._bury(connection, delivery, failure)
        self._stats.dead += len(deliveries)
        for delivery in deliveries:
            _log_dead(delivery, TOO_OLD, error)
            self.finish(delivery)

    # -- shared ----------------------------------------------------------------------------------

    def _after(self, delivery: Delivery, error: BaseException, now_ns: int) -> _Failure:
        decision = after_failure(self._config.retries, delivery.failures, now_ns)
        is_refused = isinstance(error, Refused)
        due_ns = None if is_refused or isinstance(decision, GiveUp) else decision.due_ns
        # A column and a stream can hold this text, whatever the error says.
        text = shown(f"{type(error).__name__}: {error}")
        reason = REFUSED if is_refused else TRIES_USED_UP
        return _Failure(decision.failures, text, due_ns, reason)

    async def _bury(self, connection: Connection, delivery: Delivery, failure: _Failure) -> None:
        await self._inbox.bury(
            connection, delivery,
            failures=failure.failures, reason=failure.reason, error=failure.error,
        )  # fmt: skip

    def _parked(self, delivery: Delivery, until_ns: int) -> None:
        self._report(delivery, RETRYING, until_ns)
        self.finish(delivery)

    def _report(self, delivery: Delivery, kind: int, until_ns: int) -> None:
        token = delivery.confirm_token
        if delivery.confirm_topic is None or token is None:
            return
        proof = proof_of(token, self._config.name, kind, until_ns)
        confirm = Confirm(
            delivery.message_id.bytes, kind, until_ns, delivery.partition, delivery.offset, proof
        )
        self._confirms.add(delivery.confirm_topic, confirm)


def _log_dead(delivery: Delivery, reason: str, error: str) -> None:
    """Log that a person must look at a message."""
    _log.error("message %s is a dead letter, %s: %s", delivery.message_id, reason, printable(error))
