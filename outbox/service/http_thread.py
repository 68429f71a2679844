"""A thread that serves HTTP, apart from the event loop that works, and its view of that loop.

A stranger who keeps the thread busy delays metrics and requests, never a commit or a sweep.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from chain_kernel.clients.http_server import HttpServer

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

    from chain_kernel.clients.http_server import AsgiApp, HttpLimits

_T = TypeVar("_T")

GLANCE_SECONDS: Final = 2.0
"""Deadline of a glance at the working loop; probes commonly wait for less than 5 s."""

GLANCE_AGE_SECONDS: Final = 0.2
"""A glance serves all who ask within it: strangers cannot make the loop work."""


class Glance(Generic[_T]):
    """A view of an event loop for other threads: taken by the loop itself, between its steps."""

    def __init__(self, look: Callable[[], _T], loop: asyncio.AbstractEventLoop) -> None:
        """`look` must not wait; it is called within `loop`."""
        self._look = look
        self._loop = loop
        self._taking: asyncio.Future[_T] | None = None
        self._due = 0.0

    async def take(self) -> _T:
        """Return what `look` has returned just now. Raises TimeoutError when the loop hangs.

        Raises RuntimeError when the loop has ended. Call it from one other loop.
        """
        now = time.monotonic()
        if self._taking is None or (self._taking.done() and now >= self._due):
            self._due = now + GLANCE_AGE_SECONDS
            looking = asyncio.run_coroutine_threadsafe(self._taken(), self._loop)
            self._taking = asyncio.wrap_future(looking)
        async with asyncio.timeout(GLANCE_SECONDS):
            return await asyncio.shield(self._taking)

    async def _taken(self) -> _T:
        return self._look()


class ServerThread:
    """A thread whose event loop serves an application, and runs what that needs."""

    def __init__(
        self,
        app: AsgiApp,
        limits: HttpLimits,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        self._server = HttpServer(app, limits)
        self._loop_factory = loop_factory
        self._has_begun = threading.Event()
        self._is_over = asyncio.Event()
        # A daemon: where it hangs, the process ends without it.
        self._thread = threading.Thread(target=self._run, name="orderchain http", daemon=True)

    def start(self) -> None:
        """Begin the thread; nothing is served yet."""
        self._thread.start()
        self._has_begun.wait()

    def call(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run `work` in the loop of the thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def serve(self, listening: socket.socket, stop_seconds: float = 2.0) -> Future[None]:
        """Serve until `stop_serving`; the result comes when requests under way are answered."""
        return self.call(self._server.serve(listening, stop_seconds))

    def stop_serving(self) -> None:
        """Take no more requests. May be called more than once, also after the end."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._server.stop)

    def end(self, seconds: float) -> None:
        """Cancel what still runs in the thread, and wait for its end."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._is_over.set)
            self._thread.join(seconds)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._loop_factory) as runner:
            self._loop = runner.get_loop()
            self._has_begun.set()
            runner.run(self._is_over.wait())
