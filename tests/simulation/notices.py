"""Notifications of a simulated database, as a receiver without broker hears them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chain_kernel.errors import ConnectError, RetryError
from chain_kernel.testing.memory_log import MemoryFrameSource
from chain_kernel.testing.virtual_loop import check_alive

from .plan import CHAIN_ID

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.doubles.hosts import Host, Hosts


class HeardNotices:
    """Listens at the newest primary; what is notified while the connection is lost is lost.

    `link` is what notifications pass on their way: it may lose, repeat and reorder them.
    """

    has_rows: Final = False
    place: Final = None

    def __init__(self, hosts: Hosts, link: Callable[[list[bytes]], list[bytes | None]]) -> None:
        self._hosts = hosts
        self._link = link
        self._at: tuple[Host, int] | None = None
        self._source: MemoryFrameSource | None = None

    async def start(self) -> None:
        check_alive()
        host = self._hosts.find_newest()
        if not host.server.is_answering:
            raise ConnectError("database", host.server.name, "a server that answers")
        self._at = host, host.server.boots
        self._source = MemoryFrameSource(
            host.database.notices[CHAIN_ID], self._link, has_rows=False
        )
        await self._source.start()

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        try:
            if self._source is None:
                await self.start()
            assert self._source is not None
            found = await self._source.records(timeout_seconds)
            self._check()
        except ConnectError as error:
            raise RetryError(str(error)) from error
        return found

    def _check(self) -> None:
        """Raise RetryError where the connection was lost; the next call makes another."""
        assert self._at is not None
        host, boots = self._at
        if host.server.boots != boots or not host.server.is_answering:
            self._source = None
            raise RetryError("the connection that listens was lost")

    async def close(self) -> None:
        self._source = None
