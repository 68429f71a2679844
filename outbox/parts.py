"""The parts of a service: each must live, and when one ends all of them do.

A part that dies silently is worse than none: its work is not done, unseen. So its error
ends all parts, and nothing new is accepted from then on.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Self, TypeVar

from chain_kernel.clients.kafka_errors import DRIVER_ERRORS, lasting_refusal
from chain_kernel.clock import Backoff
from chain_kernel.errors import OrderchainError, TopicError
from chain_kernel.tasks import HomeLoop, uninterrupted
from chain_kernel.text import SummedLog, named_reason, reason_of
from outbox.errors import LASTING, PartEnded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine
    from typing import Any

    from chain_kernel.clients.kafka_config import KafkaConfig

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = (0.25, 1.0)
"""Pause between two tries of a part that was interrupted by an error that may pass."""


class Parts:
    """The tasks of one service, by name."""

    def __init__(self, service: str, on_end: Callable[[], None] = lambda: None) -> None:
        """`on_end` is called once, when a part has ended that should not have."""
        self._service = service
        self.home = HomeLoop(service)
        self._on_end = on_end
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended = asyncio.Event()
        self._spared: set[str] = set()  # not cancelled when another one has ended
        self._expected: set[str] = set()  # those whose end is no failure
        self._cancelled: set[str] = set()
        self.failure: PartEnded | None = None
        """Why the service no longer works; its cause is what the part raised, if anything."""

    @property
    def are_begun(self) -> bool:
        """True if any part was begun."""
        return bool(self._tasks)

    @property
    def names(self) -> set[str]:
        """The names of all parts."""
        return set(self._tasks)

    def begin(
        self, name: str, work: Coroutine[Any, Any, None], *, is_spared: bool = False
    ) -> asyncio.Task[None]:
        """Run `work` as a part; any end of it ends all parts.

        `is_spared`: it is not cancelled when another part ends, since it ends by itself, in order.
        """
        self.home.enter()
        task = asyncio.create_task(work, name=f"orderchain {self._service} {name}")
        self._tasks[name] = task
        if is_spared:
            self._spared.add(name)
        task.add_done_callback(lambda done: self._one_ended(name, done))
        return task

    def check(self) -> None:
        """Raise PartEnded when a part has ended, SettingError in another loop or thread."""
        self.home.check()
        if self.failure is not None:
            raise PartEnded(self._service, self.failure.part) from self.failure.__cause__

    async def wait(self) -> None:
        """Wait for the end of a part; raise what it raised, or PartEnded if it raised nothing.

        Returns if all parts were ended in order.
        """
        self.home.check()
        await self._ended.wait()
        if self.failure is not None:
            raise self.failure.__cause__ or self.failure

    async def during(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Return what `work` returns. Raises PartEnded as soon as a part ends, and cancels it."""
        self.check()
        doing = asyncio.ensure_future(work())
        ending = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait([doing, ending], return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                self.check()
            return await doing
        finally:
            ending.cancel()
            doing.cancel()
            await asyncio.wait([doing, ending])

    def cancel(self, names: Collection[str]) -> None:
        """Cancel parts, each of them once: a second cancel would cut off the way it ends."""
        for name in sorted(set(names) - self._cancelled):
            self._cancelled.add(name)
            self._expected.add(name)
            self._tasks[name].cancel()

    def expect_end(self, name: str) -> None:
        """Allow a part to end by itself: that is no longer a failure."""
        self._expected.add(name)

    async def end(self, timeout_seconds: float | None = None) -> None:
        """Cancel the parts that were not cancelled yet, and wait until all end; never raises."""
        self.cancel(self._tasks)
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_seconds)
        self._tasks.clear()
        self._ended.set()
        self.home.leave()

    def _one_ended(self, name: str, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if name in self._expected or self.failure is not None:
            if error is not None:
                _log.warning("%s: %s ended with %s", self._service, name, named_reason(error))
            return
        self.failure = PartEnded(self._service, name)
        self.failure.__cause__ = error
        _log.error("%s; its error: %s", self.failure, named_reason(error))
        self._ended.set()
        self._on_end()
        self.cancel(set(self._tasks) - self._spared)


class ServiceOfParts(ABC):
    """A service that is started, runs as parts, and is stopped in order; use it by `async with`.

    Each of its parts must live. When one ends, for any reason, all of them end: `run` and the end
    of `async with` raise its error.
    """

    _parts: Parts

    @abstractmethod
    async def start(self) -> None:
        """Begin."""

    @abstractmethod
    async def _stop(self) -> None:
        """End all parts in order, within a deadline; never raise."""

    async def run(self) -> None:
        """Raise the error of the first part that ends; return at a stop."""
        await self._parts.wait()

    async def stop(self) -> None:
        """End in order, within a deadline; also when cancelled.

        Raises:
            SettingError: in another event loop or thread than the one that started it.
        """
        self._parts.home.check()
        await uninterrupted(self._stop())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.stop()
        if kind is None:
            self._parts.check()


async def endless(
    name: str, work: Callable[[], Awaitable[None]], kafka: KafkaConfig | None = None
) -> None:
    """Do `work`, and retry it after an error that may pass. Raises any other error.

    Errors of Kafka's client may pass, too, if `kafka` names the brokers that it talks to.
    """
    passing = (OrderchainError,) if kafka is None else (OrderchainError, *DRIVER_ERRORS)
    loop, pauses = asyncio.get_running_loop(), Backoff(*_PAUSE_SECONDS)
    outage = SummedLog(_log, logging.WARNING)
    while True:
        began = loop.time()
        try:
            await work()
        except LASTING:
            raise
        except passing as error:  # a server that restarts refuses connections, too
            if (task := asyncio.current_task()) is not None and task.cancelling():
                # A group of tasks that fails as it is cancelled raises its error alone.
                raise asyncio.CancelledError from error
            refusal = None if kafka is None else lasting_refusal(error, kafka)
            if isinstance(refusal, TopicError):
                raise refusal from error
            if loop.time() - began > _PAUSE_SECONDS[1]:  # it has worked meanwhile
                pauses.reset()
                outage.log()
            outage.repeat(f"{name}: {reason_of(refusal or error)}")
        await asyncio.sleep(pauses.next_seconds())
