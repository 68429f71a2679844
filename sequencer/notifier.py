"""Notifies receivers of a chain that has no broker: they read its rows from the database."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from chain_kernel.clock import Backoff
from chain_kernel.errors import OrderchainError
from chain_kernel.text import SummedLog
from sequencer.publisher import heartbeat_frame, seconds_to_beat
from sequencer.stats import Timing

if TYPE_CHECKING:
    from random import Random

    from chain_kernel.clock import Clock
    from chain_kernel.model import Term
    from chain_kernel.ports import Lease
    from chain_kernel.seal import Batch
    from sequencer.config import SequencerConfig
    from sequencer.publisher import Skip
    from sequencer.stats import SequencerCounters

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.2
_RETRY_SECONDS_MAX: Final = 5.0
"""Back-off after a notification that failed. Receivers poll meanwhile."""


class Notifier:
    """Announces the head of a chain without broker, in the place of a `Publisher`.

    A notification is the frame of a heartbeat. It comes after the commit, never inside it: the
    server serializes the commits of all transactions that notify. There is no queue, since only the
    newest head matters, and no range is ever skipped: what is committed can be read.
    """

    queue_bytes: Final = 0
    is_full: Final = False
    unpublished_seconds: Final = 0.0

    def __init__(
        self,
        config: SequencerConfig,
        lease: Lease,
        term: Term,
        clock: Clock,
        counters: SequencerCounters,
        *,
        random: Random | None = None,
    ) -> None:
        """Notify over `lease`, from `term` on."""
        self._tuning = config.tuning
        self._lease = lease
        self._term = term
        self._clock = clock
        self._counters = counters
        self._backoff = Backoff(_RETRY_SECONDS, _RETRY_SECONDS_MAX, random=random)
        self._outage = SummedLog(_log, logging.WARNING)
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._sent_ns = clock.monotonic_ns()
        self._unanswered_since_ns: int | None = None
        self.published_id = term.published_id
        """The end of the last term with a broker; the next take-over moves it to the head."""
        self.head_id, self._head_seal = term.last_id, term.last_seal
        self.refusal = ""
        """The reason why the last notification failed; empty when it did not."""
        self.timing = Timing()

    @property
    def away_seconds(self) -> float:
        """Time for which no notification has succeeded; 0 when they do."""
        if self._unanswered_since_ns is None:
            return 0.0
        return (self._clock.monotonic_ns() - self._unanswered_since_ns) / 1e9

    def lead(self, term: Term) -> None:
        """From now on, notify under a newer term of this same process."""
        self._term = term
        self.published_id = term.published_id

    def offer(self, batch: Batch, trace: object = None) -> None:
        """Note that `batch` was committed. Never waits."""
        self.head_id, self._head_seal = batch.last_id, batch.seal
        self._idle.clear()
        self._wake.set()

    async def room(self) -> None:
        """There is always room."""

    def close(self) -> None:
        """Nothing is held."""

    async def drain(self) -> None:
        """Return once the head was notified, or a try has failed: receivers poll then."""
        await self._idle.wait()

    async def run(self, skip: Skip) -> None:
        """Notify until cancelled: after each commit, but not too often, and when none comes."""
        self._wake.set()  # receivers learn of the new term
        while True:
            await self._until_due()
            try:
                await self._notify()
            except OrderchainError as error:
                # Whatever it is, such as a server whose queue is full: orders are committed, and
                # receivers poll. The lease finds out by itself what must end a leader.
                self._idle.set()
                self._counters.send_failures += 1
                self.refusal = str(error)
                chain = f"chain {self._term.chain_id}"
                self._outage.repeat(f"{chain}: notify: {error}; receivers poll meanwhile")
                await asyncio.sleep(self._backoff.next_seconds())
            else:
                self._backoff.reset()
                self._outage.log()

    async def _until_due(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if not self._wake.is_set():
            seconds = seconds_to_beat(now_ns / 1e9, self._tuning.heartbeat_seconds)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        due_ns = self._sent_ns + int(self._tuning.notify_interval_seconds * 1e9)
        if (left_ns := due_ns - self._clock.monotonic_ns()) > 0:
            await asyncio.sleep(left_ns / 1e9)

    async def _notify(self) -> None:
        self._wake.clear()
        head_id = self.head_id
        frame = heartbeat_frame(self._term, last_id=head_id, last_seal=self._head_seal)
        began_ns = self._sent_ns = self._clock.monotonic_ns()
        if self._unanswered_since_ns is None:
            self._unanswered_since_ns = began_ns
        await self._lease.notify(self._term, frame)
        self._unanswered_since_ns, self.refusal = None, ""
        self.timing.add((self._clock.monotonic_ns() - began_ns) / 1e9)
        self._counters.heartbeats += 1
        if self.head_id == head_id:
            self._idle.set()
