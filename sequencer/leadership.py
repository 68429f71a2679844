"""Becoming the leader of a chain, and staying it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from orderchain.errors import ChainLed, ConnectError, Fenced, OrderchainError, RetryError
from orderchain.reasons import reason_of
from sequencer.framing import highest_id
from sequencer.lease import LeaseWatch

if TYPE_CHECKING:
    from orderchain.batch import Term
    from orderchain.clock import Clock
    from orderchain.ports import ChainStore, FrameSink, Lease
    from sequencer.config import SequencerConfig

_log = logging.getLogger(__name__)

_BEATS_PER_LEASE: Final = 5
"""Beats that may get lost before a leader seems dead, less one."""

_LOOKS_PER_LEASE: Final = 20
"""How finely a standby measures the stand-still: it takes over a twentieth late at most."""

_LOOK_SECONDS_MAX: Final = 0.5
"""A leader that hands over is followed within this time, however long the lease is."""


_LAST_RECORDS: Final = 4
"""Looked at for ids of a life that was lost. One would do, but for records that are no frames."""

_LAST_RECORDS_SHARE: Final = 0.4
_LAST_RECORDS_SECONDS_MAX: Final = 5.0
"""How long the broker is waited for, as a share of the lease and at most: the lease of a new leader
is raised after that, the first time a fifth of it later."""


class Leadership:
    """Holds the term of this process, from the first take-over to the hand-over."""

    def __init__(
        self,
        config: SequencerConfig,
        store: ChainStore,
        lease: Lease,
        sink: FrameSink,
        clock: Clock,
    ) -> None:
        self._config = config
        self._store = store
        self._lease = lease
        self._sink = sink
        self._looking: set[asyncio.Task[list[bytes | None]]] = set()
        self._clock = clock
        self._is_changing = False
        self.term: Term | None = None
        self.take_overs = 0
        # Why the topic's last frames were not looked at; empty where they were, or it was logged.
        self._why_not_looked = ""

    async def acquire(self) -> Term:
        """Become the leader, once nobody else is.

        Waits for up to the time of a lease to see whether a leader lives. Then, or as a standby
        when it is dead, takes over. Raises ChainLed when one lives and we are no standby; else as
        `ChainStore.look`.
        """
        watch = LeaseWatch(int(self._config.lease_seconds * 1e9))
        while True:
            try:
                sight = await self._store.look()
                if watch.may_take_over(sight, self._clock.monotonic_ns()):
                    return await self._begin(await self._store.take_over(self._config.name, sight))
                if watch.is_led and not self._config.standby:
                    raise ChainLed(self._config.chain_id, sight.owner)
            except Fenced:
                # Another one was faster, or the leader spoke up just now: look again.
                _log.info("chain %d: another process was faster", self._config.chain_id)
            except (RetryError, ConnectError) as error:
                # A standby outlives the database that it waits for; a start does not.
                if not (self._config.standby and watch.has_looked):
                    raise
                _log.warning("chain %d: %s; looking again", self._config.chain_id, error)
            pause = min(self._config.lease_seconds / _LOOKS_PER_LEASE, _LOOK_SECONDS_MAX)
            await asyncio.sleep(pause)

    async def renew_term(self) -> Term:
        """Raise our own epoch on a new connection. Raises Fenced when another leads now."""
        if self.term is None:
            raise RetryError("not the leader yet")
        # Until it has succeeded: the answer of a take-over may be lost, and then the lease is at an
        # epoch of ours that we do not know of yet.
        self._is_changing = True
        term = await self._begin(await self._store.take_over_again(self._config.name, self.term))
        self._is_changing = False
        self.warn_of_topic()
        return term

    def warn_of_topic(self) -> None:
        """Log that the topic's last frames were not looked at, once per take-over.

        Apart from the take-over: a start that is refused since it needs the broker says so in one
        line, and need not warn of what follows from it.
        """
        if self._why_not_looked:
            _log.warning(
                "chain %d: the topic's last frames were not looked at: %s",
                self._config.chain_id,
                self._why_not_looked,
            )
            self._why_not_looked = ""

    async def keep(self) -> None:
        """Say that we live, at a steady pace, until cancelled. Raises Fenced when another leads."""
        while True:
            await asyncio.sleep(self._config.lease_seconds / _BEATS_PER_LEASE)
            await self._beat()

    async def hand_over(self) -> None:
        """Let a standby take over at once. To be called when nothing is left to commit."""
        if self.term is not None:
            with suppress(OrderchainError):
                await self._lease.release(self.term)

    async def _beat(self) -> None:
        term = self.term
        if term is None or self._is_changing:
            return
        try:
            await self._lease.renew(term)
        except Fenced:
            # Our own take-over may have come in between: then the lease is at the next epoch.
            if self.term is term and not self._is_changing:
                raise
        except (RetryError, ConnectError) as error:
            _log.warning("chain %d: lease: %s", term.chain_id, error)

    async def _begin(self, term: Term) -> Term:
        """Hold `term`, with what the topic's last frames tell of ids that the database lacks."""
        seen_id = highest_id(await self._last_records(term), term.chain_id)
        if seen_id > term.last_id:
            _log.warning(
                "chain %d: the topic holds frames up to %d, the database rows up to %d: of a life "
                "of the chain that was lost, or forged; their ids are not given out again",
                term.chain_id,
                seen_id,
                term.last_id,
            )
            term = replace(term, seen_id=seen_id)
        self.term = term
        self.take_overs += 1
        return term

    async def close(self) -> None:
        """End what is still under way; never raises."""
        for looking in self._looking:
            looking.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)

    def _end_look(self, looking: asyncio.Task[list[bytes | None]]) -> None:
        self._looking.discard(looking)
        if not looking.cancelled():
            looking.exception()  # looked at, so that asyncio does not complain of it

    async def _last_records(self, term: Term) -> list[bytes | None]:
        """Return the last records of the topic; none when the broker does not answer soon."""
        looking = asyncio.create_task(
            self._sink.last_records(term.topic, term.partition, _LAST_RECORDS),
            name="orderchain last records",
        )
        # What does not end in time is cancelled, and its end not waited for: a client of a broker
        # that is away takes seconds for it.
        self._looking.add(looking)
        looking.add_done_callback(self._end_look)
        seconds = min(self._config.lease_seconds * _LAST_RECORDS_SHARE, _LAST_RECORDS_SECONDS_MAX)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(looking)
        except (RetryError, TimeoutError) as error:
            is_silent = isinstance(error, TimeoutError)
            self._why_not_looked = "no answer" if is_silent else reason_of(error)
            return []
        finally:
            looking.cancel()
