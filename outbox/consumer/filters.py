"""Fast filters before the inbox: what was applied lately is known without asking the database.

A filter is believed in one case only: when it says that a message was applied (see
`decisions`). That is recorded in it after the transaction of the effect has committed,
never before. A filter that has lost its memory, or is down, costs database work and nothing more.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from chain_kernel.clock import Clock, SystemClock
from chain_kernel.config import Config
from chain_kernel.errors import SettingError
from chain_kernel.masks import mask_dsn
from chain_kernel.tasks import HomeLoop
from chain_kernel.text import named_reason
from outbox.consumer.decisions import Seen
from outbox.destination import Seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from uuid import UUID


_log = logging.getLogger(__name__)

MEMORY_IDS_MAX: Final = 200_000
"""Ids that the in-process filter remembers by default: about 30 MB."""


class Filter:
    """Remembers message ids for a while. No method raises for a filter that is down.

    This one knows nothing: each message is looked up in the database.
    """

    async def see(self, message_ids: Sequence[UUID]) -> list[Seen]:
        """Return what is known of each id; new ones are known as being worked on from now on."""
        return [Seen.NEW] * len(message_ids)

    async def done(self, message_ids: Sequence[UUID]) -> None:
        """Remember ids as applied: their transaction has committed."""

    async def clear(self, message_ids: Sequence[UUID]) -> None:
        """Forget ids that are not being worked on any more, and were not applied."""

    async def close(self) -> None:
        """Release connections. Never raises."""


class MemoryFilter(Filter):
    """Remembers the last ids in this process: between half of `ids_max` and all of it.

    Raises:
        SettingError: `ids_max` is below 2.
    """

    def __init__(self, ids_max: int = MEMORY_IDS_MAX) -> None:
        if ids_max < 2:
            raise SettingError("ids_max", ids_max, "at least 2")
        self._half = ids_max // 2
        # Two generations, since it is far cheaper to drop a whole one than to drop the oldest id.
        self._young: dict[UUID, Seen] = {}
        self._old: dict[UUID, Seen] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    async def see(self, message_ids: Sequence[UUID]) -> list[Seen]:
        """Return what is known of each id; new ones count as being worked on from now on."""
        found = [
            self._young.get(message_id) or self._old.get(message_id, Seen.NEW)
            for message_id in message_ids
        ]
        self._remember(
            (message_id for message_id, seen in zip(message_ids, found, strict=True)
             if seen is Seen.NEW),
            Seen.WORKING,
        )  # fmt: skip
        return found

    async def done(self, message_ids: Sequence[UUID]) -> None:
        """Remember ids as applied: their transaction has committed."""
        self._remember(message_ids, Seen.DONE)

    async def clear(self, message_ids: Sequence[UUID]) -> None:
        """Forget ids that are not being worked on any more, and were not applied."""
        for message_id in message_ids:
            for generation in (self._young, self._old):
                if generation.get(message_id) is Seen.WORKING:
                    del generation[message_id]

    def _remember(self, message_ids: Iterable[UUID], seen: Seen) -> None:
        for message_id in message_ids:
            self._young[message_id] = seen
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}


class RedisFilterConfig(Config, frozen=True, kw_only=True):
    """The settings of a filter in Redis, shared by all processes of a consumer."""

    url: Annotated[str, Meta(min_length=1)]
    """`redis://` or `rediss://`, with user, password and database number where needed. One server,
    or one with replicas: a script touches many keys at once, which a cluster refuses."""
    consumer: Annotated[str, Meta(min_length=1)]
    working_seconds: Annotated[int, Meta(ge=1, le=86_400)] = 60
    """Seconds that an id counts as being worked on. A killed worker leaves it so."""
    done_seconds: Annotated[int, Meta(ge=1, le=30 * 86_400)] = 3_600
    """Seconds that an id is known as applied: repeats mostly come within minutes. It takes 100
    bytes per id."""
    answer_seconds: Seconds = 0.5
    """Deadline of one question. A slow filter does not help: after the deadline the database is
    asked."""
    away_seconds: Seconds = 5.0
    """Pause of a Redis that failed."""

    def __repr__(self) -> str:
        return f"RedisFilterConfig({mask_dsn(self.url)}, {self.consumer!r})"


class RedisFilter(Filter):
    """Remembers ids in Redis, by `SET NX` with an expiry.

    Its memory may vanish at any time, but it must never go back: it must not survive the database
    that it describes. After restoring the database from a backup, flush the filter.

    Raises:
        ImportError: the extra `outbox` is not installed.
    """

    def __init__(self, config: RedisFilterConfig, clock: Clock | None = None) -> None:
        from redis.asyncio import Redis  # late: only this filter needs it
        from redis.exceptions import RedisError

        self._config = config
        self._clock = clock or SystemClock()
        self._prefix = f"orderchain:{config.consumer}:".encode()
        self._errors: tuple[type[Exception], ...] = (RedisError, OSError, TimeoutError)
        self._redis = Redis.from_url(
            config.url,
            socket_timeout=config.answer_seconds,
            socket_connect_timeout=config.answer_seconds,
        )
        self._see = self._redis.register_script(_SEE)
        self._done = self._redis.register_script(_DONE)
        self._clear = self._redis.register_script(_CLEAR)
        self._home = HomeLoop("filter in Redis")
        self._away_until_ns = 0

    @property
    def is_away(self) -> bool:
        """True if Redis has failed just now, and is left alone."""
        return self._clock.monotonic_ns() < self._away_until_ns

    async def see(self, message_ids: Sequence[UUID]) -> list[Seen]:
        """Return what is known of each id; new ones count as being worked on from now on."""
        answer = await self._ask(self._see, message_ids, [self._config.working_seconds])
        if answer is None or len(answer) != len(message_ids):
            return [Seen.NEW] * len(message_ids)
        return [_SEEN.get(word, Seen.NEW) for word in answer]

    async def done(self, message_ids: Sequence[UUID]) -> None:
        """Remember ids as applied: their transaction has committed."""
        await self._ask(self._done, message_ids, [self._config.done_seconds])

    async def clear(self, message_ids: Sequence[UUID]) -> None:
        """Forget ids that are not being worked on any more, and were not applied."""
        await self._ask(self._clear, message_ids, [])

    async def close(self) -> None:
        """Release connections. Raises SettingError in another event loop."""
        self._home.check()
        self._home.leave()
        with suppress(*self._errors):
            await self._redis.aclose()

    async def _ask(
        self,
        script: Callable[..., Awaitable[Any]],
        message_ids: Sequence[UUID],
        arguments: list[int],
    ) -> list[int] | None:
        """Return the answer of a script; None if there is none."""
        self._home.join()
        if not message_ids or self.is_away:
            return None
        keys = [self._prefix + message_id.bytes for message_id in message_ids]
        try:
            answer: list[int] = await script(keys=keys, args=arguments)
        except self._errors as error:
            away_ns = int(self._config.away_seconds * 1e9)
            self._away_until_ns = self._clock.monotonic_ns() + away_ns
            _log.warning(
                "the filter in Redis is away, the inbox decides alone: %s", named_reason(error)
            )
            return None
        return answer


_SEEN: Final = {0: Seen.NEW, 1: Seen.WORKING, 2: Seen.DONE}

_SEE: Final = """
local found = {}
for at, key in ipairs(KEYS) do
    if redis.call('SET', key, 'w', 'NX', 'EX', ARGV[1]) then
        found[at] = 0
    elseif redis.call('GET', key) == 'd' then
        found[at] = 2
    else
        found[at] = 1
    end
end
return found
"""
_DONE: Final = """
for _, key in ipairs(KEYS) do redis.call('SET', key, 'd', 'EX', ARGV[1]) end
"""
_CLEAR: Final = """
for _, key in ipairs(KEYS) do
    if redis.call('GET', key) == 'w' then redis.call('DEL', key) end
end
"""
