"""Several servers in order of preference: standbys carry the fills, the primary judges."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated, Final, Self, TypeVar

import msgspec
from msgspec import Meta

from chain_kernel.clients.session import ClosedAtExit
from chain_kernel.clock import Backoff
from chain_kernel.config import Config
from chain_kernel.errors import (
    ConnectError,
    GapError,
    HaltError,
    NotYetReadable,
    OrderchainError,
    RefusedError,
    RetryError,
    SettingError,
)
from gapfill.config import Seconds
from gapfill.reader import GapReader

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Sequence
    from random import Random

    from chain_kernel.clients.database_config import DatabaseConfig
    from chain_kernel.model import ChainPosition, Mark, Run
    from chain_kernel.ports import GapSource
    from gapfill.config import GapReaderConfig

_log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 0.02
"""The pause before the first retry at a standby: replay most often lags by a few milliseconds."""

_DOUBLINGS_MAX: Final = 3
"""Doublings of `avoid_seconds`: a standby that is there again is found within a minute."""

_AWAY: Final = (RetryError, ConnectError)
_T = TypeVar("_T")


class PreferenceConfig(Config, frozen=True, kw_only=True):
    """A fill's patience with a server before it turns to the next one."""

    standby_seconds: Seconds = 2.0
    """Time to wait for an answer of a standby while another server is there, and for rows that it
    lacks, since it last returned some. A longer time spares the primary, and is the latency of one
    fill per `avoid_seconds` while the standby hangs."""
    pause_seconds_max: Seconds = 0.5
    """The longest pause between two reads of a standby that lags."""
    avoid_seconds: Annotated[float, Meta(ge=0, le=3600)] = 5.0
    """Time for which an unresponsive server is tried last, and a standby that lagged too long is
    not waited for. Rows are read elsewhere for twice as long after the second time in a row, up to
    eight times as long. Without this, every read would wait for a server that is gone or hangs."""


class PreferredSources(ClosedAtExit):
    """Implements GapSource of the kernel's ports over several servers of one chain.

    Rows are read from the first server that has them: the standbys, in the order given, each for as
    long as `standby_seconds` allows, then the primary, the last one given. Only the primary reports
    where the chain is, who leads it, what is missing and what contradicts; while it is away a
    standby reports where the chain was, which never halts and makes no nonce known.

    When the last server given is away and another one reports that it is a primary, it was
    promoted: from then on that one judges.
    """

    def __init__(
        self,
        sources: Sequence[GapSource],
        config: PreferenceConfig | None = None,
        *,
        random: Random | None = None,
    ) -> None:
        if not sources:
            raise SettingError("sources", "none", "at least one, the primary")
        chains = sorted({source.chain_id for source in sources})
        if len(chains) > 1:
            raise SettingError("chains of the sources", chains, "one chain")
        self._sources = list(sources)
        self._judge = self._sources[-1]
        self._config = config or PreferenceConfig()
        self._random = random
        self._avoided_until: dict[int, float] = {}
        self._late_until: dict[int, float] = {}
        self._unread_until: dict[int, float] = {}
        self._setbacks: dict[int, int] = {}  # of a standby since it last returned rows

    @classmethod
    def of_databases(
        cls,
        reader: GapReaderConfig,
        standbys: Sequence[str | DatabaseConfig],
        config: PreferenceConfig | None = None,
    ) -> Self:
        """Return sources over the `standbys`, and `reader`'s own database last."""
        configs = [msgspec.structs.replace(reader, database=database) for database in standbys]
        return cls([GapReader(each) for each in (*configs, reader)], config)

    async def close(self) -> None:
        """Close all of them, at once; never raises, never waits beyond their deadlines."""
        await asyncio.gather(*(source.close() for source in self._sources))

    @property
    def chain_id(self) -> int:
        """The chain that all of them read."""
        return self._judge.chain_id

    # -- what the primary reports --------------------------------------------------------------

    async def standing(self, at_id: int, batch_id: int | None = None) -> ChainPosition:
        """Return what the primary reports."""
        known: ChainPosition | None = None
        first_error: Exception | None = None
        for source in self._judges():
            if known is not None and self._is_avoided(source):
                continue
            try:
                standing = await source.standing(at_id, batch_id)
            except _AWAY as error:
                self._avoid(source, error)
                first_error = first_error or error
                continue
            except (RefusedError, GapError):
                if source is self._judge:
                    raise
                continue  # a standby may not know the chain yet
            if standing.is_primary:
                self._judge = source
                return standing
            known = known or standing
        if known is None:
            raise first_error or RetryError("no server answers")
        return known

    async def row_at_or_before(self, until_id: int) -> int:
        """Return a row's id."""
        await self.standing(0)  # finds out who judges
        return await self._judge.row_at_or_before(until_id)

    async def row_before_time(self, time_us: int) -> int:
        """Return a row's id."""
        await self.standing(0)
        return await self._judge.row_before_time(time_us)

    def _judges(self) -> list[GapSource]:
        """Return the servers in the order in which they are asked for a standing."""
        others = [source for source in reversed(self._sources) if source is not self._judge]
        return sorted([self._judge, *others], key=self._is_avoided)

    # -- rows ----------------------------------------------------------------------------------

    async def runs(
        self, after: Mark, until_id: int, *, from_primary: bool = False
    ) -> AsyncGenerator[Run, None]:
        """Yield linked runs."""
        for source in [] if from_primary else self._readers():
            async with aclosing(self._runs_of(source, after, until_id)) as runs:
                async for run in runs:
                    yield run
                    after = run.end
            if after.id >= until_id:
                return
        last = self._judge.runs(after, until_id, from_primary=from_primary)
        try:
            async with aclosing(last) as runs:
                async for run in runs:
                    yield run
        except _AWAY:
            # A fill asks nothing else until it ends: else the next try would ask the same server,
            # though another was promoted. One page that fails is no reason to judge by another.
            with suppress(OrderchainError):
                await self.standing(0)
            raise

    def _readers(self) -> list[GapSource]:
        """Return the standbys that are worth asking, in the order of preference."""
        now = asyncio.get_running_loop().time()
        is_away = self._is_avoided(self._judge)  # then a standby is all there is
        until = self._avoided_until if is_away else self._unread_until
        return [
            source
            for source in self._sources
            if source is not self._judge and now >= until.get(id(source), 0.0)
        ]

    async def _runs_of(
        self, source: GapSource, after: Mark, until_id: int
    ) -> AsyncGenerator[Run, None]:
        """Yield what a standby has; end where it has no more, for any reason.

        One that recently lagged too long is asked, but not waited for: a standby that hangs
        delays an occasional fill, not every fill.
        """
        loop = asyncio.get_running_loop()
        is_late = loop.time() < self._late_until.get(id(source), 0.0)
        deadline = loop.time() + (0.0 if is_late else self._config.standby_seconds)
        pause_max = self._config.pause_seconds_max
        backoff = Backoff(min(FIRST_PAUSE_SECONDS, pause_max), pause_max, random=self._random)
        while after.id < until_id:
            try:
                # A primary that is not the one that judges may hold another history.
                if (await self._answer(source, source.standing(after.id))).is_primary:
                    return
                async with aclosing(source.runs(after, until_id)) as runs:
                    while (run := await self._answer(source, anext(runs, None))) is not None:
                        yield run
                        after = run.end
                        deadline = loop.time() + self._config.standby_seconds
                        backoff.reset()
                        is_late = False
                        self._late_until.pop(id(source), None)
                        self._setbacks.pop(id(source), None)
            except NotYetReadable:
                pause = backoff.next_seconds()
                if loop.time() + pause > deadline:
                    if not is_late:
                        self._late_until[id(source)] = loop.time() + self._next_avoidance(source)
                    return
                await asyncio.sleep(pause)
            except _AWAY as error:
                self._avoid(source, error)
                return
            except (RefusedError, GapError, HaltError):
                return  # its answer does not count

    async def _answer(self, source: GapSource, awaited: Awaitable[_T]) -> _T:
        """Return what a standby answers. Raises RetryError where that takes too long, and another
        server is there.
        """
        others = (each for each in self._sources if each is not source)
        has_others = not all(map(self._is_avoided, others))
        seconds = self._config.standby_seconds
        try:
            async with asyncio.timeout(seconds if has_others else None):
                return await awaited
        except TimeoutError as error:
            number = self._sources.index(source) + 1
            servers = len(self._sources)
            raise RetryError(f"server {number} of {servers}: no answer in {seconds:g} s") from error

    # -- who is away ---------------------------------------------------------------------------

    def _avoid(self, source: GapSource, error: Exception) -> None:
        now, seconds = asyncio.get_running_loop().time(), self._config.avoid_seconds
        self._avoided_until[id(source)] = now + seconds
        if source is not self._judge:
            seconds = self._next_avoidance(source)
            self._unread_until[id(source)] = now + seconds
        if len(self._sources) > 1:
            # Else a standby with a wrong password would not be noticed: the others do its work.
            _log.warning("asked last for %g s: %s", seconds, error)

    def _next_avoidance(self, source: GapSource) -> float:
        """Return for how long no rows are read, or waited for, there: longer each time in a row."""
        setbacks = self._setbacks[id(source)] = self._setbacks.get(id(source), 0) + 1
        return self._config.avoid_seconds * (1 << min(setbacks - 1, _DOUBLINGS_MAX))

    def _is_avoided(self, source: GapSource) -> bool:
        return asyncio.get_running_loop().time() < self._avoided_until.get(id(source), 0.0)
