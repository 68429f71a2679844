"""The sweep: claims what is due, and gives up what has used up its tries.

A delivery that has become abnormal needs a person: it is logged as an error, and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID, uuid4

from chain_kernel.errors import RetryError
from chain_kernel.tasks import of_others
from chain_kernel.text import counted, named_reason, printable
from outbox.sender.due_decisions import (
    DueDelivery,
    ResendDecision,
    judge,
    queue_wait_seconds,
    wait_seconds,
    why_given_up,
)
from outbox.sender.send_queues import ClaimedMessages
from outbox.sender.store import SweepRound
from outbox.statuses import Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outbox.destination import Destination
    from outbox.sender.config import RelayConfig, RelayStats
    from outbox.sender.send_queues import SendQueues, Share
    from outbox.sender.store import AbnormalDelivery, RelayStore


_log = logging.getLogger(__name__)

_ALL: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Before everything that can be due."""

_ORPHAN_SECONDS: Final = 60.0
"""Pause of a delivery whose destination is no longer known."""


class ConsumerLog(Protocol):
    """A look into a consumer's own log of messages, if the relay has one."""

    async def applied(self, message_ids: Sequence[UUID]) -> set[UUID]:
        """Return those that the consumer has applied."""
        ...


@dataclass(eq=False)
class Sweep:
    """Rounds of claiming. Any number of them may run side by side, in any number of processes."""

    config: RelayConfig
    store: RelayStore
    send_queues: SendQueues
    stats: RelayStats
    consumer_logs: Mapping[str, ConsumerLog]
    _base: tuple[datetime, float] | None = field(default=None, init=False)
    """The database's time at some instant of our monotonic clock. None: look at everything."""
    _everything_at: float = field(default=0.0, init=False)
    _complete_at: float = field(default=0.0, init=False)
    """By our clock: when the last complete sweep began."""

    async def sweep(self, *, everything: bool = False) -> int:
        """Claim everything that is due, and return how many deliveries were looked at.

        It leaves out destinations without room, and those whose topics are left alone for now. It
        begins at a floor of next_send_at, `late_seconds` before the last complete sweep: while
        another session holds a long snapshot, the index is full of dead entries below the floor,
        and passing them all takes many times as long as the look itself. `everything` begins before
        them.
        """
        looked_at = 0
        began = asyncio.get_running_loop().time()
        floor = _ALL if everything else self._floor(began)
        while not self.send_queues.is_broker_away:
            share, leaves_out = self.send_queues.share(self.config.sweep_rows_max)
            rows, is_full = await self._round(floor, share)
            looked_at += rows
            if not is_full:
                if not leaves_out:
                    self._complete_at = began
                break
        return looked_at

    def _floor(self, now: float) -> datetime:
        late = self.config.late_seconds
        if self._base is None or now - self._everything_at >= late:
            self._everything_at = now
            return _ALL
        at, its_time = self._base
        # Not from now: nothing was swept while the broker was away.
        return at + timedelta(seconds=self._complete_at - its_time - late)

    async def _round(self, floor: datetime, share: Share) -> tuple[int, bool]:
        """Claim one round; return the rows looked at, and whether there may be more."""
        token = uuid4()
        abnormal: list[AbnormalDelivery] = []
        async with self.store.sweep() as connection:
            sweep_round = SweepRound(connection)
            if floor == _ALL:
                self._base = (await sweep_round.now(), asyncio.get_running_loop().time())
            due = await sweep_round.due(floor, share)
            if not due:
                return 0, False
            send, wait, give_up, is_cut = await self._sorted(sweep_round, due)
            messages, unreadable = await sweep_round.messages(send)
            if unreadable:
                give_up += [
                    (row, unreadable[row.message_id])
                    for row, _ in send
                    if row.message_id in unreadable
                ]
                send = [each for each in send if each[0].message_id not in unreadable]
            if wait:
                await sweep_round.wait(wait)
            if give_up:
                abnormal = await sweep_round.give_up(give_up)
            if send:
                await sweep_round.claim(send, token)
        # Committed: the claims are ours.
        self.stats.queued += len(wait)
        self.stats.swept += len(send)
        self.stats.resent += sum(_may_be_sent(row) for row, _ in send)
        if messages:
            self.send_queues.hand_over(ClaimedMessages(token, messages))
        if abnormal:
            self.stats.abnormal += len(abnormal)
            report_abnormal(abnormal)
        return len(due), is_cut or _is_full(due, share)

    async def _sorted(
        self, sweep_round: SweepRound, due: list[DueDelivery]
    ) -> tuple[
        list[tuple[DueDelivery, float]],
        list[tuple[DueDelivery, float]],
        list[tuple[DueDelivery, str]],
        bool,
    ]:
        """Return what to send and what to leave, each with its seconds, and what to give up."""
        destinations = await self._known(sweep_round, due)
        is_acked = any(row.status == Status.CONFIRMED for row in due)
        progress = await sweep_round.progress() if is_acked else {}
        send: list[tuple[DueDelivery, float]] = []
        wait: list[tuple[DueDelivery, float]] = []
        give_up: list[tuple[DueDelivery, str]] = []
        room = self.config.sweep_bytes_max
        for row in await self._unapplied(sweep_round, due):
            rules = destinations.get(row.destination)
            if rules is None:
                _log.error("destination %r is not set up any more", row.destination)
                wait.append((row, _ORPHAN_SECONDS))
                continue
            decision = judge(row, rules, progress)
            if decision is ResendDecision.WAIT:
                wait.append((row, queue_wait_seconds(row, rules)))
            elif decision is ResendDecision.GIVE_UP:
                give_up.append((row, why_given_up(row, rules)))
            elif row.size is None:
                give_up.append((row, "its message is gone"))
            elif row.size > room and send:
                # Locked by us until the commit, and then free for the next round.
                return send, wait, give_up, True
            else:
                room -= row.size
                send.append((row, wait_seconds(rules, row.send_count + row.claim_count)))
        return send, wait, give_up, False

    async def _known(
        self, sweep_round: SweepRound, due: list[DueDelivery]
    ) -> dict[str, Destination]:
        """Return the destinations, read again if one of `due` is new."""
        known = self.send_queues.destinations
        if any(row.destination not in known for row in due):
            known = self.send_queues.destinations = await sweep_round.destinations()
        return known

    async def _unapplied(
        self, sweep_round: SweepRound, due: list[DueDelivery]
    ) -> list[DueDelivery]:
        """Leave out what consumers' own logs show as applied: that counts as their confirm."""
        found: set[tuple[str, UUID]] = set()
        for consumer, log in self.consumer_logs.items():
            sent = [row.message_id for row in due if row.consumer == consumer and _may_be_sent(row)]
            if sent:
                found |= {(consumer, each) for each in await _asked(consumer, log, sent)}
        if not found:
            return due
        applied = await sweep_round.apply(sorted((each, consumer) for consumer, each in found))
        self.stats.found_applied += applied
        return [row for row in due if (row.consumer, row.message_id) not in found]


def _may_be_sent(row: DueDelivery) -> bool:
    return row.send_count > 0 or row.claim_count > 0


def _is_full(due: list[DueDelivery], share: Share) -> bool:
    """Return whether more may be due: some destination has had its full share."""
    if len(due) >= share.rows_in_all:
        return True
    taken = Counter(row.destination for row in due)
    # A share of one is a trial: the next one follows once its outcome is known.
    return any(
        rows >= share.of.get(name, share.rows) and share.of.get(name) != 1
        for name, rows in taken.items()
    )


async def _asked(consumer: str, log: ConsumerLog, message_ids: Sequence[UUID]) -> set[UUID]:
    """Ask a consumer's log. Raises RetryError: what can't be looked up is not sent either."""
    try:
        with of_others("it"):
            return await log.applied(message_ids)
    except Exception as error:
        raise RetryError(f"the log of consumer {consumer!r}: {named_reason(error)}") from error


LINES_MAX: Final = 20
"""Abnormal deliveries of one round that are logged one by one."""


def report_abnormal(abnormal: Sequence[AbnormalDelivery]) -> None:
    """Log deliveries that have become abnormal; never raises."""
    for each in abnormal[:LINES_MAX]:
        _log.error(
            "message %s for %s (consumer %r) is abnormal after %s: %s",
            each.message_id, printable(each.destination), each.consumer,
            counted(each.send_count, "try", "tries"), printable(each.reason),
        )  # fmt: skip
    if len(abnormal) > LINES_MAX:
        more = counted(len(abnormal) - LINES_MAX, "delivery", "deliveries")
        _log.error("abnormal beyond these: %s", more)
