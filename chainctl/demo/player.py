"""One process of the demo, with the last of its reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from chainctl.demo.child import Child, ChildDied
from chainctl.demo.messages import Finished, Sequenced

if TYPE_CHECKING:
    import asyncio

    from msgspec import Struct

    from chainctl.demo.messages import Command, Report

_R = TypeVar("_R")


class Player:
    """A child whose reports are taken in as they come."""

    def __init__(self, child: Child, changed: asyncio.Event) -> None:
        self._child = child
        self._changed = changed
        self._reports: dict[type, Report] = {}
        self._is_killed = False

    @classmethod
    async def start(cls, name: str, module: str, job: Struct, changed: asyncio.Event) -> Player:
        """Start a process; `changed` is set at every report of it."""
        return cls(await Child.start(name, module, job), changed)

    def last(self, kind: type[_R]) -> _R | None:
        """Return the last report of a kind."""
        report = self._reports.get(kind)
        return report if isinstance(report, kind) else None

    async def listen(self) -> None:
        """Take in reports until the last one. Raises ChildDied when it never comes.

        Of a killed process, what it had reported before is taken in too.
        """
        try:
            while not self._is_over():
                report = await self._child.report()
                self._reports[type(report)] = report
                self._changed.set()
            await self._child.wait()
        except ChildDied:
            if not self._is_killed:
                raise

    async def tell(self, command: Command) -> None:
        """Give the process a command."""
        await self._child.tell(command)

    async def kill(self) -> None:
        """Kill it, with SIGKILL."""
        self._is_killed = True
        await self._child.kill()

    async def stop(self) -> None:
        """End it, if it still runs."""
        await self._child.stop()

    def _is_over(self) -> bool:
        if self.last(Finished) is not None:
            return True
        sequenced = self.last(Sequenced)
        return sequenced is not None and sequenced.stage == "closed"
