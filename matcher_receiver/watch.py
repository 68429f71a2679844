"""The watch on the database's head: what Kafka does not bring shows there."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from matcher_receiver.decisions import Compare, Halt
from matcher_receiver.gaps import archived_gap
from matcher_receiver.kit import AWAY
from matcher_receiver.lag import Lag
from matcher_receiver.pages import compare
from matcher_receiver.waits import SECOND_NS
from orderchain.errors import OrderchainError, RowsArchived

if TYPE_CHECKING:
    from matcher_receiver.decisions import StandingDecision
    from matcher_receiver.kit import Kit
    from orderchain.gap import Cause
    from orderchain.mark import Mark, Standing

_log = logging.getLogger(__name__)


class HeadWatch:
    """Reads where the chain stands, not more often than is good, and says when to look."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._last_use_ns = kit.clock.monotonic_ns()
        self._last_check_ns: int | None = None
        self._last_phantom_ns: int | None = None
        self._prove_at_ns = self._last_use_ns + int(kit.config.prove_seconds * SECOND_NS)
        self._proving: asyncio.Task[None] | None = None
        self.is_contradicted = False
        """Whether the database has denied a place that we have passed: see `answer_denial`."""
        self.patience = kit.config.poll_after_seconds
        """How long to wait for records before a look at the head."""
        self.lag = Lag(kit.clock, kit.core.head.id)
        """How far the database is ahead of what was handed on."""
        self.source_name = "primary"
        """What answered last: `primary` or `standby`."""

    # -- when to look --------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether nothing has been of use for long, whatever has come."""
        idle_ns = self._kit.clock.monotonic_ns() - self._last_use_ns
        return idle_ns > self._kit.config.poll_after_seconds * SECOND_NS

    @property
    def is_wary(self) -> bool:
        """Whether a frame has just told of a row that the database does not have."""
        return self._is_recent(self._last_phantom_ns)

    def _is_recent(self, at_ns: int | None) -> bool:
        """Whether `at_ns` lies less than `check_seconds` back."""
        if at_ns is None:
            return False
        return self._kit.clock.monotonic_ns() - at_ns < self._kit.config.check_seconds * SECOND_NS

    def note_phantom(self) -> None:
        """A frame of a leader told of a row that the primary does not have."""
        self._last_phantom_ns = self._kit.clock.monotonic_ns()

    def note_use(self) -> None:
        """A frame was of use: Kafka brings what it should."""
        self._last_use_ns = now = self._kit.clock.monotonic_ns()
        self.patience = self._kit.config.poll_after_seconds
        if now >= self._prove_at_ns:
            self._begin_proof(now)

    def note_look(self) -> None:
        """Something has just been read, by whatever way."""
        self._last_use_ns = self._kit.clock.monotonic_ns()

    def note_outage(self) -> None:
        """Kafka does not bring what it should: look more often."""
        self.patience = self._kit.config.outage_poll_seconds

    def forgive(self, nanoseconds: int) -> None:
        """Leave a time out of what counts as silence."""
        self._last_use_ns += nanoseconds

    # -- looking -------------------------------------------------------------------------------

    async def poll(self) -> StandingDecision | None:
        """Look at the head, since Kafka says nothing; see `ask`."""
        self.note_look()
        return await self.ask("poll")

    async def check(self) -> StandingDecision | None:
        """Look at the head for a frame's sake; None too when it was looked at just now."""
        if self._is_recent(self._last_check_ns):
            return None
        self._last_check_ns = self._kit.clock.monotonic_ns()
        return await self.ask("frame")

    async def ask(self, cause: Cause) -> StandingDecision | None:
        """Read the standing of our own head; compare if it asks for that. Raises HaltError.

        Returns None when the database is away. That is not waited for: live frames of known
        publishers go on.
        """
        core, counters = self._kit.core, self._kit.counters
        try:
            return await self._ask(cause)
        except AWAY as error:
            counters.database_retries += 1
            _log.warning("chain %d: the database is away: %s", core.chain_id, error)
            return None

    async def answer_denial(self) -> None:
        """Read the standing that the database has denied us, and pause while it is away.

        Until it has answered no frame is judged. Raises HaltError.
        """
        try:
            await self._ask("poll")
        except AWAY as error:
            await self._kit.waits.pause(error)
        else:
            self._kit.waits.succeeded()

    async def _ask(self, cause: Cause) -> StandingDecision:
        """Read and judge the standing of our own head; see `ask`. Raises what AWAY names, too."""
        core = self._kit.core
        standing = await self.read(core.head.id, core.head.batch_last_id)
        self.is_contradicted = False
        decision = core.judge_standing(standing, cause)
        if isinstance(decision, Halt):
            raise decision.error
        if isinstance(decision, Compare):
            await compare(self._kit)
        return decision

    async def read(self, at_id: int, batch_id: int | None = None) -> Standing:
        """Read the standing at a row. Raises as `orderchain.ports.GapSource.standing`."""
        kit = self._kit
        kit.counters.reads += 1
        try:
            standing = await kit.gap_source.standing(at_id, batch_id)
        except RowsArchived as error:
            kit.ledger.add(archived_gap(error, kit.core.head.id, "poll", kit.clock))
            raise
        self.note(standing)
        return standing

    def note(self, standing: Standing) -> None:
        """Remember what a reading tells."""
        self.source_name = "primary" if standing.is_primary else "standby"
        self.lag.see(standing.head.last_id)

    # -- proving -------------------------------------------------------------------------------

    def _begin_proof(self, now: int) -> None:
        """Have the database confirm where we stand, while live frames go on.

        Frames alone would never move the seal that a checkpoint holds, and a restart would compare
        a place of days ago. Nobody waits for the answer, so a database that hangs holds up nothing.
        """
        kit = self._kit
        self._prove_at_ns = now + int(kit.config.prove_seconds * SECOND_NS)
        if not kit.core.is_proven and (self._proving is None or self._proving.done()):
            kit.counters.reads += 1
            self._proving = asyncio.create_task(self._prove(kit.core.head), name="orderchain proof")

    async def _prove(self, asked: Mark) -> None:
        core = self._kit.core
        try:
            standing = await self._kit.gap_source.standing(asked.id, asked.batch_last_id)
            self.is_contradicted = not core.accept_proof(asked, standing)
        except AWAY as error:
            self._kit.counters.database_retries += 1
            _log.info("chain %d: nothing proven at %d: %s", core.chain_id, asked.id, error)
        except OrderchainError:
            self.is_contradicted = True  # what is wrong is said where somebody listens

    async def close(self) -> None:
        """End a proof that is under way."""
        if self._proving is not None:
            self._proving.cancel()
            await asyncio.wait([self._proving])
