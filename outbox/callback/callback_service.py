"""The callback service: keeps confirms, reports them to senders, and asks for what is missing."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol
from uuid import UUID, uuid4

from orderchain.clock import SystemClock
from orderchain.errors import OrderchainError
from orderchain.text import printable, reason_of
from outbox.callback.resend_schedule import Reply, after_ask
from outbox.callback.store import CONFIRMED, WAITING, AskedDelivery, CallbackStore
from outbox.errors import LASTING, BadRecord
from outbox.message import smallest_id
from outbox.records import APPLIED, DUE_NS_MAX, decode_checks, decode_confirms

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from orderchain.clock import Clock
    from outbox.callback.config import CallbackConfig
    from outbox.callback.store import ClaimedDelivery

_log = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PARKED_MAX = timedelta(days=7)
_KEEP_SECONDS = 60.0


class SenderCalls(Protocol):
    """How senders are called. Both raise RetryError or RefusedError if there was no answer."""

    async def resend(
        self, sender: str, consumer: str, message_ids: Sequence[UUID]
    ) -> Mapping[UUID, Reply]:
        """Ask to resend messages. Those that are left out were not answered."""
        ...

    async def confirmed(
        self, sender: str, consumer: str, proofs: Mapping[UUID, bytes]
    ) -> Collection[UUID]:
        """Report that a consumer has applied messages, with its proof of each.

        Returns once the sender has stored it. Returns those whose proofs are wrong, which are not
        stored.
        """
        ...


@dataclass
class CallbackStats:
    """Counters of one process; they only rise."""

    checks: int = 0
    """Messages that senders have asked to check."""
    confirms: int = 0
    asked: int = 0
    """Deliveries about which senders were asked."""
    unanswered: int = 0
    """Those of them without an answer."""
    returned: int = 0
    """Confirms that were returned."""
    forged: int = 0
    """Confirms that their senders did not believe."""
    returns: int = 0
    """Calls that these returns took."""
    bad_records: Counter[str] = field(default_factory=Counter)
    """Records that were dropped, by reason."""


class CallbackService:
    """What the service does with records and with time; Kafka is `intake`'s business."""

    def __init__(
        self, config: CallbackConfig, calls: SenderCalls, *, clock: Clock | None = None
    ) -> None:
        self._counters = CallbackStats()
        self._config = config
        self._calls = calls
        self._clock = clock or SystemClock()
        self._store = CallbackStore(config)

    def stats(self) -> CallbackStats:
        """Return the counters as they are now."""
        return deepcopy(self._counters)

    async def check(self) -> None:
        """Connect to the store. Raises ConnectError, SchemaError, DurabilityError, RetryError."""
        await self._store.check()

    async def run(self) -> None:
        """Ask and report forever; a database error is logged, and waited out.

        Raises DurabilityError if the database was set to lose what it has committed.
        """
        kept_ns = self._clock.monotonic_ns()
        while True:
            try:
                while await self.ask_once() >= self._config.ask_rows_max:
                    pass
                while await self.return_once() >= self._config.return_rows_max:
                    pass
                if self._clock.monotonic_ns() - kept_ns > _KEEP_SECONDS * 1e9:
                    kept_ns = self._clock.monotonic_ns()
                    await self._store.check_durability()
                    await self.trim()
            except LASTING:
                raise
            except OrderchainError as error:
                _log.warning("callback: %s", reason_of(error))
            await asyncio.sleep(self._config.round_seconds)

    async def close(self) -> None:
        """Close the connection; never raises."""
        await self._store.close()

    # ---------------------------------------------------------------------------------- records

    async def take_checks(self, value: bytes | None) -> None:
        """Store what one check record says; a bad one is counted. Raises RetryError."""
        try:
            record = decode_checks(value)
        except BadRecord as error:
            self._drop(error)
            return
        ids = [UUID(bytes=each) for each in record.message_ids]
        due_at = _at(record.due_unix_ns)
        await self._store.add_checks(
            record.sender, record.consumers, ids, due_at, self._return_at()
        )
        self._counters.checks += len(ids)

    async def take_confirms(self, value: bytes | None) -> None:
        """Store what one confirm record says; a bad one is counted. Raises RetryError."""
        try:
            record = decode_confirms(value)
        except BadRecord as error:
            self._drop(error)
            return
        now = self._now()
        applied: dict[tuple[UUID, str], bytes] = {}
        retrying: list[tuple[UUID, str, datetime]] = []
        for confirm in record.confirms:
            message_id = UUID(bytes=confirm.message_id)
            if confirm.kind == APPLIED:
                applied[message_id, record.consumer] = confirm.proof
            else:
                until = _at(min(confirm.until_unix_ns, DUE_NS_MAX))
                until = min(until, now + _PARKED_MAX) + timedelta(seconds=self._config.late_seconds)
                retrying.append((message_id, record.consumer, until))
        if applied:
            await self._store.add_confirms(applied, now, self._return_at())
        if retrying:
            await self._store.postpone(retrying)
        self._counters.confirms += len(applied)

    async def caught_up(self, places: Mapping[tuple[str, int], int]) -> None:
        """Store until when (unix ns) partitions of confirm topics were taken in.

        -1: a partition that is only known to exist. Raises RetryError.
        """
        await self._store.read_until({place: _at(ns) for place, ns in places.items()})

    # ------------------------------------------------------------------------------------- time

    async def ask_once(self) -> int:
        """Ask about what is due without a confirm; return how many. Raises RetryError."""
        now, token = self._now(), uuid4()
        taken = await self._store.claim(
            WAITING, now, token, self._until(now), self._config.ask_rows_max
        )
        groups = _by_sender(taken)
        replies = await asyncio.gather(
            *(self._ask(sender, consumer, rows) for (sender, consumer), rows in groups.items())
        )
        now = self._now()
        for rows, (replied, trouble) in zip(groups.values(), replies, strict=True):
            asked = [self._outcome(row, replied.get(row.message_id), trouble, now) for row in rows]
            await self._store.asked(token, asked)
            self._counters.asked += len(rows)
        return len(taken)

    async def return_once(self) -> int:
        """Report confirms to senders; return how many. Raises RetryError."""
        now, token = self._now(), uuid4()
        taken = await self._store.claim(
            CONFIRMED, now, token, self._until(now), self._config.return_rows_max
        )
        groups = _by_sender(taken)
        await asyncio.gather(
            *(
                self._return(token, sender, consumer, rows)
                for (sender, consumer), rows in groups.items()
            )
        )
        return len(taken)

    async def trim(self) -> None:
        """Forget what has ended long ago. Raises RetryError."""
        before = self._clock.wall_ns() / 1e9 - self._config.retention_seconds
        await self._store.trim(smallest_id(before))

    async def _ask(
        self, sender: str, consumer: str, rows: Sequence[ClaimedDelivery]
    ) -> tuple[Mapping[UUID, Reply], str | None]:
        try:
            async with asyncio.timeout(self._config.call_seconds):
                ids = sorted(row.message_id for row in rows)
                return await self._calls.resend(sender, consumer, ids), None
        except (OrderchainError, OSError) as error:
            trouble = reason_of(error)
            _log.warning("callback: %s was asked in vain: %s", printable(sender), trouble)
            return {}, trouble

    async def _return(
        self, token: UUID, sender: str, consumer: str, rows: Sequence[ClaimedDelivery]
    ) -> None:
        self._counters.returns += 1
        try:
            async with asyncio.timeout(self._config.call_seconds):
                proofs = {row.message_id: row.proof or b"" for row in rows}
                refused = set(await self._calls.confirmed(sender, consumer, proofs))
        except (OrderchainError, OSError) as error:
            trouble = reason_of(error)
            _log.warning(
                "callback: confirms could not be reported to %s: %s", printable(sender), trouble
            )
            at = self._now() + timedelta(seconds=self._config.rules.unanswered_seconds)
            await self._store.not_returned(token, rows, at, trouble)
        else:
            forged = [row for row in rows if row.message_id in refused]
            if forged:
                self._counters.forged += len(forged)
                _log.warning(
                    "callback: confirms of %s were refused by %s, since their proofs are wrong: %d",
                    printable(consumer), printable(sender), len(forged),
                )  # fmt: skip
                await self._store.refused(token, forged, self._now())
            returned = [row for row in rows if row.message_id not in refused]
            await self._store.returned(token, returned)
            self._counters.returned += len(returned)

    def _outcome(
        self, row: ClaimedDelivery, reply: Reply | None, trouble: str | None, now: datetime
    ) -> AskedDelivery:
        if reply is None:
            self._counters.unanswered += 1
            trouble = trouble or "left out of the answer"
        outcome = after_ask(self._config.rules, row.ask_count, reply)
        due_at = now + timedelta(seconds=outcome.again_seconds)
        return AskedDelivery(
            row.message_id, row.consumer, outcome.is_ended, outcome.ask_count, due_at, trouble
        )

    def _drop(self, error: BadRecord) -> None:
        self._counters.bad_records[error.reason] += 1
        _log.warning("callback: a record was dropped: %s", reason_of(error))

    def _until(self, now: datetime) -> datetime:
        """When a claim ends by itself, since the process that made it must be dead."""
        return now + timedelta(seconds=self._config.call_seconds * 3)

    def _return_at(self) -> datetime:
        """When a confirm that comes now is returned, with others that came meanwhile."""
        return self._now() + timedelta(seconds=self._config.return_seconds)

    def _now(self) -> datetime:
        return _at(self._clock.wall_ns())


def _at(unix_ns: int) -> datetime:
    return _EPOCH + timedelta(microseconds=unix_ns // 1_000)


def _by_sender(taken: Sequence[ClaimedDelivery]) -> dict[tuple[str, str], list[ClaimedDelivery]]:
    groups: dict[tuple[str, str], list[ClaimedDelivery]] = {}
    for row in taken:
        groups.setdefault((row.sender, row.consumer), []).append(row)
    return groups
