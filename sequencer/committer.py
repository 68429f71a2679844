"""Commits batches one after the other, and finds out what became of each of them."""

from __future__ import annotations

import asyncio
import logging
from itertools import chain as flatten
from typing import TYPE_CHECKING, Final

from orderchain.errors import (
    ConnectError,
    Fenced,
    PrimaryBehind,
    RetryError,
    UnknownOutcome,
)
from sequencer.core import SequencerCore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orderchain.batch import Batch, IntakeMark, Term
    from orderchain.clock import Clock
    from orderchain.ports import ChainStore
    from sequencer.batcher import Entry
    from sequencer.config import SequencerConfig
    from sequencer.leadership import Leadership
    from sequencer.publisher import Publisher

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.1
_RETRY_SECONDS_MAX: Final = 2.0
"""Back-off while the database is away: doubles up to this, so its return is seen soon."""


class Assembled:
    """Entries and the batch that they became, under the term of `core`."""

    __slots__ = ("batch", "core", "entries", "intake")

    def __init__(self, entries: Sequence[Entry], core: SequencerCore, wall_ns: int) -> None:
        self.entries = entries
        self.core = core
        self.intake: list[IntakeMark] = [mark for entry in entries if (mark := entry.intake)]
        orders = (
            entries[0].orders
            if len(entries) == 1
            else list(flatten.from_iterable(entry.orders for entry in entries))
        )
        self.batch: Batch = core.assemble(orders, wall_ns)


class Committer:
    """Commits for a leader, and raises its epoch when an outcome is not known.

    The three outcomes of a commit are handled in one place, `_commit_until_known`: done is
    answered, not done is tried again, and unknown is first made known. That takes a new epoch: as
    long as the old transaction may still land, reading back sees nothing and proves nothing.
    """

    def __init__(
        self, config: SequencerConfig, store: ChainStore, leadership: Leadership, clock: Clock
    ) -> None:
        self._config = config
        self._store = store
        self._leadership = leadership
        self._clock = clock
        self._core: SequencerCore | None = None
        self._publisher: Publisher | None = None
        # Invariant: never falls, and no primary that we lead may stand below it.
        self._acknowledged_id = 0
        self.rows = 0
        self.batches = 0
        self.unknown_outcomes = 0

    @property
    def head_persisted(self) -> int:
        """The last id that is known to be committed."""
        return self._acknowledged_id

    def lead(self, term: Term) -> None:
        """Go on from where `term` found the chain. Raises PrimaryBehind."""
        if term.last_id < self._acknowledged_id:
            raise PrimaryBehind(term.chain_id, term.last_id, self._acknowledged_id)
        self._acknowledged_id = term.last_id
        self._core = SequencerCore(term, takeover_skip_ids=self._config.takeover_skip_ids)
        if self._publisher is not None:
            self._publisher.lead(term)

    def publish_to(self, publisher: Publisher) -> None:
        """Offer every committed batch to `publisher` from now on."""
        self._publisher = publisher

    def assemble(self, entries: Sequence[Entry]) -> Assembled:
        """Make the next batch of `entries`, behind everything assembled before."""
        if self._core is None:
            raise RetryError("not the leader yet")
        return Assembled(entries, self._core, self._clock.wall_ns())

    async def commit(self, assembled: Assembled) -> None:
        """Commit, answer the callers, and hand the batch on to be published.

        Raises when this process can lead no longer; the callers have their answers then too.
        """
        try:
            batch = await self._commit_until_known(assembled)
        except BaseException as error:
            for entry in assembled.entries:
                if not entry.done.done():
                    entry.done.set_exception(_as_answer(error, assembled.batch))
            raise
        self._acknowledged_id = batch.last_id
        self.rows += batch.row_count
        self.batches += 1
        if self._publisher is not None:
            self._publisher.offer(batch)
        _answer(assembled.entries, batch)

    async def _commit_until_known(self, assembled: Assembled) -> Batch:
        """Return the batch as it was committed, which another epoch may have made anew."""
        if assembled.core is not self._core:
            # The batch before it went wrong and raised the epoch: ids and seal are void.
            assembled = self.assemble(assembled.entries)
        deadline_ns = self._clock.monotonic_ns() + int(self._config.recover_seconds * 1e9)
        while True:
            batch = assembled.batch
            published_id = self._publisher.published_id if self._publisher else 0
            try:
                await self._store.commit(batch, published_id=published_id, intake=assembled.intake)
            except UnknownOutcome as error:
                self.unknown_outcomes += 1
                _log.warning("%s; taking over again to find out", error)
                if await self._find_out(batch, error, deadline_ns):
                    return batch
            except RetryError as error:
                _log.warning("chain %d: %s; trying again", batch.chain_id, error)
                await self._take_over_until(deadline_ns, error)
            else:
                return batch
            assembled = self.assemble(assembled.entries)

    async def _find_out(self, batch: Batch, unknown: UnknownOutcome, deadline_ns: int) -> bool:
        """Raise the epoch, then say whether `batch` was committed. Raises `unknown` at the end."""
        while True:
            fenced: Fenced | None = None
            try:
                await self._take_over_until(deadline_ns, unknown)
            except Fenced as error:
                # Another leader has raised it: that ends the old transaction just as well.
                fenced = error
            try:
                is_committed = await self._store.has_committed(batch)
            except (RetryError, ConnectError):
                continue
            if fenced is None:
                return is_committed
            if is_committed:
                self._acknowledged_id = batch.last_id
                return True
            raise fenced

    async def _take_over_until(self, deadline_ns: int, cause: Exception) -> None:
        """Take over, trying again while the database is away. Raises `cause` at the deadline."""
        pause = _RETRY_SECONDS
        while True:
            if self._clock.monotonic_ns() >= deadline_ns:
                raise cause
            try:
                self.lead(await self._leadership.renew_term())
            except (RetryError, ConnectError) as error:
                _log.warning("chain %d: %s; trying again", self._config.chain_id, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _RETRY_SECONDS_MAX)
            else:
                return


def _answer(entries: Sequence[Entry], batch: Batch) -> None:
    """Tell every caller where its orders stand; a cancelled one has gone, its orders have not."""
    index = 0
    for entry in entries:
        if not entry.done.done():
            entry.done.set_result((batch, index))
        index += len(entry.orders)


def _as_answer(error: BaseException, batch: Batch) -> Exception:
    """Return what callers are told. Stopped in mid commit, nothing is known."""
    if isinstance(error, Exception):
        return error
    return UnknownOutcome(batch.chain_id, batch.epoch, batch.first_id, batch.last_id)
