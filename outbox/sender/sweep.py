"""The sweep: claims what is due, and gives up what has used up its tries."""

from __future__ import annotations

import logging
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID, uuid4

from orderchain.errors import RetryError
from outbox.sender.sending import Parcel
from outbox.sender.store import Claiming
from outbox.sender.verdicts import (
    Due,
    ResendVerdict,
    judge,
    queue_wait_seconds,
    wait_seconds,
    why_given_up,
)
from outbox.statuses import Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outbox.alerts import Alerts
    from outbox.destination import Destination
    from outbox.sender.relay_config import RelayConfig, RelayStats
    from outbox.sender.sending import Sending, Share
    from outbox.sender.store import Abnormal, RelayStore


_log = logging.getLogger(__name__)

_ALL: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Before everything that can be due."""

_ORPHAN_SECONDS: Final = 60.0
"""How long a delivery is left alone if its destination is no longer known."""


class ConsumerLog(Protocol):
    """A look into a consumer's own log of messages, if the relay has one."""

    async def applied(self, message_ids: Sequence[UUID]) -> set[UUID]:
        """Return those that the consumer has applied."""
        ...


class Sweep:
    """Rounds of claiming. Any number of them may run side by side, in any number of processes."""

    def __init__(
        self,
        config: RelayConfig,
        store: RelayStore,
        sending: Sending,
        stats: RelayStats,
        alerts: Alerts,
        consumer_logs: Mapping[str, ConsumerLog],
    ) -> None:
        self._config = config
        self._store = store
        self._sending = sending
        self._stats = stats
        self._alerts = alerts
        self._consumer_logs = consumer_logs
        # The database's time at some instant of our monotonic clock. None: look at everything.
        self._base: tuple[datetime, float] | None = None
        self._everything_at = 0.0
        self._complete_at = 0.0  # by our clock: when the last complete sweep began

    async def sweep(self, *, everything: bool = False) -> int:
        """Claim everything that is due, and return how many deliveries were looked at.

        It leaves out destinations without room, and those whose topics are left alone for now. It
        begins at a floor of next_send_at, `late_seconds` before the last complete sweep: while
        another session holds a long snapshot, the index is full of dead entries below the floor,
        and passing them all takes many times as long as the look itself. `everything` begins before
        them.
        """
        looked_at = 0
        began = time.monotonic()
        floor = _ALL if everything else self._floor(began)
        while not self._sending.is_broker_away:
            share, leaves_out = self._sending.share(self._config.sweep_rows_max)
            rows, is_full = await self._round(floor, share)
            looked_at += rows
            if not is_full:
                if not leaves_out:
                    self._complete_at = began
                break
        return looked_at

    def _floor(self, now: float) -> datetime:
        late = self._config.late_seconds
        if self._base is None or now - self._everything_at >= late:
            self._everything_at = now
            return _ALL
        at, monotonic = self._base
        # Not from now: nothing was swept while the broker was away.
        return at + timedelta(seconds=self._complete_at - monotonic - late)

    async def _round(self, floor: datetime, share: Share) -> tuple[int, bool]:
        """Claim one round; return the rows looked at, and whether there may be more."""
        token = uuid4()
        abnormal: list[Abnormal] = []
        async with self._store.sweep() as connection:
            claiming = Claiming(connection)
            if floor == _ALL:
                self._base = (await claiming.now(), time.monotonic())
            due = await claiming.due(floor, share)
            if not due:
                return 0, False
            send, wait, give_up, is_cut = await self._sorted(claiming, due)
            messages, unreadable = await claiming.messages(send)
            if unreadable:
                give_up += [
                    (row, unreadable[row.message_id])
                    for row, _ in send
                    if row.message_id in unreadable
                ]
                send = [each for each in send if each[0].message_id not in unreadable]
            if wait:
                await claiming.wait(wait)
            if give_up:
                abnormal = await claiming.give_up(give_up)
            if send:
                await claiming.claim(send, token)
        # Committed: the claims are ours.
        self._stats.queued += len(wait)
        self._stats.swept += len(send)
        self._stats.resent += sum(_may_be_sent(row) for row, _ in send)
        if messages:
            self._sending.hand_over(Parcel(token, messages))
        if abnormal:
            self._stats.abnormal += len(abnormal)
            self._alerts.report(abnormal)
        return len(due), is_cut or _is_full(due, share)

    async def _sorted(
        self, claiming: Claiming, due: list[Due]
    ) -> tuple[list[tuple[Due, float]], list[tuple[Due, float]], list[tuple[Due, str]], bool]:
        """Return what to send and what to leave, each with its seconds, and what to give up."""
        destinations = await self._known(claiming, due)
        is_acked = any(row.status == Status.CONFIRMED for row in due)
        progress = await claiming.progress() if is_acked else {}
        send: list[tuple[Due, float]] = []
        wait: list[tuple[Due, float]] = []
        give_up: list[tuple[Due, str]] = []
        room = self._config.sweep_bytes_max
        for row in await self._unapplied(claiming, due):
            rules = destinations.get(row.destination)
            if rules is None:
                _log.error("destination %r is not set up any more", row.destination)
                wait.append((row, _ORPHAN_SECONDS))
                continue
            verdict = judge(row, rules, progress)
            if verdict is ResendVerdict.WAIT:
                wait.append((row, queue_wait_seconds(row, rules)))
            elif verdict is ResendVerdict.GIVE_UP:
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

    async def _known(self, claiming: Claiming, due: list[Due]) -> dict[str, Destination]:
        """Return the destinations, read again if one of `due` is new."""
        known = self._sending.destinations
        if any(row.destination not in known for row in due):
            known = self._sending.destinations = await claiming.destinations()
        return known

    async def _unapplied(self, claiming: Claiming, due: list[Due]) -> list[Due]:
        """Leave out what consumers' own logs show as applied: that counts as their confirm."""
        found: set[tuple[str, UUID]] = set()
        for consumer, log in self._consumer_logs.items():
            sent = [row.message_id for row in due if row.consumer == consumer and _may_be_sent(row)]
            if sent:
                found |= {(consumer, each) for each in await _asked(consumer, log, sent)}
        if not found:
            return due
        applied = await claiming.apply(sorted((each, consumer) for consumer, each in found))
        self._stats.found_applied += applied
        return [row for row in due if (row.consumer, row.message_id) not in found]


def _may_be_sent(row: Due) -> bool:
    return row.send_count > 0 or row.claim_count > 0


def _is_full(due: list[Due], share: Share) -> bool:
    """Whether more may be due: some destination has had its full share."""
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
        return await log.applied(message_ids)
    except Exception as error:
        raise RetryError(f"the log of consumer {consumer!r}: {error!r}") from error
